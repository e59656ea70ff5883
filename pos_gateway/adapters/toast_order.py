"""What Toast is sent of an order: the body of a request for its prices, and of its create.

Sources, on doc.toasttab.com: "Creating orders", "Specifying modifiers and instructions for menu item
selections", "External identifiers", "Discounting orders", "Regional expansion"; the orders API's definition
(Order, Check, Selection, Payment, AppliedServiceCharge, AppliedDiscount). An item without a sku of Toast's,
a tip without a payment, a fee or a discount that the restaurant has not configured are refused by name, and so
is an unpaid order where the merchant's are paid. Taxes are not sent: Toast computes them, and its total with them must be
the order's. Platforms' taxes and discounts are not the restaurant's, and are in neither total.
"""

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from pos_gateway.adapters import lines
from pos_gateway.adapters.adapted import Adapted, As, carried, words
from pos_gateway.adapters.marks import merchant_digest
from pos_gateway.adapters.pos_fields import GUID, PosField
from pos_gateway.adapters.rejection import Refused, Rejection, rejected
from pos_gateway.adapters.toast_api import LIMITS
from pos_gateway.adapters.toast_dining import dining, stamp
from pos_gateway.adapters.toast_guest import guest, tab_words
from pos_gateway.adapters.unsupported import Reads
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import PARTS, AnyModifier, Item, Order
from pos_gateway.domain.order_parts import DeliveryInfo
from pos_gateway.domain.outcome import Outcome

#: The fields that have a place at Toast.
READS = Reads(frozenset(PARTS) - {"prep_minutes"}, frozenset({"modifiers", "notes"}))
#: An item's id in a catalog, or a sku.
_ITEM = re.compile(f"(?P<group>{GUID})/(?P<item>{GUID})")
ITEM = PosField(
    "the GUIDs of the item's menu group (a modifier's: its option group) and its own: group/item",
    _ITEM.pattern,
)
FIELDS = {
    "naming_authority": PosField(
        "the naming authority that Toast assigned, at most 16 characters", r"[A-Za-z0-9_-]{1,16}"
    ),
    "payment": PosField(
        "the GUID of the alternative payment type for orders paid elsewhere",
        GUID,
        required=False,
        names_pos=False,
    ),
    "service_charge": PosField(
        "the GUID of a service charge of an open amount, for an order's fees",
        GUID,
        required=False,
        names_pos=False,
    ),
    "discount": PosField(
        "the GUID of a discount of an open amount, for an order's discount",
        GUID,
        required=False,
        names_pos=False,
    ),
}
#: Maximum minor units that a JSON number of dollars holds exact to the cent.
_LARGEST = 10**15
#: Maximum characters of a special request.
_REQUEST = 1000
#: Bytes of the shortest modifier in a request, without its comma.
_MODIFIER = 150
_GUIDS = "two GUIDs of Toast's, nor such itself"


def content(order: Order, merchant: Merchant) -> bytes | Outcome:
    """The body of both requests, or our own rejection: nothing is sent."""
    if (refused := _unsendable(order, merchant)) is not None:
        return refused
    return lines.request(order, LIMITS, lambda: _creation(order, merchant), READS)


def adapted(order: Order, merchant: Merchant) -> Iterator[Adapted]:
    """The fields in the tab's name and a courier's note, and special requests: each is a modifier at Toast."""
    yield from carried(tab_words(order, merchant), As.TAB_NAME)
    yield from carried(lines.handover_words(order.delivery or DeliveryInfo()), As.DELIVERY_NOTE)
    for number, item in enumerate(lines.cooperatively(order)):
        path = f"items[{number}]"
        yield from carried(words(f"{path}.notes", item.notes), As.SPECIAL_REQUEST)
        yield from carried(lines.orders_notes(order, item), As.SPECIAL_REQUEST)
        yield from _requests(item, path)


def _requests(part: Item | AnyModifier, path: str) -> Iterator[Adapted]:
    """The modifiers that are words alone, and the notes of all modifiers."""
    for number, each in enumerate(part.modifiers or ()):
        where = f"{path}.modifiers[{number}]"
        if _is_request(each):
            yield Adapted(where, As.SPECIAL_REQUEST)
        elif each.notes:
            yield Adapted(f"{where}.notes", As.SPECIAL_REQUEST)
        if each.modifiers:
            yield from _requests(each, where)


