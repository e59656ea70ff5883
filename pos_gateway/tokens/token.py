"""A token: its text, its holder's name, and what it allows."""

import hashlib
import re
import secrets
import zlib
from base64 import urlsafe_b64encode
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

#: What secret scanners search for; a match is a token if ``is_well_formed`` says so.
PATTERN: Final = r"pgw_[A-Za-z0-9_-]{49}"
#: The rule for names, as a sentence.
NAMES: Final = "a name has 1 to 128 letters, digits, dots, hyphens and underscores, and does not begin with pgw_"

#: Maximum requests a second that a token's limit may be.
MAX_RATE: Final = 1_000_000

_PREFIX = "pgw_"
_RANDOM_BYTES = 32
#: Characters of the checksum: four bytes in base64, without padding.
_CHECKSUM = 6
_TOKEN = re.compile(PATTERN)
_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")


class Capability(StrEnum):
    """What a request may do."""

    SUBMIT = "submit"  # submit and cancel orders
    READ = "read"  # an order's state, and events
    INSPECT = "inspect"  # everything besides: merchants, queues, dead letters, the audit
    ACT = "act"  # change what others depend on: resolve, replay, pause
    REVEAL = "reveal"  # personal data as it is; it is masked for others


class Role(StrEnum):
    """A token's capabilities.

    An operator may do what a backend may: it can replay and resolve any order, so to forbid it to
    submit one would protect nothing.
    """

    BACKEND = "backend"
    VIEWER = "viewer"
    OPERATOR = "operator"

    @property
    def capabilities(self) -> frozenset[Capability]:
        return _CAPABILITIES[self]

    def allows(self, needed: "Capability | Role") -> bool:
        """Whether the role has this capability, or all of that role's."""
        wanted = needed.capabilities if isinstance(needed, Role) else {needed}
        return wanted <= self.capabilities


_CAPABILITIES = {
    # It gets personal data as it is, since it sent them.
    Role.BACKEND: frozenset({Capability.SUBMIT, Capability.READ, Capability.REVEAL}),
    Role.VIEWER: frozenset({Capability.READ, Capability.INSPECT}),
    Role.OPERATOR: frozenset(Capability),
}


@dataclass(frozen=True, slots=True)
class Token:
    """A token as the database has it, without its text. Times are Unix time."""

    name: str
    role: Role
    #: Requests a second, in each server process; None: the server's default.
    rate: int | None
    digest: str = field(repr=False)
    created_at: float
    used_at: float | None
    revoked_at: float | None


def new_token() -> str:
    """A new token: ``pgw_``, 43 characters that are random, and 6 that are their checksum.

    The characters are base64url's, without padding. The random ones are 32 bytes (256 bits). The
    checksum is CRC-32 of all before it: a mistyped token is distinguished from an unknown one without the
    database, and a secret scanner can distinguish a token from text that looks like one.
    """
    text = _PREFIX + _base64(secrets.token_bytes(_RANDOM_BYTES))
    return text + _checksum(text)


def is_well_formed(token: str) -> bool:
    """Whether it can be a token: of the right form, and not mistyped."""
    if _TOKEN.fullmatch(token) is None:
        return False
    return _checksum(token[:-_CHECKSUM]) == token[-_CHECKSUM:]


def digest(token: str) -> str:
    """SHA-256 of a token, in hexadecimal digits.

    A hash that is slow, or needs memory, is for passwords, which can be guessed. 256 random bits
    can't, so a fast hash reveals as little; and it is computed for every request.
    """
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def is_name(text: str) -> bool:
    """Whether a token may have this name (see ``NAMES``); a token in place of its name is none."""
    return _NAME.fullmatch(text) is not None and not text.startswith(_PREFIX)


def _checksum(text: str) -> str:
    return _base64(zlib.crc32(text.encode()).to_bytes(4, "big"))


def _base64(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")
