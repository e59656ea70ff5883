"""A merchant whose POS takes an order in steps. No I/O.

The POS does as asked, as often as asked: a second payment of an order is a second fact, like a
second print. Only the idempotency key of a create protects, as long as the POS keeps the key.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

Body = dict[str, Any]


class Act(StrEnum):
    """The acts of the POS."""

    CREATE = "create"
    FIND = "find"  # the look-up by our order id
    SHOW = "show"  # the look-up by the POS's order id, with payments; a print is never shown
    PAY = "pay"
    PRINT = "print"
    CANCEL = "cancel"
    REFUND = "refund"


class Loses(StrEnum):
    """The part of an exchange in whose place the connection is reset."""

    NOTHING = "nothing"
    REQUEST = "request"  # no fact
    REPLY = "reply"  # the fact is there


@dataclass(frozen=True, slots=True)
class Manner:
    """How a merchant treats the requests for an act."""

    loses: Loses = Loses.NOTHING
    #: Status of a refusal, and error code; 0: the POS does as asked.
    refuses: int = 0
    code: str = "refused"
    #: Seconds from the request to the fact, whether or not the client still waits.
    late: float = 0.0
    #: Seconds from the fact to the reply.
    slow: float = 0.0
    #: Requests in this manner, before the POS does as asked again; None: all.
    times: int | None = None


@dataclass(slots=True)
class Payment:
    """A recorded payment."""

    id: str
    amount: int
    is_refunded: bool = False


@dataclass(slots=True)
class PosOrder:
    """An order as the POS has it."""

    id: str
    #: Our order id.
    reference: str
    total: int
    payments: list[Payment] = field(default_factory=list)
    prints: int = 0
    is_cancelled: bool = False


@dataclass(frozen=True, slots=True)
class Truth:
    """The facts of one of our orders at the POS, counted, whatever the replies were."""

    created: int
    #: Created, and not cancelled.
    standing: int
    paid: int
    refunded: int
    printed: int
    #: Arrived requests, by act.
    requests: Mapping[str, int]


class _Key(NamedTuple):
    """An idempotency key, and the order that was created under the key."""

    since: float
    body: bytes
    order: PosOrder


class Asked(NamedTuple):
    """A request for an act."""

    act: Act
    #: The order: by our id for CREATE and FIND, else by the POS's.
    name: str
    #: Does as asked: the reply's status and body. Raises Refusal.
    do: Callable[[], tuple[int, Body]]


class Refusal(Exception):
    """Raised when the POS refuses: status, code, sentence."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class StepPos:
    """A merchant's POS. Not safe for two threads at once.

    Args:
        clock: seconds, for the age of idempotency keys.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._orders: dict[str, PosOrder] = {}
        self._keys: dict[str, _Key] = {}
        #: By our order id; by the POS's where the POS does not have the order.
        self._requests: dict[str, Counter[str]] = defaultdict(Counter)
        self._manners: dict[Act, Manner] = {}
        #: Seconds for which a key is kept; None: for ever.
        self.keys_kept: float | None = None
        #: Acts of which replies say "pending".
        self.undecided: frozenset[Act] = frozenset()
        #: Minor units on top of every order's total.
        self.adds = 0

    def asked(self, method: str, target: str, key: str, body: bytes) -> Asked | None:
        """The act that a path and query ask for; None: the API has no such path."""
        url = urlsplit(target)
        match method, [unquote(part) for part in url.path.split("/")[1:]]:
            case "POST", ["orders"]:
                return Asked(Act.CREATE, key, partial(self._create, key, body))
            case "GET", ["orders"]:
                reference = parse_qs(url.query).get("reference", [""])[-1]
                return Asked(Act.FIND, reference, partial(self._find, reference))
            case "GET", ["orders", name]:
                return Asked(Act.SHOW, name, partial(self._show, name))
            case "POST", ["orders", name, "payments"]:
                return Asked(Act.PAY, name, partial(self._pay, name, body))
            case "POST", ["orders", name, "prints"]:
                return Asked(Act.PRINT, name, partial(self._print, name, body))
            case "POST", ["orders", name, "cancel"]:
                return Asked(Act.CANCEL, name, partial(self._cancel, name, body))
            case "POST", ["orders", name, "refund"]:
                return Asked(Act.REFUND, name, partial(self._refund, name))
        return None

    def treat(self, act: Act, manner: Manner) -> None:
        """Treat the requests for an act in a manner, from now on."""
        self._manners[act] = manner

    def arrived(self, asked: Asked) -> Manner:
        """Count a request; returns how to treat the request."""
        order = self._orders.get(asked.name)
        self._requests[order.reference if order else asked.name][asked.act] += 1
        manner = self._manners.get(asked.act, _PLAIN)
        if manner.times is not None:
            left = manner.times - 1
            self._manners[asked.act] = replace(manner, times=left) if left else _PLAIN
        return manner

    def do(self, asked: Asked, manner: Manner) -> tuple[int, Body]:
        """The reply to a request in a manner, when the fact is due: status and body."""
        try:
            if manner.refuses:
                raise Refusal(manner.refuses, manner.code, "the merchant refuses")
            return asked.do()
        except Refusal as refusal:
            return refusal.status, {"error": {"code": refusal.code, "message": str(refusal)}}

    def made(self, reference: str) -> list[PosOrder]:
        """The POS's orders with our id, first to last."""
        return [each for each in self._orders.values() if each.reference == reference]

    def truth(self, reference: str) -> Truth:
        """The facts of our order with this id."""
        made = self.made(reference)
        payments = [payment for each in made for payment in each.payments]
        return Truth(
            created=len(made),
            standing=sum(not each.is_cancelled for each in made),
            paid=len(payments),
            refunded=sum(each.is_refunded for each in payments),
            printed=sum(each.prints for each in made),
            requests=dict(self._requests[reference]),
        )

    def _create(self, key: str, body: bytes) -> tuple[int, Body]:
        """Create an order, or find the order that was created under this key."""
        said = _object(body)
        reference, total = said.get("reference"), said.get("total")
        if not key or not isinstance(reference, str) or not isinstance(total, int):
            raise Refusal(400, "bad_request", "a key, a reference and a total are required")
        known, now = self._keys.get(key), self._clock()
        if known is None or (self.keys_kept is not None and now - known.since >= self.keys_kept):
            order = PosOrder(f"o{len(self._orders) + 1}", reference, total + self.adds)
            self._orders[order.id] = order
            self._keys[key], status = _Key(now, body, order), 201
        elif known.body != body:
            raise Refusal(409, "key_reused", "the key was used for another order")
        else:
            order, status = known.order, 200
        return 202 if Act.CREATE in self.undecided else status, self._shown(order)

    def _find(self, reference: str) -> tuple[int, Body]:
        """All orders with our id, first to last, also if cancelled."""
        return 200, {"orders": [self._shown(each) for each in self.made(reference)]}

    def _show(self, order_id: str) -> tuple[int, Body]:
        """An order and its payments."""
        return 200, self._shown(self._order(order_id))

    def _pay(self, order_id: str, body: bytes) -> tuple[int, Body]:
        """Record a payment of the order's total."""
        order, amount = self._order(order_id, standing=True), _object(body).get("amount")
        if amount != order.total:
            raise Refusal(422, "wrong_amount", f"{amount} instead of {order.total}")
        payment = Payment(f"p{len(order.payments) + 1}", order.total)
        order.payments.append(payment)
        return 202 if Act.PAY in self.undecided else 201, self._shown_payment(payment)

    def _print(self, order_id: str, body: bytes) -> tuple[int, Body]:
        """Print a paid order in the kitchen."""
        order, payment = self._order(order_id, standing=True), _object(body).get("payment")
        if payment not in [each.id for each in order.payments if not each.is_refunded]:
            raise Refusal(422, "unpaid", f"the order has no payment {payment}")
        order.prints += 1
        return 202 if Act.PRINT in self.undecided else 201, {"ticket": f"t{order.prints}"}

    def _cancel(self, order_id: str, body: bytes) -> tuple[int, Body]:
        """Cancel an unpaid order; with ``refund`` also a paid order."""
        order = self._order(order_id)
        if _object(body).get("refund"):
            for each in order.payments:
                each.is_refunded = True
        if not all(each.is_refunded for each in order.payments):
            raise Refusal(409, "paid", "the order is paid")
        order.is_cancelled = True
        return 200, self._shown(order)

    def _refund(self, order_id: str) -> tuple[int, Body]:
        """Refund all payments of the order."""
        order = self._order(order_id)
        if not order.payments:
            raise Refusal(404, "no_payment", "the order has no payment")
        for each in order.payments:
            each.is_refunded = True
        return 200, self._shown(order)

    def _order(self, order_id: str, *, standing: bool = False) -> PosOrder:
        order = self._orders.get(order_id)
        if order is None:
            raise Refusal(404, "unknown_order", f"there is no order {order_id}")
        if standing and order.is_cancelled:
            raise Refusal(409, "cancelled", "the order is cancelled")
        return order

    def _shown(self, order: PosOrder) -> Body:
        state = "pending" if Act.CREATE in self.undecided else "open"
        return {
            "id": order.id,
            "reference": order.reference,
            "total": order.total,
            "state": "cancelled" if order.is_cancelled else state,
            "payments": [self._shown_payment(each) for each in order.payments],
        }

    def _shown_payment(self, payment: Payment) -> Body:
        state = "pending" if Act.PAY in self.undecided else "done"
        return {**asdict(payment), "state": "refunded" if payment.is_refunded else state}


_PLAIN = Manner()


def _object(body: bytes) -> Body:
    try:
        value = json.loads(body or b"{}")
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise Refusal(400, "bad_request", "the body is not a JSON object")
    return value
