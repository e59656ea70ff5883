"""The cart of an atomic order, and the order's marks at Clover.

Sources, on docs.clover.com: "Create an atomic order", "Manage orders data", "Create custom orders", "New
server-side limits for line items and bulk inventory updates"; the lengths of texts are those of the
models in Clover's Android SDK, and of ``externalReferenceId`` in the Ecommerce API.

Clover ignores modifiers without an id: their prices are added to the item's, their names to the item's
note. An item of quantity 3 is three line items. Each text is sent whole, or the order is refused: see
``lines.text``. Clover documents no field for another system's order id in a cart, and knows
``externalReferenceId`` of orders: a digest is sent there, and the whole mark begins the note.
"""

import hashlib
import re
from typing import Any

from pos_gateway.adapters import lines
from pos_gateway.adapters.clover_api import encoded
from pos_gateway.adapters.marks import merchant_digest
from pos_gateway.adapters.rejection import Refused, Rejection
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Item, Order

#: Maximum line items of an order ("New server-side limits for line items").
_LINES = 2500
#: Longest texts: an order's title and note, the name of an ad-hoc line, a line's note, a modification's name.
_TITLE, _NOTE, _NAME, _LINE_NOTE, _MODIFICATION = 127, 2047, 127, 255, 255
#: Characters of ``externalReferenceId`` and ``externalPaymentId``.
_REFERENCE, _PAYMENT = 12, 32
#: Longest order note of the release without merchants in marks, cut there.
_OLD_NOTE = 255
#: A whole mark, and a merchant in it: no part of either has blanks.
_MARK, _MERCHANT = re.compile(r"\[\S+\] #[0-9a-f]{12}( |$)"), re.compile(r"#[0-9a-f]{12}( |$)")
#: The end, after the last line.
_END = b"]}}"


class Cart:
    """The request's body. The size is known before the body is written.

    An item of quantity 100 is written 100 times: a few bytes of an order could become gigabytes.

    Raises:
        Refused: a text is too long, a modifier has a price and no name, the order has too many pieces, or
            a tip and nothing to pay.
    """

    def __init__(self, order: Order, merchant: Merchant) -> None:
        if order.tip and not order.total:
            problem = "tip: Clover records a tip with a payment, and an order of 0 has no payment"
            raise Refused(Rejection.UNSUPPORTED_FIELD, problem)
        number = sum(item.quantity for item in order.items)
        if number > _LINES:
            problem = f"{number} items; Clover takes {_LINES} in an order"
            raise Refused(Rejection.INVALID_ORDER, problem)
        what = "notes, with mark, customer and fulfillment,"
        cart: dict[str, Any] = {
            "state": "open",  # staff see no order without a state
            "externalReferenceId": reference(order),
            "note": lines.text(_words(order, order.fulfillment), _NOTE, what),
        }
        if handle := lines.display_id(order, _TITLE):
            cart["title"] = handle
        if "order_type" in merchant.pos:
            cart["orderType"] = {"id": merchant.pos["order_type"]}
        self._head = encoded({"orderCart": {**cart, "lineItems": []}}).removesuffix(_END)
        self._lines = [
            (encoded(_line(item, merchant, f"items[{number}]")), item.quantity)
            for number, item in enumerate(lines.cooperatively(order))
        ]
        #: Size in bytes.
        self.size = len(self._head + _END) - 1
        self.size += sum((len(line) + 1) * number for line, number in self._lines)

    def encoded(self) -> bytes:
        """The body, as JSON."""
        whole = [line for line, number in self._lines for _ in range(number)]
        return self._head + b",".join(whole) + _END


def _line(item: Item, merchant: Merchant, path: str) -> dict[str, Any]:
    known_as, price = merchant.pos_id(item.sku), item.price
    modifications, changes = [], []
    # A negative amount is not documented: with a discount, the item's price includes the
    # modifiers'.
    folded = any(each.unit_price < 0 for each in item.modifiers)
    for number, each in enumerate(item.modifiers):
        where = f"{path}.modifiers[{number}]"
        called = lines.text(each.name, _MODIFICATION, f"{where}.name")
        called = called or lines.text(each.sku, _MODIFICATION, f"{where}.sku")
        name = f"{each.quantity} x {called}" if called and each.quantity > 1 else called
        modifier = merchant.pos_id(each.sku) if known_as else None
        if modifier is None and not name and each.unit_price:
            problem = f"{where}: has a price, and neither a name nor a sku"
            raise Refused(Rejection.INVALID_ORDER, problem)
        if modifier is None:
            changes.append(name)
            continue
        amount = 0 if folded else each.quantity * each.unit_price
        price -= amount
        name = lines.text(name, _MODIFICATION, f"{where}.name") or "modifier"
        modifications.append({"modifier": {"id": modifier}, "name": name, "amount": amount})
    if known_as is None:
        line: dict[str, Any] = {"name": lines.name(item, _NAME, path), "price": price}
    else:
        line = {"item": {"id": known_as}, "price": price, "modifications": modifications}
    what = f"{path}.notes, with the modifiers' names," if changes else f"{path}.notes"
    note = lines.text("; ".join(filter(None, [*changes, item.notes])), _LINE_NOTE, what)
    return {**line, "note": note} if note else line


def reference(order: Order) -> str:
    """The order's ``externalReferenceId``."""
    return _digest(order, "")[:_REFERENCE]


def payment_reference(order: Order, known_as: object) -> str:
    """The ``externalPaymentId`` of the payment of the order with Clover's id ``known_as``.

    Our order may be made there a second time, after the first was undone.
    """
    return _digest(order, f"\npay {known_as}")[:_PAYMENT]


def _digest(order: Order, what: str) -> str:
    whole = f"{order.merchant_id}\n{order.order_id}{what}"
    return hashlib.sha256(whole.encode()).hexdigest()


def is_ours(found: dict[str, Any], order: Order) -> bool:
    """Whether an order at Clover has our mark or, after an edit of the note, our reference."""
    if f"{found.get('note')} ".startswith(f"{_mark(order)} "):
        return True
    return found.get("externalReferenceId") == reference(order) and not is_marked(found)


def was_ours(found: dict[str, Any], order: Order) -> bool:
    """Whether the release without merchants in marks may have sent the order."""
    first, _, rest = str(found.get("note")).partition(" ")
    return first == _id(order) and not _MERCHANT.match(rest)


def had_our_note(found: dict[str, Any], order: Order) -> bool:
    """Whether the whole note is as the release without merchants in marks sent the note."""
    return bool(found.get("note") == lines.shortened(_words(order, None, _id(order)), _OLD_NOTE))


def is_marked(found: dict[str, Any]) -> bool:
    """Whether the note begins with the mark of any order of ours."""
    return _MARK.match(str(found.get("note"))) is not None


def _id(order: Order) -> str:
    return f"[{order.order_id}]"


def _mark(order: Order) -> str:
    return f"{_id(order)} #{merchant_digest(order)}"


def _words(order: Order, fulfillment: str | None, mark: str | None = None) -> str:
    """An order's note: the mark first, then the customer, the kind of order, and the order's notes."""
    who = (order.customer.name, order.customer.phone) if order.customer else ()
    return " ".join(filter(None, [mark or _mark(order), *who, fulfillment, order.notes]))
