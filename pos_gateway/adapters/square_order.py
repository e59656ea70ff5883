"""An order as Square's CreateOrder takes it: OrderLineItem, OrderLineItemModifier and a fulfillment.

Sources beside these objects: OrderLineItemDiscount, OrderServiceCharge, OrderLineItemTax. Each text is sent whole,
or the order is refused: see ``lines.text``. Square computes taxes by their rates: a tax without a rate is
refused by name. Taxes that a platform remits and discounts that a platform funds are not the shop's, and are
not sent: the total has neither.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from pos_gateway.adapters import lines
from pos_gateway.adapters.adapted import Adapted, As, carried, texts
from pos_gateway.adapters.rejection import Refused, Rejection
from pos_gateway.adapters.square_api import encoded, key
from pos_gateway.adapters.square_fulfillment import fulfillment, note_words
from pos_gateway.adapters.unsupported import Reads
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import PARTS, AnyModifier, Item, Order
from pos_gateway.domain.order_parts import Tax

#: The fields that have a place at Square: all.
READS = Reads(frozenset(PARTS), frozenset({"modifiers", "notes"}))
#: Longest texts, from OrderLineItem and OrderLineItemModifier; reference_id and ticket_name, from
#: Order.
_NAME, _MODIFIER, _NOTE, REFERENCE, _TICKET = 512, 255, 2000, 40, 30


def creation(order: Order, merchant: Merchant) -> bytes:
    """The body of a CreateOrder. Raises Refused."""
    if order.tip and not order.total:
        problem = "tip: Square records a tip with a payment, and an order of 0 has no payment"
        raise Refused(Rejection.UNSUPPORTED_FIELD, problem)
    lines.refuse_unpaid(order)
    handle = lines.display_id(order, _TICKET)
    discounts, applied = _discounts(order)
    content: dict[str, Any] = {
        "location_id": merchant.pos["location_id"],
        # Private to the application that wrote it, up to 255 characters: look-ups use it.
        "metadata": {"order_id": order.order_id, "merchant_id": order.merchant_id},
        "line_items": [
            _line(order, item, merchant, f"items[{number}]", applied[number])
            for number, item in enumerate(lines.cooperatively(order))
        ],
        "fulfillments": [fulfillment(order, merchant, handle or order.order_id)],
    }
    charges = {"discounts": discounts, "service_charges": _fees(order), "taxes": _taxes(order)}
    content |= {name: each for name, each in charges.items() if each}
    if len(order.order_id) <= REFERENCE:
        content["reference_id"] = order.order_id
    if handle:
        content["ticket_name"] = handle
    elif order.customer and order.customer.full_name:
        content["ticket_name"] = lines.shortened(order.customer.full_name, _TICKET)
    return encoded({"idempotency_key": key(order), "order": content})


def adapted(order: Order, merchant: Merchant) -> Iterator[Adapted]:
    """The fields in the fulfillment's note, and of order and modifiers in the lines' notes."""
    yield from carried(note_words(order, merchant), As.NOTE)
    for number, item in enumerate(lines.cooperatively(order)):
        yield from carried(lines.orders_notes(order, item), As.ITEM_NOTE)
        yield from carried(lines.modifiers_notes(item, f"items[{number}]"), As.ITEM_NOTE)


def _discounts(order: Order) -> tuple[list[dict[str, Any]], dict[int, list[dict[str, Any]]]]:
    """The order's discounts; and by an item's number the references to the item's own."""
    found, applied = list[dict[str, Any]](), defaultdict[int, list[dict[str, Any]]](list)
    for number, (discount, parts) in enumerate(
        zip(order.discounts or (), lines.shares(order), strict=True)
    ):
        if not discount.is_in_total:
            continue
        of_order: list[tuple[int | None, int]] = [(None, discount.amount)]
        for place, amount in parts or of_order:
            uid = f"discount-{number}" if place is None else f"discount-{number}-{place}"
            if place is not None:
                applied[place].append({"discount_uid": uid})
            scope = "ORDER" if place is None else "LINE_ITEM"
            money = {"amount": amount, "currency": order.currency}
            one = {"uid": uid, "name": discount.name, "type": "FIXED_AMOUNT"}
            found.append({**one, "amount_money": money, "scope": scope})
    return found, applied


