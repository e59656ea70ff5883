"""Secrets at rest: sealed with a key stored elsewhere.

AES-256-GCM (RFC 5116): a sealed text that was changed, or moved to another merchant's row, cannot
be opened. Each text names its key, to rotate keys in operation.
"""

import base64
import binascii
import hashlib
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

#: Bytes of a key, and of the nonce before each sealed text.
KEY, NONCE = 32, 12
#: Length below which a passphrase is short: a key in Base64 has 44 characters.
PASSPHRASE = 24


class CannotOpen(Exception):
    """A sealed text cannot be opened; the message says why, and shows nothing of the text."""


class Vault:
    """Seals and opens. Immutable; safe from threads.

    Args:
        keys: Base64 of 32 bytes each, or passphrases, comma-separated; the first seals, all open.
    """

    def __init__(self, keys: str | None = None) -> None:
        self._keys = dict(map(_named, _parts(keys)))
        #: The id of the sealing key; None without a key.
        self.current: str | None = next(iter(self._keys), None)

    def knows(self, key_id: str) -> bool:
        """Whether this vault has the key of this id."""
        return key_id in self._keys

    def seal(self, secrets: Mapping[str, Any], *, whose: str) -> dict[str, str]:
        """The sealed secrets, safe to store. Raises CannotOpen without a key."""
        text = json.dumps(secrets, sort_keys=True).encode()
        key, _, sealed = self.seal_bytes(text, whose=whose).partition(".")
        return {"key": key, "sealed": sealed}

    def open(self, sealed: Mapping[str, str], *, whose: str) -> dict[str, Any]:
        """Open sealed secrets. Raises CannotOpen."""
        text = f"{sealed.get('key', '')}.{sealed.get('sealed', '')}"
        secrets: dict[str, Any] = json.loads(self.open_bytes(text, whose=whose))
        return secrets

    def seal_bytes(self, data: bytes, *, whose: str) -> str:
        """Seal bytes into a text: the key's id, a dot, Base64. Raises as ``seal``."""
        if self.current is None:
            raise CannotOpen(
                "there is no key to seal secrets with: set POS_GATEWAY_SECRET_KEY "
                "(pos-gateway secrets key makes one)"
            )
        nonce = os.urandom(NONCE)
        sealed = self._keys[self.current].encrypt(nonce, data, whose.encode())
        return f"{self.current}.{base64.b64encode(nonce + sealed).decode()}"

    def open_bytes(self, sealed: str, *, whose: str) -> bytes:
        """Open sealed bytes. Raises CannotOpen."""
        key_id, _, text = sealed.partition(".")
        key = self._keys.get(key_id)
        if key is None:
            raise CannotOpen(
                f"sealed with the key {key_id!r}, which POS_GATEWAY_SECRET_KEY has not"
            )
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415  (only where there is a key)

        try:
            data = base64.b64decode(text, validate=True)
            return key.decrypt(data[:NONCE], data[NONCE:], whose.encode())
        except (InvalidTag, ValueError):
            raise CannotOpen("changed since it was sealed, or sealed for another") from None


def new_key() -> str:
    """A new key, in the form of ``POS_GATEWAY_SECRET_KEY``."""
    return base64.b64encode(os.urandom(KEY)).decode()


def has_short_passphrase(keys: str | None) -> bool:
    """Whether a key is a passphrase that can be guessed: like a mistyped key."""
    return any(len(part) < PASSPHRASE and not _is_random(part) for part in _parts(keys))


def _parts(keys: str | None) -> list[str]:
    return [part.strip() for part in (keys or "").split(",") if part.strip()]


def _is_random(text: str) -> bool:
    try:
        return len(base64.b64decode(text, validate=True)) == KEY
    except binascii.Error:
        return False


def _named(part: str) -> tuple[str, "AESGCM"]:
    """A key's id, and the key."""
    # The import takes 7 MiB, which a process without a key saves.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415

    key = _key(part)
    return hashlib.sha256(key).hexdigest()[:8], AESGCM(key)


def _key(text: str) -> bytes:
    if _is_random(text):
        return base64.b64decode(text)
    # A passphrase, stretched by scrypt (RFC 7914); a random key is better.
    return hashlib.scrypt(text.encode(), salt=b"pos-gateway secrets", n=2**14, r=8, p=1, dklen=KEY)
