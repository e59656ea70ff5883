"""What HubRise is sent of an order.

Sources, on hubrise.com/developers: "Orders" and "General Concepts" of the API reference; "Integration Guide" (identical options are
separate objects; an order always has a payment). As HubRise's own bridges to delivery platforms do, a tip is a
charge, an option's list is called "Options", and a discount is the order's. What the documents leave open:

- how long a text may be, but for a private ref's 255 characters: texts are sent whole, and compared with the reply's;
- options of options: an inner option follows the outer option, with both names;
- taxes beside the prices: HubRise adds no tax to a total. An order with such taxes is refused by name, unless the merchant's
  record has taxes as charges (``taxes_as``).
"""

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from pos_gateway.adapters import lines
from pos_gateway.adapters import order_type as types
from pos_gateway.adapters.adapted import Adapted, As, Words, carried, texts, words
from pos_gateway.adapters.hubrise_api import LIMITS
from pos_gateway.adapters.marks import merchant_digest
from pos_gateway.adapters.pos_fields import PosField
from pos_gateway.adapters.rejection import Refused, Rejection, rejected
from pos_gateway.adapters.unsupported import Reads
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import PARTS, AnyModifier, Customer, Item, Order
from pos_gateway.domain.order_parts import DeliveryInfo, DineIn, OrderType, Payment
from pos_gateway.domain.outcome import Outcome, one_line

#: All optional fields have a place at HubRise.
READS = Reads(frozenset(PARTS), frozenset({"modifiers", "notes"}))
_SERVICES: dict[OrderType | None, str] = {"delivery": "delivery", "dine_in": "eat_in"}
_REFS = {
    "collection_ref": "the service type for collection",
    "delivery_ref": "the service type for delivery",
    "eat_in_ref": "the service type to eat in",
    "payment_ref": "the payment method of orders paid elsewhere",
    "tip_ref": "the charge for tips",
}
FIELDS = {
    **{
        name: PosField(f"the ref code of {what}", r".+", required=False, names_pos=False)
        for name, what in _REFS.items()
    },
    "taxes_as": PosField(
        "CHARGE where the shop's prices are without tax: an order's taxes are charges then",
        "CHARGE",
        required=False,
        names_pos=False,
    ),
}
#: No text is longer than the request.
_TEXT = LIMITS.request_bytes or 0
#: Bytes of the shortest option in a request.
_OPTION = 60


def content(order: Order, merchant: Merchant) -> bytes | Outcome:
    """The body of the request that makes the order, or our own rejection: nothing is sent."""
    if not lines.has_hundredths(order):
        problem = f"{order.total} {order.currency} cannot be written with two decimals"
        return rejected(Rejection.INVALID_ORDER, problem)
    size = sum(_size(each, "") for item in order.items for each in item.modifiers)
    return lines.oversize(size, LIMITS) or lines.request(
        order, LIMITS, lambda: _encoded(order, merchant), READS
    )


def adapted(order: Order, merchant: Merchant) -> Iterator[Adapted]:
    """The fields in the notes of the order, its delivery and its items without a place of their own."""
    yield from carried(_note(order, types.order_type(order)[0]), As.NOTE)
    yield from carried(lines.handover_words(order.delivery or DeliveryInfo()), As.DELIVERY_NOTE)
    for number, item in enumerate(lines.cooperatively(order)):
        yield from carried(lines.modifiers_notes(item, f"items[{number}]"), As.ITEM_NOTE)


def private_ref(order: Order) -> str:
    """The order's mark: at most 141 characters; HubRise takes 255."""
    return f"{order.order_id}-{merchant_digest(order)}"


def _encoded(order: Order, merchant: Merchant) -> bytes:
    """The order as HubRise's, in JSON. Raises Refused."""
    type_ = types.order_type(order)[0]
    service = _SERVICES.get(type_, "collection")
    sent = {
        "status": "new",
        "ref": order.order_id,
        "private_ref": private_ref(order),
        "service_type": service,
        "service_type_ref": merchant.pos.get(f"{service}_ref"),
        "expected_time": order.scheduled_for and order.scheduled_for.isoformat(),
        "collection_code": lines.display_id(order, _TEXT),
        "customer_notes": one_line(" / ".join(texts(_note(order, type_)))),
        "items": [
            _item(item, order.currency, merchant, f"items[{number}]")
            for number, item in enumerate(lines.cooperatively(order))
        ],
        "discounts": [*_discounts(order, merchant)],
        "charges": [*_charges(order, merchant)],
        "payments": [*_payments(order, merchant)],
        "customer": _customer(order),
    }
    return json.dumps(_given(sent), separators=(",", ":")).encode()


def _note(order: Order, type_: OrderType | None) -> list[Words]:
    """The order's notes, after everything without a field at HubRise."""
    named = "order_type" if order.order_type else "fulfillment"
    return [
        *words("fulfillment", types.unsaid(order, type_)),
        *words(named, "curbside" if type_ == "curbside" else ""),
        *lines.prep_words(order),
        *lines.table_words(order.dine_in or DineIn()),
        *lines.utensils(order),
        *words("", order.notes),
    ]


