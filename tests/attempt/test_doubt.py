"""Orders in doubt, from worker to worker: whole gateways on one database, with scripted POSes.

Each worker has its own clocks; no event is published, and the POS is called as by the transport.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pos_gateway.adapters.protocol import Adapter, Limits
from pos_gateway.adapters.rejection import Rejection, rejected
from pos_gateway.adapters.steps import steps_of
from pos_gateway.attempt import submit
from pos_gateway.attempt.attempt import Attempt
from pos_gateway.attempt.decision import Decision
from pos_gateway.attempt.doubt import longest_reply
from pos_gateway.attempt.gateway import Gateway
from pos_gateway.broker.message import Message
from pos_gateway.database.engine import open_database
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.outcome import Kind, Outcome
from pos_gateway.ledger.lease import BEAT, LEASE
from pos_gateway.ledger.order_admin import OrderAdmin
from pos_gateway.ledger.states import Action, Entry, Key, State
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.settings import Settings
from pos_gateway.transport.errors import NotSent, NoValidReply
from pos_gateway.transport.exchange import Reply, Request
from tests.adapters.clover_shop import Shop
from tests.adapters.vendors import SQUARE_PAID
from tests.orders import an_order, received
from tests.schema import make_tables
from tests.simulation.adapters import Blind, Queryable
from tests.simulation.clock import MachineClock
from tests.simulation.pos import LONGEST, TIME_LIMIT

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
#: The order of these tests, as Square has it.
SQUARE_ORDER: dict[str, Any] = {
    "state": "OPEN",
    "location_id": "L1",
    "metadata": {"order_id": "o1"},
    "fulfillments": [{"uid": "F0", "state": "PROPOSED"}],
    "total_money": {"amount": 1700, "currency": "EUR"},
}


class Truth:
    time = 0.0

    def now(self) -> datetime:
        return NOON + timedelta(seconds=self.time)


class Pos:
    """Creates an order this long after each request; all replies are lost at first."""

    def __init__(self, truth: Truth, makes_after: float = 0.0) -> None:
        self._truth = truth
        self._makes_after = makes_after
        self.creates: list[float] = []
        self.requests: list[tuple[str, str]] = []
        self.loses_replies = True

    @property
    def made(self) -> int:
        return sum(at + self._makes_after <= self._truth.time for at in self.creates)

    def handle(self, request: Request) -> Reply:
        self.requests.append((request.method, request.url))
        if request.method == "GET":
            return _reply(*((200, {"id": "1", "status": "accepted"}) if self.made else (404, {})))
        if request.url.endswith("/cancel"):
            return _reply(*((200, {"id": "1", "status": "cancelled"}) if self.made else (404, {})))
        self.creates.append(self._truth.time)
        if self.loses_replies:
            raise NoValidReply("timeout", "no reply in time")
        return _reply(201, {"id": "1", "status": "accepted"})


class Queueing(Pos):
    """Answers each create with pending, and does not know the order until it has created it."""

    def handle(self, request: Request) -> Reply:
        reply = super().handle(request)
        return _reply(202, {"id": "1", "status": "pending"}) if reply.status == 201 else reply


class Refusing(Pos):
    """Has created an order of its first request, and refuses all later ones."""

    def __init__(self, truth: Truth, refusal: Reply, makes_after: float = 0.0) -> None:
        super().__init__(truth, makes_after)
        self._refusal = refusal

    def handle(self, request: Request) -> Reply:
        if request.url.endswith("/search"):
            found = [{"id": "1", **SQUARE_ORDER, **SQUARE_PAID}] * self.made
            return _reply(200, {"orders": found})
        return self._refusal if self.creates and request.body else super().handle(request)


def _reply(status: int, body: dict[str, Any]) -> Reply:
    return Reply(status, {}, json.dumps(body).encode())


class Lab:
    """Workers of one fleet, and their messages."""

    def __init__(self, file: Path) -> None:
        self.url = f"sqlite:///{file}"
        self.engine = open_database(self.url)
        self.truth = Truth()
        self.workers: list[Gateway] = []
        self.closing: list[Callable[[], None]] = [self.engine.dispose]

    def merchant(self, adapter: str = "queryable", **fields: Any) -> None:
        """Import the merchant, or another version of it."""
        record = {"id": "m", "adapter": adapter, "base_url": "https://old.example"}
        record |= {"request_timeout": TIME_LIMIT, **fields}
        MerchantStore(self.engine).put([Merchant.parse(record)])
        for worker in self.workers:
            worker.directory._cache.outdated("m", float("inf"))

    def worker(self, pos: Any, *, skew: float = 0.0, zero: float = 1000.0) -> Gateway:
        clock = MachineClock(self.truth, zero=zero, skew=skew, stands_still=False)
        settings = Settings.model_validate({"database_url": self.url, "metrics_port": 0})
        gate = Gateway(settings, clock)
        own: list[Adapter] = [Queryable(), Blind()]
        gate.adapters.update({each.name: each for each in own})

        def exchange(request: Request, *, fence: Callable[[], None], **_: Any) -> Reply:
            fence()
            reply: Reply = pos.handle(request)
            return reply

        def store(messages: list[Message], timeout: float = 0) -> None:
            pass

        gate.caller.exchange = exchange
        gate.commit._store = store
        self.workers.append(gate)
        self.closing += [gate.database.dispose, gate.ledger._writer.close]
        return gate

    def pass_time(self, seconds: float) -> None:
        """And every worker renews its lease meanwhile."""
        until = self.truth.time + seconds
        while self.truth.time < until:
            self.truth.time = min(until, self.truth.time + BEAT / 2)
            for worker in self.workers:
                worker.ledger.catch_up()

    def order(self, *, minutes: float = 60, placed: float = 0.0) -> dict[str, Any]:
        now = self.truth.now()
        times = {"placed_at": now + timedelta(minutes=placed)}
        times["deliver_by"] = now + timedelta(minutes=minutes)
        return {**an_order("o1", "m"), **{name: at.isoformat() for name, at in times.items()}}

    def deliver(self, gate: Gateway, order: dict[str, Any]) -> Decision:
        return self._do(gate, order, Action.SUBMIT)

    def cancel(self, gate: Gateway, minutes: float = 30) -> Decision:
        until = self.truth.now() + timedelta(minutes=minutes)
        wish = {"order_id": "o1", "merchant_id": "m", "deliver_by": until.isoformat()}
        return self._do(gate, wish, Action.CANCEL)

    def _do(self, gate: Gateway, record: dict[str, Any], action: Action) -> Decision:
        attempt: Attempt[Any] = Attempt(None, received(record), action)
        decision = gate.spine.attempt(attempt, timeout=1)
        assert decision is not None
        return decision

    def events(self) -> list[str]:
        return [event["type"] for event in self.admin().events(Key("m", "o1"))]

    def admin(self) -> OrderAdmin:
        return OrderAdmin(self.engine, self.workers[0].ledger._payloads)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with the schema, to be copied."""
    path = tmp_path_factory.mktemp("doubt") / "template.db"
    engine = open_database(f"sqlite:///{path}")
    make_tables(engine)
    engine.dispose()
    return path


