"""The cart of an atomic order, and the order's marks at Clover.

Sources, on docs.clover.com: "Create an atomic order", "Manage orders data", "Create custom orders", "New
server-side limits for line items and bulk inventory updates"; the lengths of texts are those of the
models in Clover's Android SDK, and of ``externalReferenceId`` in the Ecommerce API.

Clover ignores modifiers without an id: their prices are added to the item's, their names to the item's
note. So are modifiers of modifiers, and notes of both. An item of quantity 3 is three line items, and a fee is a line
of its own. Taxes are not sent: Clover adds the merchant's, and its total must be the order's. Each text is sent whole, or the order is refused: see
``lines.text``. Clover documents no field for another system's order id in a cart, and knows
``externalReferenceId`` of orders: a digest is sent there, and the whole mark begins the note.
"""

import hashlib
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from pos_gateway.adapters import lines
from pos_gateway.adapters import order_type as types
from pos_gateway.adapters.adapted import Adapted, As, Words, carried, texts, words
from pos_gateway.adapters.clover_api import encoded
from pos_gateway.adapters.marks import merchant_digest
from pos_gateway.adapters.pos_fields import PosField
from pos_gateway.adapters.rejection import Refused, Rejection
from pos_gateway.adapters.unsupported import Reads
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import PARTS, AnyModifier, Customer, Item, Order
from pos_gateway.domain.order_parts import DeliveryInfo, DineIn, Discount, OrderType, Payment

#: The fields that have a place at Clover: all, in a field or in a note.
READS = Reads(frozenset(PARTS), frozenset({"modifiers", "notes"}))
_ID = r"[A-Za-z0-9]{1,64}"
FIELDS = {
    "order_type": PosField("the id of an order type", _ID, required=False, names_pos=False),
    **{
        f"{name}_order_type": PosField(
            f"the id of the order type of {what}; else order_type",
            _ID,
            required=False,
            names_pos=False,
        )
        for name, what in {
            "delivery": "deliveries",
            "dine_in": "orders to eat in",
            "curbside": "curbside pickups",
        }.items()
    },
    "scheduled_as": PosField(
        "NOTE: have orders for later made at once, with their time in the note",
        "NOTE",
        required=False,
        names_pos=False,
    ),
    "time_zone": lines.TIME_ZONE,
}
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
            a tip and nothing to pay; it is not paid, or for later.
    """

    def __init__(self, order: Order, merchant: Merchant) -> None:
        if order.tip and not order.total:
            problem = "tip: Clover records a tip with a payment, and an order of 0 has no payment"
            raise Refused(Rejection.UNSUPPORTED_FIELD, problem)
        lines.refuse_unpaid(order)
        if order.scheduled_for and "scheduled_as" not in merchant.pos:
            problem = (
                "scheduled_for: Clover makes each order at once; give the merchant pos.scheduled_as"
            )
            raise Refused(Rejection.UNSUPPORTED_FIELD, problem)
        type_, _ = types.order_type(order)
        number = sum(item.quantity for item in order.items) + len(order.fees or ())
        if number > _LINES:
            problem = f"{number} items; Clover takes {_LINES} in an order"
            raise Refused(Rejection.INVALID_ORDER, problem)
        what = "notes, with mark, customer and fulfillment,"
        cart: dict[str, Any] = {
            "state": "open",  # staff see no order without a state
            "externalReferenceId": reference(order),
            "note": lines.text(
                _note(_who(order) + _given(order, merchant, type_), order), _NOTE, what
            ),
        }
        if handle := lines.display_id(order, _TITLE):
            cart["title"] = handle
        if kind := merchant.pos.get(f"{type_}_order_type", merchant.pos.get("order_type")):
            cart["orderType"] = {"id": kind}
        if is_untaxed(order):
            cart["taxRemoved"] = True
        shares = map(dict, lines.shares(order))
        discounts = list(zip(order.discounts or (), shares, strict=True))
        if of_order := [
            _discount(each, each.amount)
            for each, parts in discounts
            if each.is_in_total and not parts
        ]:
            cart["discounts"] = of_order
        self._head = encoded({"orderCart": {**cart, "lineItems": []}}).removesuffix(_END)
        self._lines = [
            (encoded(line), quantity)
            for number, item in enumerate(lines.cooperatively(order))
            for line, quantity in _discounted(
                _line(item, merchant, f"items[{number}]"),
                item.quantity,
                [(each, parts.get(number, 0)) for each, parts in discounts],
            )
        ]
        self._lines += [
            (encoded({"name": fee.name, "price": fee.amount}), 1) for fee in order.fees or ()
        ]
        #: Size in bytes.
        self.size = len(self._head + _END) - 1
        self.size += sum((len(line) + 1) * number for line, number in self._lines)

    def encoded(self) -> bytes:
        """The body, as JSON."""
        whole = [line for line, number in self._lines for _ in range(number)]
        return self._head + b",".join(whole) + _END


def adapted(order: Order, merchant: Merchant) -> Iterator[Adapted]:
    """The fields in the notes of the order, its lines and its payment without a place of their own."""
    yield from carried(
        [*_who(order), *_given(order, merchant, types.order_type(order)[0])], As.NOTE
    )
    for number, item in enumerate(lines.cooperatively(order)):
        for change in _changes(item, merchant, f"items[{number}]"):
            if change.pos_id is not None:
                yield from carried(change.below, As.ITEM_NOTE)
            elif change.name or change.below:
                yield Adapted(change.path, As.ITEM_NOTE)
    if order.total:
        yield from carried(paid_words(order), As.PAYMENT_NOTE)


def paid_words(order: Order) -> list[Words]:
    """How the guest has paid, for the payment's note."""
    how = order.payment or Payment()
    named = {"method": how.method, "reference": how.reference, "source": how.source}
    return [part for name, text in named.items() for part in words(f"payment.{name}", text)]