def _unsendable(order: Order, merchant: Merchant) -> Outcome | None:
    """Our own rejection of an order that Toast's API cannot express."""
    if not lines.has_hundredths(order) or max(order.total, order.tip or 0) > _LARGEST:
        problem = f"{order.total} {order.currency} cannot be written with two decimals"
        return rejected(Rejection.INVALID_ORDER, problem)
    size = 0
    for item in order.items:
        if not _ITEM.fullmatch(known_as(item, merchant)):
            problem = f"the sku {lines.shortened(item.sku, 100)!r} is not in the merchant's catalog"
            return rejected(Rejection.INVALID_ORDER, f"{problem} as group/item, {_GUIDS}")
        for each in _below(item):
            if not _is_request(each) and not _ITEM.fullmatch(known_as(each, merchant)):
                problem = f"the modifier {lines.shortened(each.name, 100)!r}"
                return rejected(
                    Rejection.INVALID_ORDER,
                    f"{problem} is not in the merchant's catalog as option group/item, {_GUIDS}",
                )
        size += sum(map(_size, item.modifiers))
    return lines.oversize(size, LIMITS)


def _creation(order: Order, merchant: Merchant) -> bytes:
    """The order as Toast's, in JSON. Raises Refused: a text is too long, a setting is missing."""
    check: dict[str, Any] = {
        "entityType": "Check",
        "selections": [
            _selection(order, item, merchant, f"items[{number}]")
            for number, item in enumerate(lines.cooperatively(order))
        ],
        **guest(order, merchant),
        **_charges(order, merchant),
        **_payment(order, merchant),
    }
    created = {
        "entityType": "Order",
        "externalId": external_id(order, merchant),
        **dining(order, merchant),
        "checks": [check],
    }
    return json.dumps(created, separators=(",", ":")).encode()


def _payment(order: Order, merchant: Merchant) -> dict[str, Any]:
    """The payment of the total, which Toast's prices must come to."""
    if "payment" not in merchant.pos:
        if order.tip:
            problem = "tip: Toast records a tip with a payment; give the merchant pos.payment"
            raise Refused(Rejection.UNSUPPORTED_FIELD, problem)
        return {}
    lines.refuse_unpaid(order)
    payment = {
        "type": "OTHER",
        "otherPayment": {"guid": merchant.pos["payment"]},
        "paidDate": stamp(order.placed_at),
        "amount": _dollars(order.total),
        "tipAmount": _dollars(order.tip or 0),
    }
    return {"payments": [payment]}


def _charges(order: Order, merchant: Merchant) -> dict[str, Any]:
    """The fees and the discount, as the restaurant's configured ones of an open amount."""
    charges: dict[str, Any] = {}
    if order.fees:
        known = {"guid": _configured("fees", "service_charge", merchant)}
        charges["appliedServiceCharges"] = [
            {"serviceCharge": known, "chargeAmount": _dollars(each.amount)} for each in order.fees
        ]
    discounts = [each for each in order.discounts or () if each.is_in_total]
    if len(discounts) > 1:
        problem = f"discounts has {len(discounts)}; Toast takes one for an order"
        raise Refused(Rejection.UNSUPPORTED_FIELD, problem)
    for each in discounts:
        if each.items:
            problem = "discounts[].items: Toast takes a discount of an open amount for an order"
            raise Refused(Rejection.UNSUPPORTED_FIELD, problem)
        known = {"guid": _configured("discounts", "discount", merchant)}
        discount = {"discount": known, "discountAmount": _dollars(each.amount)}
        charges["appliedDiscounts"] = [discount]
    return charges


def _configured(field: str, setting: str, merchant: Merchant) -> str:
    if setting not in merchant.pos:
        problem = f"{field}: Toast takes those alone that the restaurant has: give the merchant pos.{setting}"
        raise Refused(Rejection.UNSUPPORTED_FIELD, problem)
    return merchant.pos[setting]