@pytest.fixture
def lab(template: Path, tmp_path: Path) -> Iterator[Lab]:
    made = Lab(Path(shutil.copy(template, tmp_path / "gateway.db")))
    yield made
    for close in made.closing:
        close()


def code(decision: Decision) -> str | None:
    return decision.outcome.reason and decision.outcome.reason.code


SKEWS = [-3600.0, -15.0, 0.0, 15.0, 3600.0]


@pytest.mark.parametrize("skew", SKEWS)
@pytest.mark.parametrize("stepped", [False, True])
def test_a_slow_pos_creates_one_order_whatever_the_clocks_say(
    lab: Lab, skew: float, stepped: bool
) -> None:
    lab.merchant()
    pos = Pos(lab.truth, makes_after=LONGEST - 0.1)
    one, two = lab.worker(pos), lab.worker(pos, skew=0 if stepped else skew, zero=9e6)
    order = lab.order(minutes=600)
    lab.deliver(one, order)
    lab.pass_time(1)
    if stepped:
        two.clock.step(skew)  # type: ignore[attr-defined]
    pos.loses_replies = False
    for _ in range(20):
        decision = lab.deliver(two, order)
        lab.pass_time(1)
        if decision.outcome.kind is Kind.ACCEPTED:
            break
    assert decision.outcome.kind is Kind.ACCEPTED
    assert len(pos.creates) == 1


