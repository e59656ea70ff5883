"""An order's state at HubRise: standing, how far the shop is, total, and whether all texts are whole.

Sources, on hubrise.com/developers: "Order Status" of the API reference, "Integration Guide" (the EPOS answers a new order with
``received``). Shops differ in the status that accepts an order: HubRise's bridges have a setting for the status, too.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from pos_gateway.adapters import lines
from pos_gateway.adapters.pos_fields import PosField
from pos_gateway.adapters.rejection import Rejection
from pos_gateway.adapters.replies import decision
from pos_gateway.adapters.signatures import inside
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind, Lifecycle, Outcome, Reason

FIELDS = {
    "accepted_as": PosField(
        "ACCEPTED where the shop's staff accept each order: without it RECEIVED, by the EPOS, is enough",
        "RECEIVED|ACCEPTED",
        required=False,
        names_pos=False,
    )
}
STATES: Mapping[str, Kind | Lifecycle] = {
    "new": Kind.PENDING,
    "received": Kind.ACCEPTED,
    "accepted": Kind.ACCEPTED,
    "in_preparation": Lifecycle.PREPARING,
    "awaiting_shipment": Lifecycle.READY,
    "awaiting_collection": Lifecycle.READY,
    "in_delivery": Lifecycle.READY,
    "completed": Lifecycle.COMPLETED,
    "rejected": Kind.REJECTED,
    "cancelled": Kind.CANCELLED,
    "delivery_failed": Kind.CANCELLED,
}
#: The order has left the shop.
GONE = frozenset({"in_delivery", "completed", "delivery_failed"})
#: Seconds between two looks at an order that the EPOS has not answered: ten lists a minute are allowed.
_LOOK_AGAIN = 60.0
_MONEY = re.compile(r"(-?[0-9]{1,16})\.([0-9]{2}) ([A-Z]{3})")


def meaning(found: dict[str, Any], merchant: Merchant) -> Kind | Lifecycle | None:
    """The meaning of the order's status; None: HubRise does not document the status."""
    status = str(found.get("status"))
    is_waiting = status == "received" and merchant.pos.get("accepted_as") == "ACCEPTED"
    return Kind.PENDING if is_waiting else STATES.get(status)


def standing(found: dict[str, Any], merchant: Merchant) -> Outcome:
    """The outcome by the order's status alone, whatever the order comes to."""
    said, status = meaning(found, merchant), str(found.get("status"))
    kind = Kind.ACCEPTED if isinstance(said, Lifecycle) or status in GONE else said
    known = decision({} if kind is None else {status: kind}, status, found.get("id"))
    if known.kind is Kind.PENDING:
        return replace(known, look_again=_LOOK_AGAIN)
    return replace(known, reason=why(found)) if known.kind is Kind.REJECTED else known


def why(found: dict[str, Any]) -> Reason:
    """Why the shop does not make the order, in the seller's words if there are any."""
    said = found.get("seller_notes") or f"the order is {found.get('status')} at HubRise"
    return Reason.of(Rejection.OTHER, said)


def money(text: object) -> tuple[int, str] | None:
    """Minor units and currency of an amount; None: the text is no amount."""
    found = _MONEY.fullmatch(text) if isinstance(text, str) else None
    return None if found is None else (int(found[1] + found[2]), found[3])


def disagreement(found: dict[str, Any], order: Order, sent: bytes | Outcome) -> Reason | None:
    """Why the order at HubRise differs from the agreed order; None: total and texts agree.

    Args:
        found: the order at HubRise, with a total.
        order: the agreed order.
        sent: the body of the create.
    """
    total, currency = money(found.get("total")) or (0, "")
    mismatch = lines.mispriced(order, total - (order.tip or 0), currency)
    if mismatch is not None or isinstance(sent, Outcome):
        return mismatch
    for name, whole, part in _texts(json.loads(sent), found):
        if isinstance(part, str) and part != whole and whole.startswith(part):
            problem = f"{name} has {len(whole)} characters; the POS keeps {len(part)}"
            return Reason.of(Rejection.TEXT_TOO_LONG, problem)
    return None


def _texts(
    sent: dict[str, Any], found: dict[str, Any], path: str = ""
) -> Iterator[tuple[str, str, object]]:
    """Each text for the kitchen: path, as sent, as found."""
    for name in ("customer_notes", "product_name", "name"):
        if name in sent:
            yield path + name, sent[name], found.get(name)
    for name in ("items", "options"):
        pairs = zip(sent.get(name, ()), _objects(found.get(name)), strict=False)
        for number, (mine, theirs) in enumerate(pairs):
            yield from _texts(mine, theirs, f"{path}{name}[{number}].")


def _objects(found: object) -> list[dict[str, Any]]:
    return [inside(each) for each in found] if isinstance(found, list) else []


def owes(found: dict[str, Any]) -> bool:
    """Whether the payments differ from the total, or are missing: a look-up must judge the order."""
    payments, total = _objects(found.get("payments")), money(found.get("total"))
    amounts = [money(each.get("amount")) for each in payments if each.get("deleted") is not True]
    if total is None or None in amounts:
        return True
    return sum(each[0] for each in amounts if each is not None) != total[0]
