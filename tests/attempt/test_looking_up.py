"""Look-ups of orders that a POS has, by their time, whatever the clocks and deadlines were."""

import hashlib
import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qsl, urlsplit

import pytest

from pos_gateway.adapters.replies import LOOK_UP
from pos_gateway.adapters.window import windows
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.ledger.states import Action
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.transport.errors import NoValidReply
from pos_gateway.transport.exchange import Request
from tests.adapters.vendors import SQUARE_PAID, square_payment
from tests.gate import Gate
from tests.orders import an_order

#: The merchant's, in an order's mark.
DIGEST = hashlib.sha256(b"m").hexdigest()[:12]
NO_REPLY = NoValidReply("timeout", "no reply")


class Vendor:
    """A POS with a list of orders; its replies to creates are lost."""

    record: ClassVar[dict[str, Any]]
    #: The end of an order that is found after its deadline: made, and not paid yet, it is undone.
    end: ClassVar[str] = "expired"
    #: The event of a cancel request for an accepted order.
    cancelled: ClassVar[tuple[str, str | None]] = ("cancelled", None)

    def __init__(self) -> None:
        self.gate: Gate
        self.made: list[dict[str, Any]] = []
        self.pages = 0
        self.is_silent = False

    def __call__(self, request: Request) -> Any:
        if self.is_silent:
            return NO_REPLY
        if request.method == "GET" and not urlsplit(request.url).query:
            return 404, {}  # by its id: only lists are of interest here
        return self._answer(request)

    def _answer(self, request: Request) -> Any:
        raise NotImplementedError

    def make(self, order_id: str, *, ago: timedelta = timedelta(), **fields: Any) -> None:
        """Add an order that was created this long ago."""
        at = self.gate.clock.now() - ago
        found = {"id": f"P{len(self.made)}", "at": at.timestamp()}
        self.made.append({**found, **self._named(order_id), **fields})

    def _named(self, order_id: str) -> dict[str, Any]:
        raise NotImplementedError

    def page(self, since: float, until: float, offset: int, limit: int) -> list[dict[str, Any]]:
        """Orders created in this window, oldest first."""
        self.pages += 1
        found = [each for each in self.made if since <= each["at"] <= until]
        return sorted(found, key=lambda each: each["at"])[offset : offset + limit]


class Clover(Vendor):
    """Keeps no reference of ours, and prints at once."""

    record: ClassVar = {"adapter": "clover", "pos": {"merchant_id": "M1", "tender": "T"}}
    cancelled: ClassVar = ("accepted", "not_cancelled")

    def _named(self, order_id: str) -> dict[str, Any]:
        return {"state": "open", "note": f"[{order_id}] #{DIGEST} Ada", "total": 1700}

    def __call__(self, request: Request) -> Any:
        url = urlsplit(request.url)
        if url.path.endswith("/checkouts"):
            return 200, {"total": 1700}
        known = [each for each in self.made if url.path.endswith(f"/orders/{each['id']}")]
        if known and request.method == "GET" and not self.is_silent:
            return 200, known[0]
        return super().__call__(request)

    def _answer(self, request: Request) -> Any:
        if request.url.endswith("/atomic_order/orders"):
            self.make("", note=json.loads(request.body or b"")["orderCart"]["note"])
            return NO_REPLY
        if request.url.endswith("/print_event"):
            self.made[-1]["lineItems"] = {"elements": [{"printed": True}]}
        if request.method != "GET":
            return 200, {"id": "P", **json.loads(request.body or b"{}")}
        query = parse_qsl(urlsplit(request.url).query)
        said = dict(query)
        if "offset" not in said:
            return 200, {"elements": []}
        since, until = (
            int(value.partition("=")[2]) / 1000 for name, value in query if name == "filter"
        )
        return 200, {"elements": self.page(since, until, int(said["offset"]), int(said["limit"]))}