@pytest.mark.parametrize("adapter", ["queryable", "rest"])
def test_a_slow_clock_does_not_send_an_order_in_doubt_again(lab: Lab, adapter: str) -> None:
    """An operator may have asked the merchant about it by now."""
    lab.merchant(adapter)
    pos = Pos(lab.truth, makes_after=float("inf"))
    ahead, behind = lab.worker(pos, skew=7200), lab.worker(pos)
    order = lab.order(minutes=90)
    lab.deliver(behind, order)
    lab.pass_time(60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pos, "handle", lost)
        assert lab.deliver(ahead, order).outcome.kind is Kind.IN_DOUBT
    assert lab.deliver(behind, order).outcome.kind is Kind.EXPIRED
    told = [event["type"] for event in lab.admin().events(Key("m", "o1"))]
    assert (told, len(pos.creates)) == (["in_doubt", "expired"], 1)


def lost(_request: Request) -> Reply:
    raise NoValidReply("timeout", "no reply in time")


@pytest.mark.parametrize("skew", SKEWS)
def test_an_order_that_never_reached_its_pos_is_sent_again_after_the_settling_time(
    lab: Lab, skew: float
) -> None:
    """Whichever worker gets its message: waits do not add up."""
    lab.merchant()
    pos = Pos(lab.truth)
    workers = [lab.worker(pos, skew=skew * n, zero=1000.0 * n) for n in range(6)]
    order = lab.order(minutes=60000)
    lab.deliver(workers[0], order)
    pos.creates.clear()  # the request was lost
    pos.loses_replies = False
    for seconds in range(60):
        decision = lab.deliver(workers[seconds % 6], order)
        if decision.outcome.kind is Kind.ACCEPTED:
            break
        lab.pass_time(1)
    assert decision.outcome.kind is Kind.ACCEPTED
    assert LONGEST <= seconds <= LONGEST + BEAT + 1


def cancelled_where_it_was_made(lab: Lab, gate: Gateway, pos: Pos) -> None:
    """A cancel request ends the order once the POS has created it."""
    for _ in range(20):
        decision = lab.cancel(gate, minutes=600)
        if decision.outcome.kind is Kind.CANCELLED:
            break
        lab.pass_time(1)
    assert decision.outcome.kind is Kind.CANCELLED
    assert pos.made == 1
    assert pos.requests[-1][1].endswith("/cancel")


@pytest.mark.parametrize("skew", SKEWS)
def test_an_order_that_is_not_found_yet_is_not_cancelled(lab: Lab, skew: float) -> None:
    lab.merchant()
    pos = Pos(lab.truth, makes_after=LONGEST - 0.1)
    one, two = lab.worker(pos), lab.worker(pos, skew=skew, zero=9e6)
    lab.deliver(one, lab.order(minutes=600))
    cancelled_where_it_was_made(lab, two, pos)


def refused(status: int, code: str) -> Reply:
    """A refusal with the error codes of all vendors."""
    error = {"code": code, "message": "no", "detail": "no"}
    return _reply(status, {"error": error, "errors": [error]})


REFUSALS = [
    refused(422, "store_closed"),
    refused(400, "NOT_FOUND"),
    refused(400, "SOMETHING_NEW"),
    *(Reply(status, {}, b"<html>") for status in (400, 413, 415, 422, 431)),
]
KEYED = {"rest": {}, "square": {"pos": {"location_id": "L1"}}}


@pytest.mark.parametrize("adapter", KEYED)
@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda reply: f"{reply.status} {reply.body!r}")
@pytest.mark.parametrize("makes_after", [0.0, 39.0])
def test_a_refused_order_may_have_been_created_by_an_earlier_attempt(
    lab: Lab, adapter: str, refusal: Reply, makes_after: float
) -> None:
    """The shop closed since, or a proxy has another limit: the idempotency key is not checked."""
    lab.merchant(adapter, request_timeout=30, **KEYED[adapter])
    pos = Refusing(lab.truth, refusal, makes_after=makes_after)
    gate = lab.worker(pos)
    order = lab.order()
    for _ in range(4):
        kind = lab.deliver(gate, order).outcome.kind
        if kind is not Kind.IN_DOUBT:
            break
        lab.pass_time(20)
    assert kind is Kind.ACCEPTED
    assert lab.events() == ["accepted"]


