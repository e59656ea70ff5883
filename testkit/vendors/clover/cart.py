"""Request bodies by tables, and the cart of an atomic order, made of the merchant's inventory.

Documented ("Create an atomic order", "Manage orders data", the limits of 2026): the messages and details
of 400s; a modification without a modifier's id is ignored; a modification's name and amount replace the
inventory's if both are sent; ``unitQty`` counts for items priced by unit alone; discounts are negative; 2,500
lines. Lengths are ``…_MAX_LEN`` in the Android SDK's models; ``externalReferenceId`` has 12 characters, as
its namesake in the Ecommerce API.

Judgement: an unknown field is refused (Clover may ignore one, and a misspelt discount with it); prices and
modifications below 0 are refused; flags may be texts, as in the documents' examples.
"""

from collections.abc import Iterator

from testkit.vendors.clover.refusal import Body, Refusal
from testkit.vendors.clover.shop import Knobs, Shop
from testkit.vendors.fields import Fault, Field, Rule, Tables, faults, integer, many, text

_LINES = 2500
_FLAG, _REFERENCE, _DISCOUNTS = Field("any"), Field("reference"), many("discount")
_DEFINITE = Field("reference", required=True)

TABLES: Tables = {
    "request": {"orderCart": Field("cart", required=True)},
    "cart": {
        "lineItems": many("line", required=True),
        "discounts": _DISCOUNTS,
        "serviceCharge": Field("service charge"),
        "orderType": _REFERENCE,
        "title": text(127),
        "note": text(2047),
        "externalReferenceId": text(12),
        "state": text(31),
        "currency": text(3),
        "employee": _REFERENCE,
        "customers": many("reference"),
        **dict.fromkeys(("taxRemoved", "groupLineItems", "testMode", "manualTransaction"), _FLAG),
    },
    "line": {
        "item": _REFERENCE,
        "name": text(127),
        "price": integer(0),
        "unitQty": integer(0),
        "note": text(255),
        "discounts": _DISCOUNTS,
        "modifications": many("modification"),
        **dict.fromkeys(("printed", "exchanged", "refunded", "isRevenue", "refund"), _FLAG),
    },
    "modification": {
        "modifier": Field("modifier"),
        "id": text(13),
        "name": text(255),
        "amount": integer(0),
    },
    "modifier": {"id": text(13), "name": text(255), "available": _FLAG, "price": _FLAG},
    "discount": {
        "name": text(64, required=True),
        "amount": integer(highest=-1),
        "percentage": integer(1, 100),
    },
    "service charge": {"id": text(13, required=True), "name": text(127), "enabled": _FLAG},
    "reference": {"id": text(13, required=True)},
    "payment": {
        "tender": _DEFINITE,
        "amount": integer(1, required=True),
        "tipAmount": integer(0),
        "taxAmount": integer(0),
        "externalPaymentId": text(32),
        "note": text(255),
        "employee": _REFERENCE,
        "result": text(31),
        "offline": _FLAG,
    },
    "print request": {"orderRef": _DEFINITE, "deviceRef": _FLAG},
}


def checked(table: str, body: Body, knobs: Knobs) -> Body:
    """The body, valid by its table. Raises Refusal."""
    for fault in faults(TABLES, table, body):
        if fault.rule is not Rule.LONG or not knobs.cuts_texts:
            raise Refusal(400, _message(fault), str(fault))
    return body


def _message(fault: Fault) -> str:
    if fault.path.startswith("orderRef"):
        return "order_uuid_is_null"
    return "invalid_discount_attribute" if ".discounts[" in fault.path else "bad_request"


def _text(table: str, field: str, sent: Body) -> str | None:
    """A text, cut where the knob lets it be too long; None: absent or empty."""
    value = sent.get(field)
    return str(value)[: TABLES[table][field].longest] if value else None


class Cart:
    """A cart with the records that it names: lines, discounts, service charge.

    Args:
        body: the request's.
        shop: the merchant's records.
        knobs: what no document says.

    Raises:
        Refusal: the cart breaks a rule, or names what the merchant does not have.
    """

    def __init__(self, body: Body, shop: Shop, knobs: Knobs) -> None:
        self._shop, self._knobs = shop, knobs
        given = body.get("orderCart")
        if not isinstance(given, dict) or not given.get("lineItems"):
            raise Refusal(400, "cart_is_empty_or_missing", "Cart is empty or missing")
        self._sent = sent = checked("request", body, knobs)["orderCart"]
        if len(sent["lineItems"]) > _LINES:
            raise Refusal(400, "bad_request", f"an order has at most {_LINES} line items")
        if (sent.get("currency") or shop.currency).upper() != shop.currency:
            raise Refusal(400, "bad_request", f"the merchant's currency is {shop.currency}")
        self.is_taxed = str(sent.get("taxRemoved")).lower() != "true"
        self.lines = [self._line(each) for each in sent["lineItems"]]
        self.discounts = list(self._discounts(sent))
        charge, kind = sent.get("serviceCharge"), sent.get("orderType")
        if charge and charge["id"] not in shop.service_charges:
            raise Refusal(400, "service_charge_does_not_exist", charge["id"])
        self.service_charge = charge and shop.service_charges[charge["id"]]
        known = kind and shop.order_types.get(kind["id"])
        if kind and (known is None or (knobs.refuses_hidden and known["isHidden"])):
            raise Refusal(400, "bad_request", f"there is no order type {kind['id']}")
        self.order_type = kind

    def text(self, field: str) -> str | None:
        """A text of the order's own."""
        return _text("cart", field, self._sent)

    def _line(self, sent: Body) -> Body:
        price, known = sent.get("price"), self._item(sent.get("item"))
        if known is None and price is None:
            raise Refusal(400, "bad_request", "a line item has a price or an inventory item")
        if known is not None and (price is None or self._knobs.own_prices):
            price = known["price"]
        by_unit = known is not None and known["priceType"] == "PER_UNIT"
        found = {
            "item": known and {"id": known["id"]},
            "name": _text("line", "name", sent) or (known and known["name"]),
            "note": _text("line", "note", sent),
            "unitQty": sent.get("unitQty") if by_unit else None,
            "price": price,
            "printed": False,
            "modifications": list(self._modifications(sent)),
            "discounts": list(self._discounts(sent)),
            "taxRates": self._shop.rates_of(known) if self.is_taxed else [],
        }
        return {name: value for name, value in found.items() if value is not None}

    def _item(self, sent: Body | None) -> Body | None:
        return sent and self._known(self._shop.items, sent["id"], "item_does_not_exist")

    def _known(self, records: dict[str, Body], record_id: str, message: str) -> Body:
        known = records.get(record_id)
        if known is None or (self._knobs.refuses_unavailable and not known["available"]):
            raise Refusal(400, message, record_id)
        return known

    def _modifications(self, sent: Body) -> Iterator[Body]:
        for each in sent.get("modifications") or ():
            modifier_id = (each.get("modifier") or {}).get("id") or each.get("id")
            if modifier_id is None:
                continue  # as documented
            known = self._known(self._shop.modifiers, modifier_id, "invalid_modifier")
            name, amount = _text("modification", "name", each), each.get("amount")
            if name is None or amount is None:
                name, amount = known["name"], known["price"]
            yield {"modifier": {"id": modifier_id}, "name": name, "amount": amount}

    def _discounts(self, sent: Body) -> Iterator[Body]:
        for each in sent.get("discounts") or ():
            if (each.get("amount") is None) is (each.get("percentage") is None):
                raise Refusal(400, "invalid_discount_attribute", "an amount or a percentage")
            yield {**each, "name": _text("discount", "name", each)}
