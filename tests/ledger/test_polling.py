"""Polls of POSes that do not call back, on both databases, and POSes that answer with anything.

The adversaries: docs/reliability.md has the table.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Engine, event, insert, select, text, update
from sqlalchemy.exc import OperationalError
from structlog.testing import capture_logs

from pos_gateway.adapters.hubrise import HubRiseAdapter
from pos_gateway.adapters.polls import Page, Window, callbacks_of
from pos_gateway.adapters.pos_fields import endpoint
from pos_gateway.adapters.square import SquareAdapter
from pos_gateway.attempt import poller as module
from pos_gateway.attempt.poller import (
    LIMIT,
    LONGEST,
    OVERLAP,
    SKEW,
    Poller,
    Precedence,
    listed_until,
    window_of,
)
from pos_gateway.database.schema import callbacks, events, merchants, orders, pos_polls
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.outcome import CallResult, Kind, Lifecycle, Outcome, Reason
from pos_gateway.events.event import dehydrated
from pos_gateway.ledger import callbacks as ledger_module
from pos_gateway.ledger import open_orders as reading
from pos_gateway.ledger.callbacks import CallbackLedger
from pos_gateway.ledger.open_orders import AGE, DonePoll, DuePoll, OpenOrder, OpenOrders
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.runtime.vault import Vault
from pos_gateway.transport.errors import Misconfigured, NotSent, NoValidReply, TransportError
from pos_gateway.transport.exchange import Reply, Request, Send
from testkit.patience import PATIENCE
from tests.telemetry.lab import value

EVERY = 60.0
#: Pages that a POS lists before a request fails; the error, or None for a 503; and its seconds.
Failure = tuple[int, TransportError | None, float]
FAILURES = pytest.mark.parametrize(
    "failure",
    [
        (0, NotSent("connect", "refused"), 0.0),
        (0, NotSent("dns", "no such name"), 0.1),
        (0, Misconfigured("tls", "not trusted"), 0.3),
        (1, NoValidReply("connection_lost", "broke off"), 0.1),
        (0, None, 0.1),
        (40, NoValidReply("connection_lost", "broke off"), 0.9),
        (0, NoValidReply("timeout", "no reply in time"), 10.0),
        (1, NoValidReply("timeout", "no reply in time"), 10.0),
        (0, NotSent("dns", "no reply in time"), 5.0),
        (0, None, 9.0),
    ],
    ids=str,
)
READY, CANCELLED = Lifecycle.READY, Kind.CANCELLED
BY_POS = "cancelled_by_pos"
Changes = Callable[[Window, Send], Iterator[Page]]


def says(*said: tuple[str, Kind | Lifecycle]) -> Changes:
    """A POS that lists these orders, by its ids, on one page."""

    def changes(_window: Window, send: Send) -> Iterator[Page]:
        send(Request("GET", "https://pos.example.com/changes"))
        yield [each for known_as, meaning in said for each in callbacks_of(known_as, meaning)]

    return changes


class ScriptedPos(SquareAdapter):
    """Square's steps; each merchant's changes are a test's."""

    def __init__(self) -> None:
        self.scripts: dict[str, Changes] = {}
        self.windows: dict[str, list[Window]] = {}

    def changes(self, window: Window, merchant: Merchant, send: Send) -> Iterator[Page]:
        self.windows.setdefault(merchant.id, []).append(window)
        return self.scripts[merchant.id](window, send)


class Orders(Precedence):
    """Requests left by orders, by quota."""

    def __init__(
        self, left: dict[str, int], down: str = "", quota_of: Callable[[str], str] = str
    ) -> None:
        self.left, self.down, self.quota_of = left, down, quota_of
        self.pauses = 0
        self.under_way: list[str] = []
        self.refusals: list[tuple[str, CallResult, float | None]] = []

    def pause(self) -> float:
        self.pauses += 1
        return 0.001

    def is_down(self, merchant_id: str) -> bool:
        return merchant_id == self.down

    def begin(self, merchant_id: str) -> Callable[[], None] | None:
        quota = self.quota_of(merchant_id)
        if not self.left[quota]:
            return None
        self.left[quota] -= 1
        self.under_way.append(merchant_id)
        return lambda: self.under_way.remove(merchant_id)

    def refused(self, merchant_id: str, contact: CallResult, retry_after: float | None) -> None:
        self.refusals.append((merchant_id, contact, retry_after))