@pytest.mark.parametrize("adapter", KEYED)
def test_an_adapters_rejection_does_not_end_the_doubt_of_an_earlier_attempt(
    lab: Lab, adapter: str
) -> None:
    """A catalog import changes the request of the same order, which may be too long then."""
    lab.merchant(adapter, **KEYED[adapter])
    pos = Refusing(lab.truth, refused(400, "x"))
    gate = lab.worker(pos)
    order = lab.order()
    lab.deliver(gate, order)
    refusal = rejected(Rejection.INVALID_ORDER, "makes a request of 2000000 bytes")
    create, *others = steps_of(gate.adapters[adapter])
    refusing: Any = copy(gate.adapters[adapter])
    refusing.steps = (replace(create, run=lambda *_: refusal), *others)
    gate.adapters[adapter] = refusing
    lab.pass_time(5)
    assert lab.deliver(gate, order).outcome.kind is Kind.ACCEPTED


@pytest.mark.parametrize("adapter", KEYED)
def test_a_refused_order_that_is_not_found_is_rejected_after_the_settling_time(
    lab: Lab, adapter: str
) -> None:
    lab.merchant(adapter, request_timeout=30, **KEYED[adapter])
    pos = Refusing(lab.truth, refused(422, "store_closed"), makes_after=float("inf"))
    gate = lab.worker(pos)
    order = lab.order()
    lab.deliver(gate, order)
    lab.pass_time(5)
    early = lab.deliver(gate, order)
    assert (early.outcome.kind, code(early)) == (Kind.IN_DOUBT, "unsettled")
    lab.pass_time(30 + BEAT)
    assert lab.deliver(gate, order).outcome.kind is Kind.REJECTED
    assert lab.events() == ["rejected"]


def test_a_refused_order_stays_in_doubt_while_it_cannot_be_looked_up(lab: Lab) -> None:
    lab.merchant("rest")
    pos = Refusing(lab.truth, refused(422, "store_closed"))
    gate = lab.worker(pos)
    order = lab.order()
    lab.deliver(gate, order)
    lab.pass_time(60)
    exchange = gate.caller.exchange

    def unreachable(request: Request, **rest: Any) -> Reply:
        if request.method == "GET":
            raise NotSent("refused", "no connection")
        return exchange(request, **rest)

    gate.caller.exchange = unreachable
    assert lab.deliver(gate, order).outcome.kind is Kind.IN_DOUBT
    gate.caller.exchange = exchange
    assert lab.deliver(gate, order).outcome.kind is Kind.ACCEPTED


def test_an_order_that_was_never_sent_before_is_rejected_at_once(lab: Lab) -> None:
    lab.merchant("rest")
    pos = Refusing(lab.truth, refused(422, "store_closed"))
    pos.creates.append(0.0)
    assert lab.deliver(lab.worker(pos), lab.order()).outcome.kind is Kind.REJECTED
    assert pos.requests == []  # it was not looked up


@pytest.mark.parametrize("is_late", [False, True])
def test_an_order_that_its_pos_had_and_lost_gets_the_settling_time(lab: Lab, is_late: bool) -> None:
    """It is in the POS's queue, and not yet in its list of orders."""
    lab.merchant()
    pos = Queueing(lab.truth, makes_after=10 + LONGEST - 0.1)
    pos.loses_replies = False
    one, two = lab.worker(pos), lab.worker(pos, zero=9e6)
    order = lab.order(minutes=0.1 if is_late else 60)
    assert lab.deliver(one, order).outcome.kind is Kind.PENDING
    lab.pass_time(10)
    for _ in range(20):
        decision = lab.deliver(two, order)
        if decision.outcome.kind is not Kind.IN_DOUBT:
            break
        assert code(decision) == "unsettled"
        lab.pass_time(1)
    assert decision.outcome.kind is Kind.ACCEPTED
    assert len(pos.creates) == 1


