"""A vendor's ids for a merchant (its record's ``pos``) and for its items (its catalog).

Each adapter has its own.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pos_gateway.adapters.protocol import Limits
from pos_gateway.domain.errors import ABSENT, FieldError
from pos_gateway.domain.merchant import Merchant

#: The field that errors in a catalog's item ids are reported under.
POS_ID = "pos_id"
#: A GUID in Toast's form.
GUID = r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"


@dataclass(frozen=True, slots=True)
class PosField:
    """An id: its meaning, for the person who fills it in, and its form."""

    meaning: str
    pattern: str = r"[A-Za-z0-9_-]+"
    required: bool = True
    #: With another one an order would be at another POS, or not be found; else it may be edited
    #: while orders are in doubt.
    names_pos: bool = True


def endpoint(merchant: Merchant, adapter: object) -> str:
    """A fingerprint of the POS: ``adapter``, ``base_url``, and what names it in ``pos``.

    That is all of ``pos``, but for what the adapter says otherwise of in its ``pos_fields``.
    """
    fields: Mapping[str, PosField] = getattr(adapter, "pos_fields", {})
    others = [name for name in merchant.pos if name in fields and not fields[name].names_pos]
    return merchant.endpoint_without(others) if others else merchant.endpoint


def problems(
    merchant: Merchant,
    fields: Mapping[str, PosField],
    limits: Limits,
    item: PosField | None = None,
) -> list[FieldError]:
    """Errors in the merchant's record and catalog, for a POS with these ids and limits.

    Args:
        merchant: its record, with its catalog.
        fields: the ids in ``pos``.
        limits: the vendor's.
        item: an item's id in the catalog, where the vendor documents its form.
    """
    found = []
    for name, field in fields.items():
        value = merchant.pos.get(name)
        if value is None:
            if field.required:
                found.append(FieldError(f"pos.{name}", f"is required: {field.meaning}"))
        elif not re.fullmatch(field.pattern, value):
            found.append(FieldError(f"pos.{name}", f"must be {field.meaning}", value))
    for name in sorted(merchant.pos.keys() - fields.keys()):
        known = ", ".join(fields) or "none"
        found.append(FieldError(f"pos.{name}", f"is no field of this adapter; it has: {known}"))
    if item is not None:
        for pos_id in merchant.catalog.values():
            if not re.fullmatch(item.pattern, pos_id):
                found.append(FieldError(POS_ID, f"must be {item.meaning}", pos_id))
    return found + _beyond(merchant, limits)


def _beyond(merchant: Merchant, limits: Limits) -> list[FieldError]:
    """Settings above the vendor's limits, and a missing or too short request_timeout."""
    found = []
    at_once, seconds = merchant.max_concurrency, merchant.request_timeout
    if at_once is not None and at_once > limits.at_once(at_once):
        problem = f"must be at most {limits.concurrency}: the POS allows no more at once"
        found.append(FieldError("max_concurrency", problem, at_once))
    if limits.longest_reply is not None and (seconds is None or seconds < limits.longest_reply):
        problem = f"must be given, at least {limits.longest_reply:g}: a reply may take so long"
        shown = ABSENT if seconds is None else seconds
        found.append(FieldError("request_timeout", problem, shown))
    return found
