"""Seals personal data in the ledger: orders, and POSes' reasons.

Without a key (``POS_GATEWAY_SECRET_KEY``), the ledger stores both in clear.
"""

import json
import re
from dataclasses import dataclass, replace

from pos_gateway.domain.outcome import Reason
from pos_gateway.ledger.states import Key
from pos_gateway.runtime.vault import CannotOpen, Vault

#: The prefix of a sealed message.
SEALED = "sealed:"
#: A code as written by programs, unlike any person's name.
_CODE = re.compile(r"[a-z_]{1,64}|http_[0-9]{3}")


@dataclass(frozen=True, slots=True)
class Payloads:
    """Seals and opens. Safe from threads."""

    vault: Vault

    def seal(self, key: Key, order_json: bytes) -> str:
        """The text to store."""
        if self.vault.current is None:
            return order_json.decode()
        return self.vault.seal_bytes(order_json, whose=_whose(key))

    @property
    def prefix(self) -> str | None:
        """First characters of text sealed with the present key; None: without a key."""
        return None if self.vault.current is None else f"{self.vault.current}."

    def is_stale(self, payload: str) -> bool:
        """Whether the text is in clear, or under an earlier key."""
        return self.prefix is not None and not payload.startswith(self.prefix)

    def open(self, key: Key, payload: str) -> bytes:
        """The order's JSON. Raises CannotOpen."""
        if payload.startswith("{"):
            return payload.encode()
        return self.vault.open_bytes(payload, whose=_whose(key))

    def seal_reason(self, key: Key, reason: Reason) -> Reason:
        """Seal the reason into its message: a POS may quote the customer.

        A program's code stays readable.
        """
        if self.vault.current is None:
            return reason
        said = json.dumps([reason.code, reason.message]).encode()
        return Reason(
            readable_code(reason), SEALED + self.vault.seal_bytes(said, whose=_whose(key))
        )

    def open_reason(self, key: Key, reason: Reason) -> Reason:
        """Open a sealed reason; without its message if no key opens the message."""
        try:
            return self._opened_reason(key, reason)
        except CannotOpen as error:
            return replace(reason, message=f"(cannot be read: {error})")

    def resealed(self, key: Key, payload: str) -> str:
        """The order sealed with the present key. Raises CannotOpen."""
        return self.seal(key, self.open(key, payload)) if self.is_stale(payload) else payload

    def resealed_reason(self, key: Key, reason: Reason) -> Reason:
        """The reason sealed with the present key. Raises CannotOpen."""
        if self.prefix is None or reason.message.startswith(SEALED + self.prefix):
            return reason
        return self.seal_reason(key, self._opened_reason(key, reason))

    def _opened_reason(self, key: Key, reason: Reason) -> Reason:
        if not reason.message.startswith(SEALED):
            return reason
        sealed = reason.message.removeprefix(SEALED)
        return Reason(*json.loads(self.vault.open_bytes(sealed, whose=_whose(key))))


def readable_code(reason: Reason) -> str:
    """The code; ``other`` for a POS's words, perhaps about the customer."""
    return reason.code if _CODE.fullmatch(reason.code) else "other"


def _whose(key: Key) -> str:
    # No id has a blank: merchants' secrets are sealed under other ids.
    return f"{key.merchant_id} {key.order_id}"