class Square(Vendor):
    record: ClassVar = {"adapter": "square", "pos": {"location_id": "L1"}}

    def _named(self, order_id: str) -> dict[str, Any]:
        total = {"amount": 1700, "currency": "EUR"}
        found = {"state": "OPEN", "location_id": "L1", "version": 1, "total_money": total}
        found |= {"fulfillments": [{"uid": "F0", "state": "PROPOSED"}], **SQUARE_PAID}
        return {**found, "metadata": {"order_id": order_id, "merchant_id": "m"}}

    def __call__(self, request: Request) -> Any:
        if request.method == "GET" and "/payments/" in request.url:
            return 200, {"payment": square_payment("o1")}
        return super().__call__(request)

    def _answer(self, request: Request) -> Any:
        content = json.loads(request.body or b"")
        if request.method == "PUT":
            fulfillments = content["order"]["fulfillments"]
            self.made[-1].update(fulfillments=fulfillments)
            return 200, {"order": self.made[-1]}
        if request.url.endswith("/payments"):
            return 200, {"payment": square_payment("o1")}
        if request.url.endswith("/refunds"):
            return 200, {"refund": {"status": "COMPLETED"}}
        if request.url.endswith("/search"):
            window = content["query"]["filter"]["date_time_filter"]["created_at"]
            since, until = (
                datetime.fromisoformat(window[name]).timestamp() for name in ("start_at", "end_at")
            )
            offset, limit = int(content.get("cursor", 0)), content["limit"]
            found = self.page(since, until, offset, limit + 1)
            more = {"cursor": str(offset + limit)} if len(found) > limit else {}
            return 200, {"orders": found[:limit], **more}
        order_id = content["order"]["metadata"]["order_id"]
        if any(each["metadata"]["order_id"] == order_id for each in self.made):
            return 400, {"errors": [{"code": "BAD_REQUEST", "detail": "Order already exists"}]}
        self.make(order_id)
        return NO_REPLY


VENDORS = {"clover": Clover, "square": Square}


@pytest.fixture(params=VENDORS)
def pos(request: pytest.FixtureRequest, tmp_path: Path) -> Vendor:
    made: Vendor = VENDORS[request.param]()
    made.gate = Gate(tmp_path, made)
    record = {"id": "m", "base_url": "https://pos.example.com", **made.record}
    MerchantStore(made.gate.database).put([Merchant.parse(record)])
    return made


def placed(gate: Gate, ahead: timedelta, *, seconds: float = 4 * 3600) -> dict[str, Any]:
    """An order whose backend dates it this much later than now."""
    order = gate.an_order(seconds=seconds)
    return {**order, "placed_at": (gate.clock.now() + ahead).isoformat()}


def taken_until_it_ends(gate: Gate, order: dict[str, Any]) -> None:
    """Redeliver its message until it is terminal."""
    for _ in range(5):
        gate.take(order)
        if gate.row_state() not in ("new", "in_doubt"):
            return
        gate.wait(40)
        gate.ledger.catch_up()


@pytest.mark.parametrize("hours", [-2, 0, 0.5, 2, 3])
def test_a_look_up_finds_an_order_however_fast_the_backends_clock_is(
    pos: Vendor, hours: float
) -> None:
    """Also by the adapter that looks up by itself when a POS answers "already exists"."""
    taken_until_it_ends(pos.gate, placed(pos.gate, timedelta(hours=hours)))
    assert pos.gate.recorded() == [("accepted", None)]
    assert len(pos.made) == 1


def test_an_order_that_the_ledger_lost_is_found_with_a_fast_clock(
    tmp_path: Path,
) -> None:
    pos = Square()
    pos.gate = Gate(tmp_path, pos)
    record = {"id": "m", "base_url": "https://pos.example.com", **pos.record}
    MerchantStore(pos.gate.database).put([Merchant.parse(record)])
    pos.make("o1", ago=timedelta(minutes=1))
    pos.gate.take(placed(pos.gate, timedelta(hours=3)))
    assert pos.gate.recorded() == [("accepted", None)]


def test_a_message_with_an_old_deadline_looks_up_until_the_extended_one(
    pos: Vendor,
) -> None:
    """The order was created hours later, and would otherwise not be found."""
    gate = pos.gate
    order = gate.an_order(seconds=600)
    pos.is_silent = True
    gate.take(order)
    gate.wait(3 * 3600)
    until = gate.clock.now() + timedelta(minutes=30)
    with gate.database.begin() as connection:  # as ``orders resolve --not-sent --for 30m`` does
        connection.exec_driver_sql(
            "update orders set state = 'new', doubt_since = null, settling = null, told = null, "
            f"reopened = 1, epoch = epoch + 1, deliver_by = {until.timestamp()}"
        )
    pos.is_silent = False
    gate.take({**order, "deliver_by": until.isoformat()})
    assert (len(pos.made), gate.row_state()) == (1, "in_doubt")
    gate.wait(1801)
    gate.ledger.catch_up()
    gate.take(order)
    [(kind, _)] = gate.recorded()
    assert (kind, len(pos.made)) == (pos.end, 1)


