"""A record for ``merchants import``, with secrets in clear or sealed by an export."""

from typing import Any

from pos_gateway.domain.errors import FieldError, InvalidMerchant
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.record import identifier
from pos_gateway.runtime.vault import CannotOpen, Vault

_SEALED = {"key", "sealed"}


def parse(record: Any, vault: Vault) -> Merchant:
    """Parse a decoded record.

    Raises:
        InvalidMerchant: names every wrong field without its value.
    """
    auth = record.get("auth") if isinstance(record, dict) else None
    if not isinstance(auth, dict) or auth.keys() - {"grant"} != _SEALED:
        return Merchant.parse(record)
    merchant_id = identifier(record.get("id"))
    if merchant_id is None:  # sealed text opens for its merchant alone
        return Merchant.parse({**record, "auth": {}})
    if not all(isinstance(each, str) for each in auth.values()):
        raise InvalidMerchant([FieldError("auth", "is neither sealed nor has a type")])
    try:
        opened = vault.open(auth, whose=merchant_id)
    except CannotOpen as error:
        raise InvalidMerchant([FieldError("auth", f"is {error}")]) from None
    return Merchant.parse({**record, "auth": opened})