class Rig:
    """A poller, its database, and POSes that do as a test says."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.pos = engine, ScriptedPos()
        self.adapter: SquareAdapter = self.pos
        self.store, self.open_orders = MerchantStore(engine, vault=Vault()), OpenOrders(engine)
        self.records: dict[str, Merchant] = {}
        #: Requests' URLs, and what answers them.
        self.requests: list[str] = []
        self.is_fresh: Callable[[str], bool] = lambda _: True
        self.answer: Callable[[Request], Reply] = lambda _: Reply(200, {}, b"{}")
        self.poller = self.another()

    def another(self) -> Poller:
        """A second worker's."""
        ledger = CallbackLedger(self.engine, Payloads(Vault()), dehydrated)
        directory = SimpleNamespace(get=self.records.__getitem__, is_fresh=self.is_fresh)
        caller = SimpleNamespace(asking=lambda _: Send(self._sent))
        adapters: Any = {"square": self.adapter}
        parts: tuple[Any, ...] = (self.open_orders, ledger, directory, adapters, caller)
        return Poller(*parts, every=EVERY)

    def _sent(self, request: Request) -> Reply:
        self.requests.append(request.url)
        return self.answer(request)

    def open(self, merchant_id: str, script: Changes | None = None, **fields: Any) -> None:
        """A merchant that is polled, and its script."""
        pos = {"location_id": f"at-{merchant_id}", "poll": "ON", **fields.pop("pos", {})}
        record = {"id": merchant_id, "adapter": "square", "base_url": "https://pos.example.com"}
        self.records[merchant_id] = Merchant.parse({**record, "pos": pos, **fields})
        self.store.put([self.records[merchant_id]])
        if script is not None:
            self.pos.scripts[merchant_id] = script

    def accept(self, merchant_id: str, *order_ids: str, ago: float = 60.0, **fields: Any) -> None:
        """Orders that the POS has accepted, as ``P-`` and the id."""
        at = time.time() - ago
        counts = dict.fromkeys(("deaths", "reopened"), 0) | dict.fromkeys(("ticket", "epoch"), 1)
        rows = [
            {
                "merchant_id": merchant_id,
                "order_id": order_id,
                "action": "submit",
                "state": "accepted",
                "external_id": f"P-{order_id}",
                "pending": False,
                "created_at": at,
                "updated_at": at,
                "attempts": 1,
                **counts,
                **fields,
            }
            for order_id in order_ids
        ]
        with self.engine.begin() as connection:
            connection.execute(insert(orders), rows)

    def fails(self, patch: pytest.MonkeyPatch, failure: Failure) -> Changes:
        """A POS that fails after pages without an order; seconds pass for the polls alone."""
        (pages, error, seconds), now = failure, time.monotonic()

        def changes(_window: Window, send: Send) -> Iterator[Page]:
            for left in range(pages, -1, -1):
                send(Request("GET", f"https://pos.example.com/{left}"))
                yield ()
            yield Outcome(Kind.RETRY, Reason("http_503", "later"))

        def answer(request: Request) -> Reply:
            nonlocal now
            is_last = request.url.endswith("/0")
            now += seconds if is_last else min(seconds, 0.9)
            if is_last and error is not None:
                raise error
            return Reply(200, {}, b"{}")

        patch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
        self.answer = answer
        return changes

    def make_due(self) -> None:
        """All polls are due."""
        self.set(due_at=0.0)

    def set(self, **values: Any) -> None:
        """Fields of all polls' rows."""
        self.open_orders.enrol()
        with self.engine.begin() as connection:
            connection.execute(update(pos_polls).values(**values))

    def round(self) -> None:
        """Polls of all merchants, whether they are due or not."""
        self.make_due()
        self.end()

    def end(self, *, but: tuple[str, ...] = ()) -> None:
        """A round; its polls end, ``but`` of these merchants, and their rows are stored."""
        self.poller.round()
        for merchant_id, thread in list(self.poller._polling.items()):
            if merchant_id not in but:
                thread.join(PATIENCE)
        self.poller.round()

    def claim(self) -> list[DuePoll]:
        """Claims of all due polls."""
        return self.open_orders.claim(self.open_orders.due(), EVERY)

    def recorded(self) -> list[tuple[str, str, str]]:
        """Each event's merchant, order and type."""
        query = select(events.c.merchant_id, events.c.order_id, events.c.type)
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(query.order_by(events.c.id))]

    def row(self, merchant_id: str) -> Any:
        query = select(pos_polls).where(pos_polls.c.merchant_id == merchant_id)
        with self.engine.connect() as connection:
            return connection.execute(query).one_or_none()

    def wait(self, merchant_id: str) -> float:
        """Seconds until the merchant's next poll, about."""
        return float(self.row(merchant_id).due_at - time.time())