def busy(pos: Vendor) -> None:
    """Add orders of the week before that a look-up does not read all."""
    for number in range(1000):
        pos.make(f"x{number}", ago=timedelta(days=7) - timedelta(minutes=10 * number))


def test_an_order_that_was_placed_a_week_before_is_found_on_the_first_pages(pos: Vendor) -> None:
    gate = pos.gate
    busy(pos)
    order = placed(gate, timedelta(days=-7))
    gate.take(order)
    pos.pages = 0
    taken_until_it_ends(gate, order)
    assert gate.recorded() == [("accepted", None)]
    assert pos.pages <= 2
    gate.take_cancel(seconds=600)
    assert gate.recorded()[-1] == pos.cancelled
    assert pos.pages <= 4


def test_a_missing_order_is_looked_up_in_its_whole_time(pos: Vendor) -> None:
    """The ledger may have been restored, and not know its first attempt."""
    gate = pos.gate
    pos.make("o1", ago=timedelta(days=3))
    order = placed(gate, timedelta(days=-7))
    pos.is_silent = True
    gate.take(order)
    pos.is_silent = False
    taken_until_it_ends(gate, order)
    assert gate.recorded() == [("accepted", None)]
    assert len(pos.made) == 1


def test_an_order_that_may_be_on_an_unread_page_stays_in_doubt(pos: Vendor) -> None:
    gate = pos.gate
    busy(pos)
    order = placed(gate, timedelta(days=-7))
    pos.is_silent = True
    gate.take(order)
    pos.is_silent = False
    taken = gate.take_cancel(seconds=600)
    assert taken.again is not None
    assert str(LOOK_UP) in str(taken.outcome.reason)


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (None, [(8, -1)]),  # the ledger was not read
        (7.5, [(8.5, -1)]),  # the backend's clock is ahead
        (6.5, [(8, -1)]),
        (5.0, [(6, -1), (8, 6)]),
        (-9.0, [(8, -1)]),  # first seen after its deadline: restored, or looked up once more
    ],
)
def test_the_windows_of_a_look_up_cover_the_orders_whole_time(
    known: float | None, expected: list[tuple[float, float]]
) -> None:
    """In hours before its ``deliver_by``; it was placed 7 h before that."""
    order = Order.parse(an_order())
    until = order.deliver_by
    placed_at = (until - timedelta(hours=7)).isoformat()
    order = Order.parse({**json.loads(order.source), "placed_at": placed_at})
    since = None if known is None else (until - timedelta(hours=known)).timestamp()
    found = windows(order.in_ledger(since, None), timedelta(hours=1))
    assert [tuple((until - end) / timedelta(hours=1) for end in each) for each in found] == expected


def test_the_attempt_history_changes_no_byte_of_the_request() -> None:
    order = Order.parse({**an_order(), "known_since": "x", "sent_until": 7})
    known = order.in_ledger(0.0, 1e18)
    assert (known.source, known.to_json()) == (order.source, order.to_json())
    assert (known.placed_at, known.deliver_by) == (order.placed_at, order.deliver_by)
    assert known.sent_until.year == 9999
    assert order.known_since is None


@pytest.mark.parametrize("until", [-3600.0, 0.0, 3600.0])
def test_a_look_ups_window_ends_at_the_later_of_two_deadlines(until: float) -> None:
    order = Order.parse(an_order())
    known = order.in_ledger(None, order.deliver_by.timestamp() + until)
    assert (known.sent_until - order.deliver_by).total_seconds() == max(0.0, until)


def test_a_cancel_request_looks_up_until_the_extended_deadline(
    pos: Vendor,
) -> None:
    gate = pos.gate
    order = gate.an_order(seconds=600)
    pos.is_silent = True
    gate.take(order)
    gate.wait(3 * 3600)
    pos.make("o1")  # as it was sent since, before its row's deadline
    with gate.database.begin() as connection:
        connection.exec_driver_sql("update orders set deliver_by = deliver_by + 12000")
    pos.is_silent = False
    gate.take(gate.a_request(seconds=600), Action.CANCEL)
    assert gate.recorded()[-1] == ("cancelled", None)