def _discount(discount: Discount, amount: int) -> dict[str, Any]:
    return {"name": discount.name, "amount": -amount}


def _discounted(
    line: dict[str, Any], quantity: int, amounts: list[tuple[Discount, int]]
) -> Iterator[tuple[dict[str, Any], int]]:
    """Each different piece of an item, and how many there are: a discount is spread over all pieces.

    The first pieces get a minor unit more where it does not divide evenly.
    """
    given = [(each, *divmod(amount, quantity)) for each, amount in amounts if amount]
    ends = sorted({*(rest for *_, rest in given), quantity} - {0})
    for begin, end in pairwise([0, *ends]):
        shares = [(each, share + (begin < rest)) for each, share, rest in given]
        discounts = [_discount(each, share) for each, share in shares if share]
        yield ({**line, "discounts": discounts} if discounts else line), end - begin


def _line(item: Item, merchant: Merchant, path: str) -> dict[str, Any]:
    known_as, price = merchant.pos_id(item.sku), item.price
    modifications, said = [], []
    # A negative amount is not documented: with a discount, the item's price includes the
    # modifiers'.
    folded = any(each.price < 0 for each in item.modifiers)
    for change in _changes(item, merchant, path):
        name, below = change.name, ", ".join(texts(change.below))
        if change.pos_id is None:
            said.append(f"{name}: {below}" if below else name)
            continue
        amount = 0 if folded else change.modifier.quantity * change.modifier.price
        price -= amount
        name = lines.text(name, _MODIFICATION, f"{change.path}.name") or "modifier"
        modifications.append({"modifier": {"id": change.pos_id}, "name": name, "amount": amount})
        said += [f"{name}: {below}"] if below else []
    if known_as is None:
        line: dict[str, Any] = {"name": lines.name(item, _NAME, path), "price": price}
    else:
        line = {"item": {"id": known_as}, "price": price, "modifications": modifications}
    what = f"{path}.notes, with the modifiers' names," if said else f"{path}.notes"
    note = lines.text("; ".join(filter(None, [*said, item.notes])), _LINE_NOTE, what)
    return {**line, "note": note} if note else line


