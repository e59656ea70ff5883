"""Changes of a merchant's record, for the audit: never a secret."""

from typing import Any

from pydantic import SecretStr

from pos_gateway.audit.note import Changes
from pos_gateway.domain.credentials import UnreadableCredentials
from pos_gateway.domain.merchant import Merchant
from pos_gateway.runtime.urls import mask_url

#: Changes of secrets, and of texts as long as a certificate.
SET, CHANGED, REMOVED = "set", "changed", "removed"
_LONG = ("auth.tls.certificate", "auth.tls.authority")


def changes(before: Merchant, after: Merchant) -> Changes:
    """Each changed field with both values; for a secret, only the kind of change."""
    if isinstance(before.auth, UnreadableCredentials) and after.auth is not before.auth:
        found: dict[str, Any] = {"auth": CHANGED}
        old, new = _fields(before), _fields(after)
        names = [name for name in (*old, *new) if not name.startswith("auth")]
    else:
        found, old, new = {}, _fields(before), _fields(after)
        names = [*old, *new]
    for name in dict.fromkeys(names):
        was, is_now = old.get(name), new.get(name)
        if was != is_now:
            found[name] = _change(name, was, is_now)
    return found


def _fields(merchant: Merchant) -> dict[str, Any]:
    fields = {name: getattr(merchant, name) for name in type(merchant).model_fields}
    del fields["id"], fields["auth"]
    pos = fields.pop("pos")
    fields |= {f"pos.{name}": each for name, each in pos.items()}
    if not isinstance(merchant.auth, UnreadableCredentials):
        fields |= _flat("auth", merchant.auth.model_dump(exclude_none=True))
    return fields


def _flat(prefix: str, values: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, each in values.items():
        path = f"{prefix}.{name}"
        flat |= _flat(path, each) if isinstance(each, dict) else {path: each}
    return flat


def _change(name: str, was: Any, is_now: Any) -> tuple[Any, Any] | str:
    if any(isinstance(each, SecretStr) for each in (was, is_now)) or name in _LONG:
        return SET if was is None else REMOVED if is_now is None else CHANGED
    return _shown(was), _shown(is_now)


def _shown(value: Any) -> Any:
    return mask_url(value) if isinstance(value, str) and "://" in value else value