@pytest.fixture
def rig(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setattr(module, "PACE", 0.0)
    rig = Rig(engine)
    yield rig
    rig.poller.stop()


def test_what_a_pos_says_of_an_open_order_is_an_event_once(rig: Rig) -> None:
    rig.open("m", says(("P-o1", READY), ("P-o2", CANCELLED), ("P-o1", Lifecycle.PREPARING)))
    rig.accept("m", "o1", "o2", "o3")
    for _ in range(3):
        rig.round()
    assert rig.recorded() == [("m", "o1", "ready"), ("m", "o2", BY_POS)]
    with rig.engine.connect() as connection:
        assert not connection.execute(select(callbacks)).all(), "the next poll says it again"


def test_two_workers_that_poll_a_merchant_at_once_record_one_event(rig: Rig) -> None:
    both = threading.Barrier(2)

    def changes(_window: Window, _send: Send) -> Iterator[Page]:
        both.wait(PATIENCE)
        yield callbacks_of("P-o1", READY)

    rig.open("m", changes)
    rig.accept("m", "o1")
    rig.open_orders.enrol()
    [due] = rig.claim()  # of a worker that was slower than its claim
    pollers = [rig.poller, rig.another()]
    threads = [threading.Thread(target=each._poll_safely, args=(due, None)) for each in pollers]
    for each in threads:
        each.start()
    for each in threads:
        each.join(PATIENCE)
    pollers[1].stop()
    assert rig.recorded() == [("m", "o1", "ready")]


def test_a_worker_that_dies_with_a_poll_leaves_it_to_another(rig: Rig) -> None:
    rig.open("m", says(("P-o1", READY)))
    rig.accept("m", "o1")
    rig.open_orders.enrol()
    assert [each.merchant_id for each in rig.claim()] == ["m"]
    assert rig.claim() == []
    assert rig.wait("m") <= EVERY
    rig.round()
    assert rig.recorded() == [("m", "o1", "ready")]


def test_a_cancellation_that_waits_holds_up_no_poll_that_lags_behind(rig: Rig) -> None:
    """A poll lists four hours at most: the next ones have to come up to the present."""
    rig.open("m", says(("P-o1", CANCELLED)))
    rig.accept("m", "o1", ago=10 * 3600)
    rig.accept("m", "o1", action="cancel", state="sending", external_id=None, endpoint="x")
    lagging = time.time() - 10 * 3600
    rig.set(since=lagging)
    rig.round()
    assert rig.row("m").since > lagging + 3600


@pytest.mark.parametrize("longest", [10 * 60, 20 * 60, 5 * 3600])
def test_a_poll_that_lags_behind_catches_up_at_a_pos_that_lists_short_times(
    rig: Rig, longest: float
) -> None:
    """Each success at a short time would else be followed by all failures at longer times again."""
    lag = 3 * 3600.0

    def changes(window: Window, send: Send) -> Iterator[Page]:
        send(Request("GET", "https://pos.example.com/changes"))
        until = min(window.until.timestamp(), time.time())
        is_too_long = until - window.since.timestamp() > longest
        yield Outcome(Kind.IN_DOUBT, Reason("http_400", "too many")) if is_too_long else []

    rig.answer = lambda _: Reply(200, {"date": format_datetime(datetime.now(UTC))}, b"{}")
    rig.open("m", changes)
    rig.accept("m", "o1", ago=lag)
    rig.set(since=time.time() - lag)
    passed = 0.0
    while rig.row("m").since < time.time() - 2 * OVERLAP:
        rig.round()
        passed += max(EVERY, rig.wait("m"))
        assert passed < lag, "it falls behind for ever"
        assert rig.wait("m") > 0, "a POS with a limit a minute is asked without end"
    for _ in range(3):
        rig.round()
    assert rig.row("m").failures == 0
    assert rig.wait("m") > module.BEHIND


@pytest.mark.parametrize(("failures", "kept"), [(5, 5), (6, 0)])
def test_a_poll_that_is_behind_after_an_outage_asks_for_long_times_again(
    rig: Rig, failures: int, kept: int
) -> None:
    """More failures than halve the time are of a POS that was away: a day in short times would be hundreds of polls."""
    rig.open("m", says(("P-another", READY)))
    rig.accept("m", "o1", ago=8 * 3600.0)
    rig.set(since=time.time() - 8 * 3600, failures=failures)
    rig.round()
    assert rig.row("m").failures == kept
    assert 0 < rig.wait("m") <= module.BEHIND


@FAILURES
def test_a_failure_while_a_poll_catches_up_makes_no_long_pause(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, failure: Failure
) -> None:
    """It keeps the failures that halve the time."""
    rig.open("m", rig.fails(monkeypatch, failure))
    rig.accept("m", "o1", ago=8 * 3600.0)
    rig.set(since=time.time() - 8 * 3600, failures=5)
    for wait in (480, 480) if failure[2] > 2 else (60, 120):
        rig.round()
        assert wait - 30 < rig.wait("m") <= wait
    rig.pos.scripts["m"] = says()
    rig.round()
    spans = [(each.until - each.since).total_seconds() for each in rig.pos.windows["m"]]
    assert spans == pytest.approx([LONGEST / 32] * 3)


def test_a_poll_is_not_behind_at_a_pos_that_lists_all_open_orders(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HubRise takes ten lists a minute, and each has all orders up to the present."""
    monkeypatch.setattr(rig.pos, "lists_all", HubRiseAdapter.lists_all, raising=False)
    rig.open("m", says(("P-o1", READY)))
    rig.accept("m", "o1", ago=8 * 3600.0)
    rig.set(since=time.time() - 8 * 3600, failures=5)
    rig.round()
    assert (rig.recorded(), rig.row("m").failures) == ([("m", "o1", "ready")], 0)
    assert rig.wait("m") > EVERY - 30


def test_a_database_clock_that_was_set_back_stops_no_poll(rig: Rig) -> None:
    """A day ahead by mistake, or on a standby that was promoted: nothing is due for a day otherwise."""
    rig.open("m1", says(("P-o1", READY)))
    rig.accept("m1", "o1")
    rig.set(due_at=pos_polls.c.due_at + 86_400)
    rig.end()
    assert rig.recorded() == [("m1", "o1", "ready")]
    assert rig.wait("m1") <= EVERY


def test_orders_that_are_not_open_are_not_touched(rig: Rig) -> None:
    ids = ("walk-in", "P-old", "P-ended", "P-doubt", "P-moved", "P-theirs", "P-o1")
    rig.open("m", says(*((each, CANCELLED) for each in ids)))
    rig.open("other", says())
    rig.accept("m", "o1")
    rig.accept("m", "old", ago=AGE + 60)
    rig.accept("m", "ended", lifecycle="completed")
    rig.accept("m", "doubt", state="in_doubt")
    rig.accept("m", "moved", endpoint="another POS")
    rig.accept("other", "theirs")
    with capture_logs() as logs:
        rig.round()
    assert rig.recorded() == [("m", "o1", BY_POS)]
    assert [each["event"] for each in logs] == ["callback.applied"], (
        "moved ones are listed again and again"
    )


def test_an_order_that_a_cancel_request_has_ended_is_not_open(rig: Rig) -> None:
    """At HubRise a poll lists all orders since the oldest open one."""
    rig.open("m", says(("P-o2", READY)))
    rig.accept("m", "o1")
    rig.accept("m", "o1", action="cancel", state="cancelled", external_id="P-o1")
    rig.round()
    assert rig.requests == []
    rig.accept("m", "o2")
    rig.accept("m", "o2", action="cancel", state="rejected", external_id=None)
    rig.round()
    assert rig.recorded() == [("m", "o2", "ready")]


def test_an_order_at_the_pos_that_the_record_names_is_heard_of(rig: Rig) -> None:
    rig.open("m", says(("P-o1", READY)))
    rig.accept("m", "o1", endpoint=endpoint(rig.records["m"], rig.pos))
    rig.round()
    assert rig.recorded() == [("m", "o1", "ready")]


def test_a_pos_that_was_asked_to_cancel_is_not_stored_as_a_callback_that_waits(rig: Rig) -> None:
    rig.open("m", says(("P-o1", CANCELLED)))
    rig.accept("m", "o1")
    rig.accept("m", "o1", action="cancel", state="sending", external_id=None, endpoint="x")
    rig.round()
    with rig.engine.begin() as connection:
        assert not connection.execute(select(callbacks)).all()
        ended = update(orders).where(orders.c.action == "cancel").values(state="rejected")
        connection.execute(ended)
    assert rig.recorded() == []
    rig.round()
    assert rig.recorded() == [("m", "o1", BY_POS)]
    with rig.engine.connect() as connection:
        assert not connection.execute(select(callbacks)).all()


def test_a_cancellation_is_asked_for_again_while_a_cancel_request_may_be_at_work(rig: Rig) -> None:
    """The request may end without the POS's word, and later than two polls' times overlap."""

    def answers(ago: float) -> None:
        date = format_datetime(datetime.fromtimestamp(time.time() - ago, UTC), usegmt=True)
        rig.answer = lambda _: Reply(200, {"date": date}, b"{}")

    rig.open("m", says(("P-o1", READY)))
    rig.accept("m", "o1")
    answers(ago=2000)
    rig.round()
    listed = rig.row("m").since
    rig.accept("m", "o1", action="cancel", state="sending", external_id=None, endpoint="x")
    rig.pos.scripts["m"] = says(("P-o1", CANCELLED))
    answers(ago=1000)
    rig.round()
    assert (rig.row("m").since, rig.row("m").failures) == (listed, 0)
    with rig.engine.begin() as connection:
        ended = update(orders).where(orders.c.action == "cancel").values(state="expired")
        connection.execute(ended)
    rig.accept("m", "o2")
    rig.round()
    assert rig.recorded() == [("m", "o1", "ready"), ("m", "o1", BY_POS)]
    assert rig.row("m").since > listed + 900


@FAILURES
def test_a_pos_that_fails_is_asked_later_each_time_and_others_are_asked_as_before(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, failure: Failure
) -> None:
    """From the first failure where the POS holds a thread meanwhile."""
    rig.open("good", says(("P-o1", READY)))
    rig.open("bad", says())
    rig.accept("good", "o1")
    rig.accept("bad", "o1")
    rig.round()
    since = rig.row("bad").since
    assert since is not None
    rig.pos.scripts["bad"] = rig.fails(monkeypatch, failure)
    waits = (60, 120, 240, *[480] * 6, 960, 1800) if failure[2] > 2 else (*[60] * 6, 120, 240, 480)
    for failures, wait in enumerate(waits, 1):
        rig.round()
        assert (rig.row("bad").failures, rig.row("bad").since) == (failures, since)
        assert wait - 30 < rig.wait("bad") <= wait
        assert rig.wait("good") <= EVERY
    rig.pos.scripts["bad"] = says(("P-o1", READY))
    rig.round()
    assert (rig.row("bad").failures, rig.wait("bad") <= EVERY) == (0, True)
    assert rig.recorded()[-1] == ("bad", "o1", "ready")


def test_a_pos_that_names_a_time_is_asked_no_sooner(rig: Rig) -> None:
    def refused(_window: Window, _send: Send) -> Iterator[Page]:
        yield callbacks_of("P-o1", READY)
        yield Outcome(Kind.IN_DOUBT, Reason("http_429", "too many"), retry_after=700.0)

    rig.open("m", refused)
    rig.accept("m", "o1")
    rig.round()
    assert rig.recorded() == [("m", "o1", "ready")], "what it said before is heard"
    assert rig.row("m").since is None
    assert rig.wait("m") > 600


def test_a_record_or_an_adapter_that_breaks_concerns_its_merchant_alone(rig: Rig) -> None:
    def broken(_window: Window, _send: Send) -> Iterator[Page]:
        raise ZeroDivisionError
        yield ()

    rig.open("bad", broken)
    rig.open("good", says(("P-o1", READY)))
    rig.accept("bad", "o1")
    rig.accept("good", "o1")
    rig.round()
    assert rig.recorded() == [("good", "o1", "ready")]
    assert rig.row("bad").failures == 1


def test_a_pos_that_hangs_delays_its_own_merchants_polls_alone(rig: Rig) -> None:
    hangs = threading.Event()

    def lost(request: Request) -> Reply:
        assert request.seconds <= module.SECONDS
        hangs.wait(PATIENCE)
        raise NoValidReply("timeout", "no reply in time")

    rig.open("hangs", says())
    rig.open("good", lambda *_: iter([callbacks_of("P-o1", READY)]))
    rig.accept("hangs", "o1")
    rig.accept("good", "o1")
    rig.answer = lost
    for number in (1, 2, 3):
        if number == 2:
            rig.pos.scripts["good"] = lambda *_: iter([callbacks_of("P-o1", Lifecycle.COMPLETED)])
        rig.make_due()
        rig.end(but=("hangs",))
    assert rig.recorded() == [("good", "o1", "ready"), ("good", "o1", "completed")]
    assert len(rig.pos.windows["hangs"]) == 1, "it is still polled"
    assert rig.row("hangs").failures == 0
    hangs.set()
    rig.poller._polling["hangs"].join(PATIENCE)
    rig.poller.round()
    assert rig.row("hangs").failures == 1


def test_poses_that_all_hang_are_polled_again_once_half_have_ended(rig: Rig) -> None:
    goes_on = threading.Semaphore(0)

    def hangs(_: Request) -> Reply:
        assert goes_on.acquire(timeout=PATIENCE)
        return Reply(200, {}, b"{}")

    rig.answer = hangs
    for number in range(2 * module.WIDTH):
        rig.open(f"m{number}", says())
        rig.accept(f"m{number}", "o1")
    rig.open_orders.enrol()
    assert rig.poller.round() == module.PACE
    polling = list(rig.poller._polling.values())
    assert len(polling) == module.WIDTH
    assert rig.poller.round() == module.PACE
    assert list(rig.poller._polling.values()) == polling, "as many as before"
    assert not rig.poller._next_round.is_set()
    goes_on.release(module.WIDTH // 2)
    assert rig.poller._next_round.wait(PATIENCE)
    rig.poller.round()
    goes_on.release(2 * module.WIDTH)
    for thread in list(rig.poller._polling.values()):
        thread.join(PATIENCE)
    rig.end()
    assert len(rig.requests) == 2 * module.WIDTH


def test_no_request_is_sent_once_it_stops(rig: Rig) -> None:
    def many(_window: Window, send: Send) -> Iterator[Page]:
        for number in range(100):
            send(Request("GET", f"https://pos.example.com/{number}"))
            rig.poller._stopping.set()
            yield ()

    rig.open("m", many)
    rig.accept("m", "o1")
    rig.round()
    assert rig.requests == ["https://pos.example.com/0"]
    assert rig.row("m").since is None


def test_a_poll_has_an_end_however_many_pages_there_are(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def endless(_window: Window, send: Send) -> Iterator[Page]:
        while True:
            send(Request("GET", "https://pos.example.com/"))
            yield ()

    monkeypatch.setattr(module, "LIMIT", 1.2)
    rig.open("m", endless)
    rig.accept("m", "o1")
    rig.round()
    assert rig.row("m").failures == 1


def test_it_yields_to_orders(rig: Rig) -> None:
    rig.open("down", says(("P-o1", READY)))
    rig.open("up", says(("P-o1", READY)))
    rig.accept("down", "o1")
    rig.accept("up", "o1")
    orders = Orders({"up": 9, "down": 9}, down="down")
    rig.poller.yield_to(orders)
    rig.round()
    assert rig.recorded() == [("up", "o1", "ready")]
    assert (rig.row("down").since, rig.row("down").failures) == (None, 0)
    assert orders.pauses == 1, "before each request"


def test_a_poll_takes_each_request_from_the_quota_and_ends_it(rig: Rig) -> None:
    def pages(_window: Window, send: Send) -> Iterator[Page]:
        for number in range(3):
            send(Request("GET", f"https://pos.example.com/{number}"))
            assert orders.under_way == []
            yield ()

    def sent(_: Request) -> Reply:
        assert orders.under_way == ["m"]
        return Reply(200, {}, b"{}")

    orders = Orders({"m": 5})
    rig.poller.yield_to(orders)
    rig.answer = sent
    rig.open("m", pages)
    rig.accept("m", "o1")
    rig.round()
    assert (orders.left, orders.under_way) == ({"m": 2}, [])
    assert rig.row("m").failures == 0


@pytest.mark.parametrize("seconds", [40.0, 50.0])
def test_a_poll_waits_for_requests_that_orders_need_as_long_as_a_poll_may_take(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """In a fleet a quota's part is small at first; a poll that fails asks for less, later."""

    class Busy(Orders):
        waits = 0

        def begin(self, merchant_id: str) -> Callable[[], None] | None:
            if len(rig.requests) == 2 and self.waits < 2:
                self.waits += 1
                clock.now += seconds / 2
                return None
            return super().begin(merchant_id)

    def pages(_window: Window, send: Send) -> Iterator[Page]:
        for number in range(3):
            send(Request("GET", f"https://pos.example.com/{number}"))
            yield ()

    clock = SimpleNamespace(now=time.monotonic())
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    orders = Busy({"m": 3})
    rig.poller.yield_to(orders)
    rig.open("m", pages)
    rig.accept("m", "o1")
    with capture_logs() as logs:
        rig.round()
    in_time = seconds < LIMIT
    assert (len(rig.requests), rig.row("m").failures) == ((3, 0) if in_time else (2, 1))
    assert [each["code"] for each in logs if each["event"] == "poll.failed"] == ["quota"][in_time:]
    assert orders.under_way == []


def test_polls_that_yield_stay_due_and_go_first_the_oldest_of_them(rig: Rig) -> None:
    """A quota of one request, that 20 merchants share, and another merchant, of a quota of its own."""
    orders = Orders({"app": 1, "m": 99}, quota_of=lambda each: "m" if each == "m" else "app")
    rig.poller.yield_to(orders)
    names = [f"a{number}" for number in range(20)]
    for each in (*names, "m"):
        rig.open(each, says())
        rig.accept(each, "o1")
    rig.open_orders.enrol()
    with rig.engine.begin() as connection:
        for at, each in enumerate(reversed(names), 1):
            due = update(pos_polls).where(pos_polls.c.merchant_id == each)
            connection.execute(due.values(due_at=float(at)))
    polled = []
    for _ in range(20):
        with statements(rig.engine) as seen:
            rig.end()
        assert len(seen) < 30, "polls that yield cost no statement"
        polled += [each for each in rig.pos.windows if each not in polled]
        orders.left["app"] = 1
    assert [each for each in polled if each != "m"] == names[::-1]
    assert polled.index("m") < 2
    assert len(rig.requests) == 21


def test_no_poll_waits_once_no_merchant_is_polled(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.poller.yield_to(Orders({"m": 0}))
    rig.open("m", says())
    rig.accept("m", "o1")
    rig.round()
    assert value("pos_gateway_polls_waiting") == 1
    rig.open("m", pos={"poll": "OFF"})
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + EVERY))
    rig.end()
    assert value("pos_gateway_polls_waiting") == 0


def test_what_a_poll_has_found_is_stored_once_the_database_is_back(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a POS that fails is asked again at once, and one that has answered for the same time."""

    def away(_polls: Sequence[DonePoll]) -> None:
        raise OperationalError("update", {}, Exception("away"))

    def lost(_window: Window, _send: Send) -> Iterator[Page]:
        raise NoValidReply("timeout", "no reply in time")
        yield ()

    rig.open("good", says(("P-o1", READY)))
    rig.open("bad", lost)
    for each in ("good", "bad"):
        rig.accept(each, "o1")
    rig.make_due()
    with monkeypatch.context() as patched:
        patched.setattr(rig.open_orders, "done", away)
        with pytest.raises(OperationalError):
            rig.end()
    rig.poller.round()
    rig.poller.round()
    assert (rig.row("bad").failures, rig.row("good").failures) == (1, 0)
    assert rig.row("good").since is not None


def test_a_merchant_whose_record_is_not_in_memory_is_polled_within_its_quota(rig: Rig) -> None:
    """Its quotas are known once the poll has loaded its record."""
    rig.is_fresh = lambda _: False
    orders = Orders({"app": 1}, quota_of=lambda _: "app")
    rig.poller.yield_to(orders)
    for each in ("a", "b"):
        rig.open(each, says())
        rig.accept(each, "o1")
    rig.round()
    assert len(rig.requests) == 1
    assert orders.under_way == []
    assert sorted([rig.row("a").failures, rig.row("b").failures]) == [0, 0]


def test_a_request_of_a_poll_that_another_worker_has_claimed_is_ended(rig: Rig) -> None:
    orders = Orders({"m": 5})
    rig.poller.yield_to(orders)
    rig.open("m", says())
    rig.accept("m", "o1")
    rig.open_orders.enrol()

    class Slower(OpenOrders):
        def claim(self, due_polls: Sequence[tuple[str, bool]], lease: float) -> list[DuePoll]:
            super().claim(due_polls, lease)  # the other worker's
            return super().claim(due_polls, lease)

    rig.poller._open_orders = Slower(rig.engine)
    rig.end()
    assert rig.wait("m") > 0
    assert (rig.requests, orders.under_way) == ([], [])


def test_a_429_pauses_what_an_orders_would(rig: Rig) -> None:
    def refused(_window: Window, send: Send) -> Iterator[Page]:
        send(Request("GET", "https://pos.example.com/changes"))
        reason = Reason("http_429", "too many")
        yield Outcome(Kind.IN_DOUBT, reason, retry_after=7.0, contact=CallResult.APP_OVERLOADED)

    orders = Orders({"m": 5})
    rig.poller.yield_to(orders)
    rig.open("m", refused)
    rig.accept("m", "o1")
    rig.round()
    assert orders.refusals == [("m", CallResult.APP_OVERLOADED, 7.0)]


def test_merchants_that_are_paused_or_not_to_be_polled_are_not_asked(rig: Rig) -> None:
    rig.open("paused", says(), paused=True)
    rig.open("off", says(), pos={"poll": "OFF"})
    rig.open("idle", says())
    rig.open("on", says())
    for each in ("paused", "off", "on"):
        rig.accept(each, "o1")
    rig.round()
    assert [*rig.pos.windows] == ["on"]
    assert rig.row("off") is None
    with rig.engine.begin() as connection:
        connection.execute(merchants.delete().where(merchants.c.id == "on"))
    rig.open("idle", says(), pos={"poll": "OFF"})
    rig.round()
    assert [rig.row(each) for each in ("on", "idle", "off")] == [None] * 3


def test_a_merchant_without_an_open_order_costs_no_request(rig: Rig) -> None:
    rig.open("m", says(("P-o1", Lifecycle.COMPLETED)))
    rig.accept("m", "o1")
    for _ in range(3):
        rig.round()
    assert len(rig.requests) == 1


NOW = 1_800_000_000.0


def due(since: float | None = None, failures: int = 0, ago: float = 60.0) -> DuePoll:
    order = OpenOrder("o1", None, NOW - ago)
    return DuePoll("m", since, failures, NOW, {"P": order})


@pytest.mark.parametrize(
    ("asked", "since", "span", "made"),
    [
        (due(), 60 + SKEW, None, 60 + SKEW),
        (due(NOW - 400), 400, None, 60 + SKEW),
        # Its changes before the oldest open order was made do not count.
        (due(NOW - 9 * AGE), 60 + SKEW, None, 60 + SKEW),
        (due(ago=2 * AGE), AGE + SKEW, LONGEST, AGE + SKEW),
        (due(ago=AGE, failures=2), AGE + SKEW, LONGEST / 4, AGE / 4 + SKEW),
        (due(ago=AGE, failures=99), AGE + SKEW, LONGEST / 32, AGE / 32 + SKEW),
        # Its clock was wrong: a time that is still to come would hide all changes until then.
        (due(NOW + 5 * AGE), 0, None, 60 + SKEW),
    ],
)
def test_a_poll_asks_for_changes_since_the_last_one_and_not_for_too_many(
    asked: DuePoll, since: float, span: float | None, made: float
) -> None:
    window = window_of(asked)
    assert NOW - window.since.timestamp() == pytest.approx(since)
    assert NOW - window.made_since.timestamp() == pytest.approx(made)
    length = (window.until - window.since).total_seconds()
    assert length == pytest.approx(span if span is not None else since + SKEW)
    assert length > OVERLAP, "or it would never come any further"


@pytest.mark.parametrize(
    ("said_at", "since"),
    [
        (NOW, OVERLAP),
        (NOW + 2, OVERLAP),
        (NOW + 9 * AGE, OVERLAP),  # ahead: what it lists, it lists again
        (NOW - 600, 600 + OVERLAP),  # behind: its changes are in its own time
        (None, SKEW + OVERLAP),
        (NOW - 9 * AGE, 5000),  # it does not go back
    ],
)
def test_the_next_poll_begins_where_the_pos_was_by_its_own_clock(
    said_at: float | None, since: float
) -> None:
    asked = due(NOW - 5000, ago=9000)
    assert NOW - listed_until(asked, window_of(asked), said_at) == pytest.approx(since)


def test_the_window_of_a_poll_that_is_behind_ends_before_the_present(rig: Rig) -> None:
    asked = due(ago=AGE)
    window = window_of(asked)
    assert listed_until(asked, window, NOW) == window.until.timestamp() - OVERLAP


@contextmanager
def statements(engine: Engine) -> Iterator[list[tuple[str, Any]]]:
    """The statements that are executed, with their values."""
    seen: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, values: Any, *_: Any) -> None:
        seen.append((statement, values))

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(engine, "before_cursor_execute", note)


def of_orders(seen: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Those of these statements that read open orders."""
    return [each for each in seen if "orders.external_id" in each[0] and "pos_polls" not in each[0]]


def squares(order_ids: list[str], location: str) -> bytes:
    """A page of Square's, of orders with a few lines."""
    line = {"uid": "u", "name": "Burger", "quantity": "1", "note": "n" * 100}
    page = [
        {
            "id": each,
            "location_id": location,
            "state": "OPEN",
            "version": 3,
            "updated_at": datetime.now(UTC).isoformat(),
            "line_items": [line] * 5,
            "fulfillments": [{"uid": "f", "type": "PICKUP", "state": "PREPARED"}],
        }
        for each in order_ids
    ]
    return json.dumps({"orders": page}).encode()


def test_ten_thousand_open_orders_cost_a_request_a_merchant_and_few_percent_of_a_core(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 100 merchants, of whose orders three each have changed, of some twenty in the reply."""
    monkeypatch.setattr(module, "PACE", 0.0)
    monkeypatch.setattr(module, "SECONDS", PATIENCE)
    monkeypatch.setattr(ledger_module, "SESSION", "")  # a busy machine's database takes its time
    rig = Rig(engine)
    rig.adapter = SquareAdapter()
    rig.poller.stop()
    rig.poller = rig.another()
    for number in range(100):
        rig.open(f"m{number}")
        rig.accept(f"m{number}", *(f"{number}-{order}" for order in range(100)))

    others = [f"walk-in-{order}" for order in range(14)]
    replies = {
        f"at-m{number}": squares(
            [*(f"P-{number}-{order}" for order in range(3)), *others], f"at-m{number}"
        )
        for number in range(100)
    }

    def answer(request: Request) -> Reply:
        assert request.body is not None
        return Reply(200, {}, replies[json.loads(request.body)["location_ids"][0]])

    rig.answer = answer
    rig.open_orders.enrol()
    claimed = sum(len(each.orders) for each in rig.open_orders.claim(rig.open_orders.due(), 0.0))
    assert claimed == 10_000
    before = time.process_time()
    with statements(engine) as seen, capture_logs():
        while rig.poller.round() == module.PACE:
            assert rig.poller._next_round.wait(PATIENCE)
        rig.end()
    seconds = time.process_time() - before
    rig.poller.stop()
    assert len(rig.requests) == 100
    assert len(rig.recorded()) == 300
    assert len(of_orders(seen)) <= 2 * -(-100 // module.WIDTH)
    assert len(seen) < 250, "enrolment, claims, reads, and the end of each merchant's poll"
    # Two percent; CPU time grows by half on cores that other processes share.
    assert seconds < 0.05 * EVERY, f"{seconds:.3f} s of CPU"


def test_of_too_many_open_orders_each_merchant_has_the_oldest(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_MOST", 2)
    for merchant in ("busy", "quiet"):
        rig.open(merchant)
    for order_id, ago in (("new", 10.0), ("oldest", 300.0), ("newest", 5.0), ("older", 200.0)):
        rig.accept("busy", order_id, ago=ago)
    rig.accept("quiet", "only", ago=1.0)
    rig.make_due()
    read = {each.merchant_id: [*each.orders] for each in rig.claim()}
    assert read == {"busy": ["P-oldest", "P-older"], "quiet": ["P-only"]}


def test_merchants_without_open_orders_keep_no_other_from_its_poll(rig: Rig) -> None:
    """At night a fleet has thousands, all due at once. SQLite takes no statement with 500 of them."""
    rig.open("m", says(("P-o1", READY)))
    rig.accept("m", "o1")
    closed = [rig.records["m"].model_copy(update={"id": f"closed-{n}"}) for n in range(600)]
    rig.store.put(closed)
    rig.make_due()
    with statements(rig.engine) as seen:
        rig.end()
    assert rig.recorded() == [("m", "o1", "ready")]
    [(query, _)] = of_orders(seen)
    assert query.count("FROM orders") < 2 * module.WIDTH


def test_open_orders_are_read_by_an_index(engine: Engine) -> None:
    rig = Rig(engine)
    merchants = [f"m{number}" for number in range(20)]
    for merchant in merchants:
        rig.accept(
            merchant, *(f"{merchant}-{number}" for number in range(100)), lifecycle="completed"
        )
        rig.accept(merchant, f"{merchant}-open")
        rig.open(merchant)
    rig.make_due()
    with engine.begin() as connection:
        connection.execute(text("analyze"))
    with statements(engine) as seen:
        rig.claim()
    [(query, values)] = of_orders(seen)
    with engine.connect() as connection:
        explain = "explain" if engine.dialect.name == "postgresql" else "explain query plan"
        plan = str(connection.exec_driver_sql(f"{explain} {query}", values).all())
    assert plan.count("orders_open") == len(merchants)