def _fees(order: Order) -> list[dict[str, Any]]:
    return [
        {
            "name": fee.name,
            "amount_money": {"amount": fee.amount, "currency": order.currency},
            "calculation_phase": "SUBTOTAL_PHASE",
            "taxable": bool(fee.taxable),
        }
        for fee in order.fees or ()
    ]


def _taxes(order: Order) -> list[dict[str, Any]]:
    return [
        {
            "name": tax.name,
            "percentage": _rate(tax, f"taxes[{number}]"),
            "type": "INCLUSIVE" if tax.inclusive else "ADDITIVE",
            "scope": "ORDER",
        }
        for number, tax in enumerate(order.taxes or ())
        if tax.is_merchants
    ]


def _rate(tax: Tax, path: str) -> str:
    if tax.rate is None:
        problem = f"{path} has no rate: Square computes taxes by their rates"
        raise Refused(Rejection.UNSUPPORTED_FIELD, problem)
    return tax.rate


def _line(
    order: Order, item: Item, merchant: Merchant, path: str, discounts: list[dict[str, Any]]
) -> dict[str, Any]:
    known_as = merchant.pos_id(item.sku)
    modifiers = _Modifiers(order, item, merchant if known_as else None)
    line: dict[str, Any] = {
        **_named(known_as, lambda: lines.name(item, _NAME, path)),
        "quantity": str(item.quantity),
        "base_price_money": {"amount": price(item), "currency": order.currency},
        "modifiers": list(modifiers.below(item, f"{path}.modifiers")),
    }
    if discounts:
        line["applied_discounts"] = discounts
    said = lines.notes(order, item, _NOTE, path)
    words = filter(None, [said, *texts(lines.modifiers_notes(item, path))])
    note = lines.text(" / ".join(words), _NOTE, f"{path}.notes, with the modifiers',")
    return {**line, "note": note} if note else line


class _Modifiers:
    """The modifiers of an item as Square's flat list, where a nested one names its parent.

    A modifier's own quantity counts for the whole line, and a nested one's once for each of its parent.
    """

    def __init__(self, order: Order, item: Item, merchant: Merchant | None) -> None:
        self._currency, self._merchant = order.currency, merchant
        self._is_folded, self._number = _is_folded(item), 0

    def below(
        self, part: Item | AnyModifier, path: str, times: int = 1, parent: str = ""
    ) -> Iterator[dict[str, Any]]:
        """The modifiers of ``part``, each before its own. Raises Refused."""
        for number, each in enumerate(part.modifiers or ()):
            where, quantity = f"{path}[{number}]", times * each.quantity
            known_as = self._merchant.pos_id(each.sku) if self._merchant else None
            sent: dict[str, Any] = {
                **_named(known_as, partial(_modifier_name, each, f"{where}.name")),
                "quantity": str(quantity),
                "base_price_money": {
                    "amount": 0 if self._is_folded else each.unit_price,
                    "currency": self._currency,
                },
            }
            uid = ""
            if each.modifiers:
                self._number += 1
                uid = f"modifier-{self._number}"
                sent["uid"] = uid
            if parent:
                sent["parent_modifier_uid"] = parent
            yield sent
            yield from self.below(each, f"{where}.modifiers", quantity, uid)


def _is_folded(part: Item | AnyModifier) -> bool:
    """Whether the item's price includes its modifiers': money is unsigned, and one is a discount."""
    return any(each.unit_price < 0 or _is_folded(each) for each in part.modifiers or ())


def price(item: Item) -> int:
    """The price of one unit as it is sent."""
    return item.price if _is_folded(item) else item.unit_price


def _modifier_name(modifier: AnyModifier, path: str) -> str:
    return lines.text(modifier.name, _MODIFIER, path) or "modifier"


def _named(known_as: str | None, name: Callable[[], str]) -> dict[str, str]:
    """The catalog id if there is one, else the name: Square's name wins over ours."""
    return {"name": name()} if known_as is None else {"catalog_object_id": known_as}