class _CartModifier(NamedTuple):
    """A modifier of an item."""

    modifier: AnyModifier
    path: str
    name: str
    #: Clover's id of the modifier; None: the line's note has the name.
    pos_id: str | None
    #: The modifier's own modifiers and notes, for the line's note.
    below: list[Words]


def _changes(item: Item, merchant: Merchant, path: str) -> Iterator[_CartModifier]:
    """The item's modifiers. Raises Refused."""
    is_known = merchant.pos_id(item.sku) is not None
    for number, each in enumerate(item.modifiers):
        where = f"{path}.modifiers[{number}]"
        name, pos_id = _called(each, where), merchant.pos_id(each.sku) if is_known else None
        if pos_id is None and not name and each.unit_price:
            problem = f"{where}: has a price, and neither a name nor a sku"
            raise Refused(Rejection.INVALID_ORDER, problem)
        yield _CartModifier(each, where, name, pos_id, _below(each, where))


def _called(modifier: AnyModifier, path: str) -> str:
    """A modifier's name, else its sku, with its quantity."""
    called = lines.text(modifier.name, _MODIFICATION, f"{path}.name")
    called = called or lines.text(modifier.sku, _MODIFICATION, f"{path}.sku")
    return f"{modifier.quantity} x {called}" if called and modifier.quantity > 1 else called


def _below(modifier: AnyModifier, path: str) -> list[Words]:
    """A modifier's own modifiers and notes, in words. Raises Refused."""
    found = []
    for number, each in enumerate(modifier.modifiers or ()):
        where = f"{path}.modifiers[{number}]"
        name, below = _called(each, where), ", ".join(texts(_below(each, where)))
        if not name and each.unit_price:
            problem = f"{where}: has a price, and neither a name nor a sku"
            raise Refused(Rejection.INVALID_ORDER, problem)
        found += words(where, f"{name} ({below})" if below else name)
    return [*found, *words(f"{path}.notes", modifier.notes)]


def is_untaxed(order: Order) -> bool:
    """Whether Clover is to leave the merchant's taxes out: a platform remits them.

    Raises:
        Refused: some taxes are the platform's, and some the merchant's.
    """
    whose = {each.is_merchants for each in order.taxes or ()}
    if len(whose) > 1:
        problem = (
            "taxes[].remitted_by: Clover adds all of the merchant's taxes to an order, or none"
        )
        raise Refused(Rejection.UNSUPPORTED_FIELD, problem)
    return whose == {False}


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
    return bool(
        found.get("note") == lines.shortened(_note(_who(order), order, _id(order)), _OLD_NOTE)
    )


def is_marked(found: dict[str, Any]) -> bool:
    """Whether the note begins with the mark of any order of ours."""
    return _MARK.match(str(found.get("note"))) is not None


def _id(order: Order) -> str:
    return f"[{order.order_id}]"


def _mark(order: Order) -> str:
    return f"{_id(order)} #{merchant_digest(order)}"


def _who(order: Order) -> list[Words]:
    """The customer's name and phone number: Clover has no field for them."""
    customer = order.customer or Customer()
    return [*lines.full_name(customer), *words("customer.phone", customer.phone)]


def _given(order: Order, merchant: Merchant, type_: OrderType | None) -> list[Words]:
    """The words of an order's type, time and way: Clover has no field for them."""
    text = order.fulfillment if isinstance(order.fulfillment, str) else ""
    is_said = text and not order.order_type  # by the text alone
    customer, named = order.customer or Customer(), "order_type" if order.order_type else type_
    return [
        *words("customer.email", customer.email),
        *words(named or "", None if is_said else type_),
        *words("fulfillment", text if is_said else types.unsaid(order, type_)),
        *lines.time_words(order, merchant),
        *lines.delivery_words(order.delivery or DeliveryInfo()),
        *lines.table_words(order.dine_in or DineIn()),
        *lines.utensils(order),
    ]


def _note(parts: list[Words], order: Order, mark: str | None = None) -> str:
    """An order's note: the mark first, then the customer, the kind of order, and the order's notes."""
    return " ".join([mark or _mark(order), *texts([*parts, *words("", order.notes)])])