def _selection(order: Order, item: Item, merchant: Merchant, path: str) -> dict[str, Any]:
    modifiers = [
        each
        for number, modifier in enumerate(item.modifiers)
        for each in _modifiers(modifier, item.quantity, merchant, f"{path}.modifiers[{number}]")
    ]
    note = lines.notes(order, item, _REQUEST, path)
    return {
        "entityType": "MenuItemSelection",
        **_reference(known_as(item, merchant), "itemGroup"),
        "quantity": item.quantity,
        "modifiers": [*modifiers, _request(note)] if note else modifiers,
    }


def _modifiers(
    modifier: AnyModifier, quantity: int, merchant: Merchant, path: str
) -> list[dict[str, Any]]:
    """The modifier, once for each time that each of ``quantity`` items has it.

    Toast rejects a modifier of another quantity than its item's.
    """
    below: list[dict[str, Any]] = []
    for number, each in enumerate(modifier.modifiers or ()):
        below += _modifiers(each, quantity, merchant, f"{path}.modifiers[{number}]")
    note = lines.text(modifier.notes, _REQUEST, f"{path}.notes")
    if _is_request(modifier):
        times = f"{modifier.quantity} x " if modifier.quantity > 1 else ""
        name = lines.text(times + modifier.name, _REQUEST, f"{path}.name")
        text = lines.text(" / ".join(filter(None, (name, note))), _REQUEST, f"{path}.notes")
        return [_request(text)] if text else []
    if note:
        below.append(_request(note))
    selection = {**_reference(known_as(modifier, merchant), "optionGroup"), "quantity": quantity}
    return [{**selection, "modifiers": below} if below else selection] * modifier.quantity


def _is_request(modifier: AnyModifier) -> bool:
    """Whether a modifier is words alone."""
    return modifier.sku is None and modifier.unit_price == 0 and not modifier.modifiers


def _size(modifier: AnyModifier) -> int:
    """Bytes that a modifier takes in the request, at least."""
    words = len(modifier.notes or "")
    if _is_request(modifier):
        return len(modifier.name) + words
    below = sum(map(_size, modifier.modifiers or ()))
    return modifier.quantity * (_MODIFIER + words + below)


def _below(part: Item | AnyModifier) -> Iterator[AnyModifier]:
    for modifier in part.modifiers or ():
        yield modifier
        yield from _below(modifier)


def _request(text: str) -> dict[str, Any]:
    return {"selectionType": "SPECIAL_REQUEST", "displayName": text}


def known_as(what: Item | AnyModifier, merchant: Merchant) -> str:
    """Toast's id for it, ``group/item``, if the order can be sent."""
    return merchant.pos_id(what.sku) or what.sku or ""


def named_in(words: str, order: Order, merchant: Merchant) -> Item | AnyModifier | None:
    """The item or modifier, at any level, whose GUID, or whose group's, is in Toast's words."""
    said = words.lower()
    for item in order.items:
        parts: tuple[Item | AnyModifier, ...] = (item, *_below(item))
        for each in parts:
            found = _ITEM.fullmatch(known_as(each, merchant))
            if found and any(guid.lower() in said for guid in found.group("group", "item")):
                return each
    return None


def _reference(pos_id: str, group: str) -> dict[str, Any]:
    found = _ITEM.fullmatch(pos_id)
    assert found is not None  # noqa: S101  (unsendable has checked it)
    item = {"guid": found["item"], "entityType": "MenuItem"}
    return {group: {"guid": found["group"]}, "item": item}


def external_id(order: Order, merchant: Merchant) -> str:
    """The order's mark: at most 141 characters after the naming authority's; Toast allows 256."""
    return f"{unmarked(order, merchant)}-{merchant_digest(order)}"


def unmarked(order: Order, merchant: Merchant) -> str:
    """The mark of the release before, without the merchant."""
    return f"{merchant.pos['naming_authority']}:{order.order_id}"


def _dollars(minor: int) -> float:
    """Exact: below ``_LARGEST`` a float's shortest form has the same two decimals."""
    return float(Decimal(minor) / 100)