def _item(item: Item, currency: str, merchant: Merchant, path: str) -> dict[str, Any]:
    notes = filter(None, (item.notes, *texts(lines.modifiers_notes(item, path))))
    sent = {
        "product_name": lines.name(item, _TEXT, path),
        "sku_ref": merchant.pos_id(item.sku) or item.sku,
        "price": _money(item.unit_price, currency),
        "quantity": str(item.quantity),
        "customer_notes": one_line(" / ".join(notes)),
        "options": [
            option for each in item.modifiers for option in _options(each, currency, merchant, "")
        ],
    }
    return _given(sent)


def _options(
    modifier: AnyModifier, currency: str, merchant: Merchant, before: str
) -> Iterator[dict[str, Any]]:
    """The modifier and the modifiers below, each as often as a single item has the modifier."""
    name = before + (one_line(modifier.name) or one_line(modifier.sku or "") or "option")
    option = {
        "option_list_name": "Options",
        "name": name,
        "ref": merchant.pos_id(modifier.sku) or modifier.sku,
        "price": _money(modifier.unit_price, currency),
    }
    for _ in range(modifier.quantity):
        yield _given(option)
        for below in modifier.modifiers or ():
            yield from _options(below, currency, merchant, f"{name}: ")


def _size(modifier: AnyModifier, before: str) -> int:
    """Bytes that a modifier takes in the request, at least."""
    name = f"{before}{modifier.name}: "
    below = sum(_size(each, name) for each in modifier.modifiers or ())
    return modifier.quantity * (_OPTION + len(name) + below)


def _discounts(order: Order, merchant: Merchant) -> Iterator[dict[str, Any]]:
    """The shop's discounts, which are the order's at HubRise: a discount of some items names the items."""
    for each in order.discounts or ():
        if each.is_in_total:
            of_items = [item.name for item in order.items if item.ref in (each.items or ())]
            name = ": ".join(filter(None, (each.name, ", ".join(of_items))))
            ref, price = merchant.pos_id(each.id) or each.id, _money(each.amount, order.currency)
            yield _given({"name": one_line(name), "ref": ref, "price_off": price})


def _charges(order: Order, merchant: Merchant) -> Iterator[dict[str, Any]]:
    """Fees, taxes beside the prices, and the tip. Raises Refused."""
    charges = [
        (each.name, merchant.pos_id(each.id) or each.id, each.amount) for each in order.fees or ()
    ]
    for number, tax in enumerate(order.taxes or ()):
        if tax.is_in_total and tax.amount:
            if "taxes_as" not in merchant.pos:
                problem = f"taxes[{number}]: HubRise adds no taxes to prices: give the merchant pos.taxes_as"
                raise Refused(Rejection.UNSUPPORTED_FIELD, problem)
            charges.append((tax.name, None, tax.amount))
    if order.tip:
        charges.append(("Tip", merchant.pos.get("tip_ref"), order.tip))
    for name, ref, amount in charges:
        price = _money(amount, order.currency)
        yield _given({"name": one_line(name), "ref": ref, "price": price})


def _payments(order: Order, merchant: Merchant) -> Iterator[dict[str, Any]]:
    """The payment of everything; an order without one is unpaid at HubRise."""
    how = order.payment or Payment()
    if how.status != "unpaid":
        sent = {
            "name": (how.method or "online").capitalize(),
            "ref": merchant.pos.get("payment_ref"),
            "amount": _money(order.total + (order.tip or 0), order.currency),
            "info": _given({"source": how.source, "reference": how.reference}),
        }
        yield _given(sent)


def _customer(order: Order) -> dict[str, Any]:
    """The guest of HubRise's "guest order", with the address and the notes of a delivery."""
    who, way = order.customer or Customer(), order.delivery or DeliveryInfo()
    first, _, last = one_line(who.name or "").rpartition(" ")
    if who.has_parts:
        first, last = one_line(who.first_name or ""), one_line(who.last_name or "")
    sent: dict[str, Any] = {"first_name": first or last, "last_name": last if first else ""}
    sent |= {"email": who.email, "phone": one_line(who.phone or "")}
    sent["delivery_notes"] = one_line(" / ".join(texts(lines.handover_words(way))))
    if way.address:
        at = way.address
        sent |= {"address_1": one_line(at.line1), "address_2": one_line(at.line2 or "")}
        sent |= {"postal_code": one_line(at.postal_code), "city": one_line(at.city)}
        sent |= {"state": one_line(at.region or ""), "country": at.country}
        places = {"latitude": at.lat, "longitude": at.lon}
        sent |= {name: f"{Decimal(str(at)):f}" for name, at in places.items() if at is not None}
    return _given(sent)


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields that are not empty."""
    return {name: value for name, value in fields.items() if value}


def _money(minor: int, currency: str) -> str:
    return f"{Decimal(minor).scaleb(-2):.2f} {currency}"