def test_a_failed_look_up_does_not_start_a_pending_orders_settling_time(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The POS has the order until it says that it does not."""
    lab.merchant()
    pos = Queueing(lab.truth)
    pos.loses_replies = False
    gate, order = lab.worker(pos), lab.order()
    lab.deliver(gate, order)
    with monkeypatch.context() as patch:
        patch.setattr(pos, "handle", lambda _: _reply(500, {}))
        lab.deliver(gate, order)
    lab.pass_time(LONGEST + BEAT)
    pos.creates.clear()  # it loses the order
    assert code(lab.deliver(gate, order)) == "unsettled"
    assert pos.creates == []


def test_a_lost_order_is_not_taken_for_cancelled_before_the_settling_time(lab: Lab) -> None:
    lab.merchant()
    pos = Queueing(lab.truth, makes_after=10 + LONGEST - 0.1)
    pos.loses_replies = False
    gate = lab.worker(pos)
    lab.deliver(gate, lab.order())
    lab.pass_time(10)
    cancelled_where_it_was_made(lab, gate, pos)


def test_a_lost_order_is_cancelled_after_the_settling_time(lab: Lab) -> None:
    lab.merchant()
    pos = Queueing(lab.truth)
    pos.loses_replies = False
    gate = lab.worker(pos)
    lab.deliver(gate, lab.order())
    pos.creates.clear()
    lab.cancel(gate)
    assert lab.admin().orders(states=[State.IN_DOUBT])
    lab.pass_time(LONGEST + BEAT)
    assert lab.cancel(gate).outcome.kind is Kind.CANCELLED


def test_a_lost_order_is_sent_again_after_the_settling_time(lab: Lab) -> None:
    lab.merchant()
    pos = Queueing(lab.truth)
    pos.loses_replies = False
    gate = lab.worker(pos)
    order = lab.order()
    lab.deliver(gate, order)
    pos.creates.clear()
    for _ in range(60):
        decision = lab.deliver(gate, order)
        if decision.outcome.kind is Kind.PENDING:
            break
        lab.pass_time(1)
    assert decision.outcome.kind is Kind.PENDING
    assert len(pos.creates) == 1
    assert LONGEST <= lab.truth.time <= LONGEST + BEAT


@pytest.mark.parametrize(
    ("vendors", "merchants", "seconds"),
    [(30.0, 10.0, 30.0), (30.0, 45.0, 45.0), (None, 10.0, 10.0)],
)
def test_a_pos_replies_within_its_vendors_time_or_its_merchants_longer_one(
    vendors: float | None, merchants: float, seconds: float
) -> None:
    adapter: Any = SimpleNamespace(limits=Limits(longest_reply=vendors))
    assert longest_reply(adapter, merchants) == seconds


class Vendors:
    """Has the order that it was sent; the test says what its list of orders shows."""

    def __init__(self) -> None:
        self.found: list[Reply | Exception] = []
        self.asked: list[str] = []
        self._paid: list[Reply] = []

    def handle(self, request: Request) -> Reply:
        if request.method == "GET" and "filter=" not in request.url:
            # By its id: afterwards only its lists are of interest here.
            return self._paid.pop() if self._paid else _reply(404, {})
        if not self.found and not request.changes:  # a preview, and lists that know no reference
            return _reply(200, {"total": 1700, "elements": []})
        self.asked.append(request.method)
        if request.changes and request.method == "POST":
            accepted = {"id": "K", "state": "open", "note": "[o1]", "total": 1700}
            made = {"id": "K", **SQUARE_ORDER}
            if request.url.endswith("/payments"):
                printed = {"lineItems": {"elements": [{"printed": True}]}}
                paid = {**made, **SQUARE_PAID}
                self._paid += [_reply(200, {**accepted, **printed, "order": paid})]
            return _reply(200, {**accepted, **json.loads(request.body or b""), "order": made})
        answer = self.found.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize("trouble", [_reply(500, {}), NoValidReply("timeout", "no reply")])
@pytest.mark.parametrize(
    ("adapter", "ids", "nothing"),
    [
        ("clover", {"merchant_id": "M1", "tender": "T"}, {"elements": []}),
        ("square", {"location_id": "L1"}, {"orders": []}),
    ],
)
def test_an_order_without_a_cancel_call_is_not_recorded_as_cancelled(
    lab: Lab, adapter: str, ids: dict[str, str], nothing: dict[str, Any], trouble: Any
) -> None:
    """It is looked up before it is cancelled; and then the list of orders may lag."""
    lab.merchant(adapter, pos=ids)
    pos = Vendors()
    gate = lab.worker(pos)
    lab.deliver(gate, lab.order())
    pos.found = [trouble, _reply(200, nothing)]
    decision = lab.cancel(gate)
    assert (decision.outcome.kind, len(decision.messages)) == (Kind.RETRY, 1)
    assert [entry.doubt_since for _, entry in decision.entries] == [None]
    lab.cancel(gate)
    assert (lab.events(), pos.found) == (["accepted", "accepted"], [])


@pytest.mark.parametrize("lost", ["before", "after"])
def test_an_order_with_a_cancel_call_may_be_recorded_as_cancelled(lab: Lab, lost: str) -> None:
    lab.merchant("clover", pos={"merchant_id": "M1"})
    shop = Shop(lab.truth.now)
    gate = lab.worker(SimpleNamespace(handle=shop.send))
    shop.refuses["payments"] = 429
    lab.deliver(gate, lab.order())
    shop.meet(lost, "DELETE")
    assert lab.cancel(gate).outcome.kind is Kind.IN_DOUBT
    lab.pass_time(31)  # until then the first one may be at work
    assert lab.cancel(gate).outcome.kind is Kind.CANCELLED
    assert shop.fact["is_deleted"]
    deletions = [each for each in shop.send.requests if each.method == "DELETE"]
    assert len(deletions) == 1 + (lost == "before")


@pytest.mark.parametrize("placed", [-120, 0, 6, 100])
@pytest.mark.parametrize("skew", [-1800.0, 0.0, 1800.0])
def test_an_order_is_found_however_fast_the_backends_clock_is(
    lab: Lab, placed: float, skew: float
) -> None:
    lab.merchant("clover", pos={"merchant_id": "M1"})
    shop = Shop(lab.truth.now)
    shop.knobs.takes_reference = False  # it is found by the time at which it was created
    shop.meet("after", "POST", "atomic_order/orders")
    gate = lab.worker(SimpleNamespace(handle=shop.send), skew=skew)
    order = lab.order(minutes=120, placed=placed)
    lab.deliver(gate, order)
    for _ in range(4):
        lab.pass_time(15)
        decision = lab.deliver(gate, order)
        if decision.outcome.kind is Kind.ACCEPTED:
            break
    assert decision.outcome.kind is Kind.ACCEPTED
    assert len(shop.facts) == 1


MOVES: list[dict[str, Any]] = [
    {"base_url": "https://new.example"},
    {"base_url": "https://old.example/other"},
    {"adapter": "queryable"},
    {"pos": {"shop": "8"}},
]


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("adapter", ["rest", "blind"])
def test_an_order_in_doubt_is_not_sent_to_another_endpoint(
    lab: Lab, move: dict[str, Any], adapter: str
) -> None:
    lab.merchant(adapter)
    pos = Pos(lab.truth)
    gate = lab.worker(pos)
    order = lab.order()
    lab.deliver(gate, order)
    sent = list(pos.requests)
    lab.merchant(**{"adapter": adapter, **move})
    lab.pass_time(20)
    decision = lab.deliver(gate, order)
    assert (decision.outcome.kind, code(decision)) == (Kind.IN_DOUBT, "moved")
    assert not decision.messages  # it needs an operator
    seen = lab.admin().one(Key("m", "o1"))
    assert seen is not None
    assert (seen.state, seen.last_event, seen.reason_code) == (State.IN_DOUBT, "in_doubt", "moved")
    assert code(lab.cancel(gate)) == "moved"
    assert pos.requests == sent


def test_an_order_in_doubt_is_looked_up_after_edits_that_keep_the_endpoint(lab: Lab) -> None:
    lab.merchant()
    pos = Pos(lab.truth)
    gate = lab.worker(pos)
    order = lab.order()
    lab.deliver(gate, order)
    lab.merchant(max_concurrency=3, request_timeout=5, provider="p")
    assert lab.deliver(gate, order).outcome.kind is Kind.ACCEPTED


RESTAURANT, DINE_IN, TAKE_OUT = (f"{n}0000000-0000-4000-8000-000000000000" for n in range(3))
CLOVER: dict[str, str] = {"merchant_id": "M1", "order_type": "OT1", "tender": "T1"}
TOAST = {"restaurant": RESTAURANT, "dining_option": DINE_IN, "naming_authority": "N"}
NOT_FOUND = {"clover": (200, {"elements": []}), "toast": (404, {})}


@pytest.mark.parametrize("before", [False, True], ids=["", "of the release before"])
@pytest.mark.parametrize(
    ("adapter", "pos", "edit", "has_moved"),
    [
        ("clover", CLOVER, {"order_type": "OT2"}, False),
        ("clover", CLOVER, {"tender": "T2"}, False),
        ("clover", CLOVER, {"merchant_id": "M2"}, True),
        ("toast", TOAST, {"dining_option": TAKE_OUT}, False),
        ("toast", TOAST, {"payment": TAKE_OUT}, False),
        ("toast", TOAST, {"naming_authority": "O"}, True),
        ("toast", TOAST, {"restaurant": TAKE_OUT}, True),
    ],
)
def test_only_the_endpoint_and_account_move_a_merchant(
    lab: Lab, adapter: str, pos: dict[str, str], edit: dict[str, str], has_moved: bool, before: bool
) -> None:
    def handle(request: Request) -> Reply:
        if request.changes:
            raise NoValidReply("timeout", "no reply in time")
        return _reply(200, {"total": 1700}) if request.is_search else _reply(*NOT_FOUND[adapter])

    lab.merchant(adapter, pos=pos, request_timeout=30)
    gate = lab.worker(SimpleNamespace(handle=handle))
    order = lab.order()
    with pytest.MonkeyPatch.context() as patch:
        if hasattr(gate.adapters[adapter], "submit"):  # Toast's asks for prices before
            patch.setattr(gate.adapters[adapter], "submit", lambda *_: Outcome(Kind.IN_DOUBT))
        if before:  # an older worker writes a fingerprint of the whole record
            patch.setattr(submit, "endpoint", lambda merchant, _: merchant.endpoint)
        lab.deliver(gate, order)
    assert code(lab.deliver(gate, order)) == "unsettled"
    lab.merchant(adapter, pos={**pos, **edit}, request_timeout=30)
    moved = has_moved or before  # of which the edited field is not known
    assert code(lab.deliver(gate, order)) == ("moved" if moved else "unsettled")


def test_an_unprocessed_order_goes_to_its_merchants_new_endpoint(lab: Lab) -> None:
    lab.merchant("rest")
    pos = Pos(lab.truth)
    gate = lab.worker(pos)
    order = lab.order()
    exchange = gate.caller.exchange
    gate.caller.exchange = lambda _request, **_: Reply(429, {}, b"")
    assert lab.deliver(gate, order).outcome.kind is Kind.RETRY
    gate.caller.exchange = exchange
    pos.loses_replies = False
    lab.merchant("rest", base_url="https://new.example")
    assert lab.deliver(gate, order).outcome.kind is Kind.ACCEPTED
    lab.merchant("rest")  # and it is cancelled at its endpoint, or not at all
    decision = lab.cancel(gate)
    assert code(decision) == "moved"
    [(_, entry)] = decision.entries
    assert entry.reason is not None
    assert (entry.event and entry.event.kind, entry.reason.code) == ("accepted", "not_cancelled")
    assert pos.requests == [("POST", "https://new.example/orders")]


def test_an_operator_resolves_an_order_in_doubt(lab: Lab) -> None:
    lab.merchant("rest")
    pos = Pos(lab.truth)
    gate = lab.worker(pos)
    order = lab.order()
    lab.deliver(gate, order)
    lab.merchant("rest", base_url="https://new.example")
    lab.deliver(gate, order)
    admin = lab.admin()
    seen = admin.one(Key("m", "o1"))
    assert seen is not None
    not_there = Entry(State.NEW, lab.truth.now().timestamp(), seen.attempts)
    admin.change(seen, replace(not_there), operator="ada", what="resolve", details="")
    pos.loses_replies = False
    assert lab.deliver(gate, order).outcome.kind is Kind.ACCEPTED
    assert pos.requests[-1] == ("POST", "https://new.example/orders")


def test_a_late_request_frees_an_order_of_a_dead_worker(lab: Lab) -> None:
    """An order that needs an operator has no message that another worker could receive."""
    lab.merchant("blind")
    pos = Pos(lab.truth, makes_after=0.1)
    one, two = lab.worker(pos), lab.worker(pos, zero=9e6)
    lab.deliver(one, lab.order())
    assert lab.admin().orders(states=[State.IN_DOUBT])
    one.ledger.claim(Key("m", "o1"), send=False)  # for a request, and then it dies
    lab.workers.remove(one)
    assert lab.cancel(two, minutes=-1).again is not None
    for _ in range(4):
        lab.pass_time(LEASE)
        if lab.cancel(two, minutes=-1).again is None:
            break
    [row] = lab.admin().orders(states=[State.IN_DOUBT])
    assert row.key == Key("m", "o1")
