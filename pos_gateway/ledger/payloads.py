"""Orders as they are kept in the ledger: sealed, since they have people's names in them.

Without a key (``POS_GATEWAY_SECRET_KEY``) they are kept as they are.
"""

from pos_gateway.ledger.states import Key
from pos_gateway.vault import Vault


class Payloads:
    """Seals and opens. Safe from threads."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault

    def seal(self, key: Key, order_json: bytes) -> str:
        """What is written down."""
        if self._vault.current is None:
            return order_json.decode()
        return self._vault.seal_bytes(order_json, whose=_whose(key))

    def open(self, key: Key, payload: str) -> bytes:
        """The order. Raises CannotOpen."""
        if payload.startswith("{"):
            return payload.encode()
        return self._vault.open_bytes(payload, whose=_whose(key))


def _whose(key: Key) -> str:
    # Neither has a blank in it. A merchant's secrets are sealed under an id alone.
    return f"{key.merchant_id} {key.order_id}"
