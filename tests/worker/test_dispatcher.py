"""The dispatcher by itself: the test hands in the merchants' answers and the time."""

import gc
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from math import inf
from time import thread_time, time
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import gevent
import pytest
from celery.concurrency.gevent import TaskPool
from celery.worker import state as celery_state
from gevent.event import AsyncResult, Event
from structlog.testing import capture_logs

from pos_gateway.adapters.clover import CloverAdapter
from pos_gateway.adapters.protocol import Guarantee
from pos_gateway.adapters.protocol import Limits as PosLimits
from pos_gateway.adapters.toast import ToastAdapter
from pos_gateway.admission.breaker import MINIMUM, BreakerState
from pos_gateway.admission.health import Transition
from pos_gateway.admission.lane import QUIET
from pos_gateway.admission.limits import AdmissionLimits, QuotaTerms
from pos_gateway.attempt.attempt import Attempt
from pos_gateway.attempt.decision import Decision
from pos_gateway.attempt.doubt import leased_elsewhere
from pos_gateway.attempt.spine import Spine
from pos_gateway.broker import wire
from pos_gateway.broker.bundle import ParkedOrder
from pos_gateway.broker.message import Message
from pos_gateway.domain.credentials import NoAuth
from pos_gateway.domain.outcome import CallResult, Kind, Outcome, Reason
from pos_gateway.ledger.states import Action, Key
from pos_gateway.runtime import failpoints
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock
from pos_gateway.telemetry import metrics
from pos_gateway.worker import dispatcher as subject
from pos_gateway.worker.dispatcher import Dispatcher
from pos_gateway.worker.request import OrderRequest, RequestState
from pos_gateway.worker.retries import BUSY
from testkit.patience import PATIENCE
from tests.telemetry.lab import value

SLOTS = 4


CONSUMER = SimpleNamespace(event_dispatcher=None, hostname="here", connection_errors=())


class Order(OrderRequest):
    """An order's request, which notes how its message was settled."""

    #: The body of its message once it is parked.
    parked_body = b""

    def __init__(
        self,
        order_id: str,
        merchant_id: str = "m",
        seconds: float = 60.0,
        action: Action = Action.SUBMIT,
    ) -> None:
        message = SimpleNamespace(
            headers={"id": order_id},
            body=f"{order_id} {seconds}".encode(),
            delivery_info={"routing_key": "orders"},
        )
        task = SimpleNamespace(name=wire.SUBMIT_ORDER, action=action)
        super().__init__(message, [[], {}, {}], task, CONSUMER, 0.0)
        self.order_id, self.merchant_id = order_id, merchant_id
        self.key = merchant_id, order_id, action
        self.deliver_by = time() + seconds
        self.said = Event()
        self.word = ""

    #: Read at each of its attempts.
    order = property(lambda self: getattr(self, "order_id", None), lambda _self, _order: None)

    def become(self, again: Message, received: float) -> None:
        self.start_over()
        self.received = received
        self.raw = self.raw._replace(tries=again.headers["x-attempts"])

    def as_parked(self) -> ParkedOrder:
        message = Message("orders", "orders", self.parked_body, self.order_id or "")
        return ParkedOrder(message, self.deliver_by)

    def acknowledge(self) -> None:
        self.enter(RequestState.ACKNOWLEDGED)
        self._say("ack")

    def requeue(self) -> None:
        self.enter(RequestState.REQUEUED)
        self._say("requeue")

    def _say(self, word: str) -> None:
        assert not self.word, f"{word} after {self.word}"
        self.word = word
        self.said.set()


class Scene:
    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        default: int = 1,
        clock: Clock = SYSTEM_CLOCK,
        **merchant: Any,
    ) -> None:
        terms = {
            "id": "m",
            "paused": False,
            "max_concurrency": 1,
            "provider": None,
            "adapter": "rest",
            "pos": {},
            "auth": NoAuth(),
            **merchant,
        }
        self.adapters: dict[str, Any] = {}
        self.stored: list[tuple[str, str]] = []
        #: When idle connections past their time were closed.
        self.swept: list[float] = []
        self.broker_answers = Event()
        self.broker_answers.set()
        #: Whether another worker has taken over the orders in flight here.
        self.taken_over = False
        #: Whether an attempt only reads the order's outcome, and writes nothing.
        self.only_found = False
        #: The event that is recorded with an outcome.
        self.event: Kind | None = None
        #: Cancel requests whose orders their POS has.
        self.at_the_pos: set[str] = set()
        #: Seconds until the retry of an order that is to be retried.
        self.delay = 30
        self._replies: dict[str, AsyncResult[Outcome]] = {}
        directory = SimpleNamespace(
            listen=lambda _: None,
            want=lambda _: True,
            is_fresh=lambda _: True,
            peek=lambda _: SimpleNamespace(**terms),
        )
        gate: Any = SimpleNamespace(
            directory=directory,
            permits=None,
            adapters=self.adapters,
            settings=SimpleNamespace(merchant_concurrency=default),
            clock=clock,
            spine=self._spine(directory),
            store=self._store,
            transport=SimpleNamespace(close_expired=lambda: self.swept.append(self.now)),
        )
        pool = TaskPool(SLOTS)
        pool.start()
        self.now = 100.0
        self.dispatcher = Dispatcher(
            gate=gate,
            pool=pool,
            limits=AdmissionLimits(slots=SLOTS),
            dead_letter=lambda *_: None,
        )
        self.rested: list[float] = []
        self.dispatcher._clock = SimpleNamespace(  # type: ignore[assignment]
            now=lambda: self.now, rest=self.rested.append
        )
        self.dispatcher._in_flight._now = lambda: self.now
        self.dispatcher.start()
        gevent.sleep(0)

    def offer(self, *orders: Order) -> None:
        for order in orders:
            self.dispatcher.offer(order)
        gevent.sleep(0)

    def look_at_the_time(self) -> None:
        """Let time pass until the ticker reads the time of day again."""
        self.now += subject.TIME_OF_DAY
        self.dispatcher._wake.set()
        gevent.sleep(0)

    def reply(self, order: str, outcome: Outcome | None = None) -> None:
        """The merchant's answer to an order that is, or will be, sent."""
        accepted = Outcome(Kind.ACCEPTED, contact=CallResult.ANSWERED)
        self._reply(order).set(outcome or accepted)

    def answer(self, order: str) -> None:
        """The merchant answers an order, and is known from then on."""
        delivered = Order(order)
        self.reply(order)
        self.offer(delivered)
        assert delivered.said.wait(PATIENCE)

    def is_sent(self, order: str) -> bool:
        return order in self._replies

    def _reply(self, order: str) -> "AsyncResult[Outcome]":
        return self._replies.setdefault(order, AsyncResult())

    def _spine(self, directory: Any) -> Spine:
        parts: Any = dict.fromkeys(["submit", "cancel", "unreadable"])
        parts |= {"ledger": None, "repeating": None, "directory": directory}
        spine = Spine(commit=self._commit, **parts)  # type: ignore[arg-type]
        spine._decided = self._decide
        return spine

    def _decide(self, attempt: Attempt[Any], _action: Any) -> Decision:
        order, action = attempt.content, attempt.action
        if not attempt.may_call and order in self.at_the_pos:
            return Decision(Outcome(Kind.RETRY), needs_pos=True)
        outcome = Outcome(Kind.EXPIRED)
        if not attempt.expired:
            outcome = self._reply(order).get(timeout=PATIENCE)
        self._replies.pop(order, None)
        delay = self.delay if outcome.kind is Kind.RETRY else 0
        headers = {"x-attempts": 1}
        message = Message(outcome.kind, "orders", b"", order, headers=headers, delay=delay)
        event = SimpleNamespace(event=self.event and SimpleNamespace(kind=self.event))
        entry: Any = SimpleNamespace(key=Key("m", order, action)), event
        return Decision(outcome, [] if self.only_found else [entry], messages=[message])

    def _commit(self, decision: Decision, *, timeout: float) -> bool:
        self._store(decision.messages)
        return not self.taken_over

    def _store(self, messages: Iterable[Message]) -> None:
        self.broker_answers.wait(PATIENCE)
        self.stored += [(each.exchange, each.message_id) for each in messages]


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    scene = Scene(monkeypatch)
    yield scene
    ticker = scene.dispatcher._ticker
    assert ticker is not None
    gevent.kill(ticker)


def test_an_expired_copy_shares_the_outcome_of_the_order_in_flight(
    scene: Scene,
) -> None:
    """Otherwise the backend would read that the order expired, and then that it was accepted."""
    first, sent, copy = Order("first"), Order("twice"), Order("twice")
    scene.offer(first, sent, copy)
    scene.reply("first")
    first.said.wait(PATIENCE)
    gevent.sleep(0)
    scene.dispatcher.admission.open_breaker("m", 600)  # the waiting copy can't be delivered in time
    scene.dispatcher._dispatch()
    scene.reply("twice")
    assert sent.said.wait(PATIENCE)
    assert copy.said.wait(PATIENCE)
    assert scene.stored == [("accepted", "first"), ("accepted", "twice")]
    assert [each.word for each in (first, sent, copy)] == ["ack", "ack", "ack"]


def test_orders_in_doubt_and_new_ones_go_in_turn_at_a_limit_of_one(scene: Scene) -> None:
    """Look-ups have the later deadlines; by these alone, new orders would keep them from the POS."""
    scene.answer("first")
    running = Order("running")
    new = [Order(f"new {n}", seconds=60.0 + n) for n in (1, 2, 3)]
    in_doubt = [Order(f"in doubt {n}", seconds=600.0) for n in (1, 2, 3)]
    for each in in_doubt:
        each.raw = each.raw._replace(look_up=True)
    scene.offer(running, *new, *in_doubt)
    started = []
    waiting = {each.order_id: each for each in (running, *new, *in_doubt)}
    while waiting:
        [sent] = filter(scene.is_sent, waiting)
        started.append(sent)
        scene.now += 0.1  # each has the slot for as long
        scene.reply(sent)
        assert waiting.pop(sent).said.wait(PATIENCE)
        gevent.sleep(0)
    assert started[1:] == ["in doubt 1", "new 1", "in doubt 2", "new 2", "in doubt 3", "new 3"]


def test_an_expired_order_needs_no_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch, max_concurrency=SLOTS)
    scene.answer("first")
    scene.offer(*(Order(f"o{number}") for number in range(SLOTS)))
    late = Order("late", seconds=-1)
    scene.offer(late)
    assert late.said.wait(PATIENCE)
    assert late.word == "ack"
    assert scene.stored == [("accepted", "first"), ("expired", "late")]
    assert scene.dispatcher.admission.in_flight == SLOTS


def test_orders_that_expire_together_are_written_a_few_at_a_time(scene: Scene) -> None:
    scene.broker_answers.clear()
    late = [Order(f"late{number}", seconds=-1) for number in range(3 * subject.SLOTLESS)]
    late += [Order("twice", seconds=-1), Order("twice", seconds=-1)]
    scene.offer(*late)
    assert scene.dispatcher.in_flight == subject.SLOTLESS
    assert late[-1].state is RequestState.WAITING
    scene.broker_answers.set()
    assert all(each.said.wait(PATIENCE) for each in late)
    assert {each.word for each in late} == {"ack"}
    assert scene.stored.count(("expired", "twice")) == 1


def test_a_stopping_worker_requeues_expired_orders_that_are_not_written(
    scene: Scene,
) -> None:
    scene.broker_answers.clear()
    late = [Order(f"late{number}", seconds=-1) for number in range(subject.SLOTLESS + 1)]
    scene.offer(*late)
    scene.dispatcher.close()
    scene.dispatcher.requeue_waiting(1)
    assert [each.word for each in late] == [""] * subject.SLOTLESS + ["requeue"]
    scene.broker_answers.set()
    assert all(each.said.wait(PATIENCE) for each in late)


def a_cancel_of(order_id: str, seconds: float = 300.0, merchant_id: str = "m") -> Order:
    cancel = Order(f"cancel of {order_id}", merchant_id, seconds, Action.CANCEL)
    cancel.key = merchant_id, order_id, Action.CANCEL
    return cancel


def open_the_breaker(scene: Scene, seconds: float) -> None:
    """Open the merchant's breaker for this long."""
    scene.dispatcher._dispatch()
    scene.dispatcher.admission.open_breaker("m", seconds)


def test_a_cancel_request_does_not_wait_behind_orders(scene: Scene) -> None:
    """Its deliver_by is later than its order's, which would start first."""
    scene.answer("first")
    running, order, cancel = Order("running"), Order("o1"), a_cancel_of("o1")
    scene.offer(running, order, cancel)
    assert scene.is_sent("cancel of o1")
    scene.reply("running")
    assert running.said.wait(PATIENCE)
    gevent.sleep(0.01)
    assert not scene.is_sent("o1"), "before its cancel request is done with"
    scene.reply("cancel of o1", Outcome(Kind.CANCELLED))
    assert cancel.said.wait(PATIENCE)
    scene.reply("o1", Outcome(Kind.CANCELLED))  # as the ledger has it
    assert order.said.wait(PATIENCE)
    assert scene.stored[2:] == [("cancelled", "cancel of o1"), ("cancelled", "o1")]


@pytest.mark.parametrize("why", ["its breaker is open", "it is paused", "no slot"])
def test_an_order_that_was_never_sent_is_cancelled_while_its_breaker_is_open(
    monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    scene = Scene(monkeypatch, paused=why == "it is paused")
    cancel = a_cancel_of("o1")
    if why == "its breaker is open":
        open_the_breaker(scene, 30)
    elif why == "no slot":
        scene.offer(*(Order(f"o{n}", f"m{n}") for n in range(SLOTS)))
    scene.reply("cancel of o1", Outcome(Kind.CANCELLED))
    scene.offer(cancel)
    assert cancel.said.wait(PATIENCE)
    assert (cancel.word, scene.stored) == ("ack", [("cancelled", "cancel of o1")])


def test_a_cancel_request_whose_order_is_at_its_pos_waits_for_a_slot(scene: Scene) -> None:
    scene.answer("first")
    scene.at_the_pos.add("cancel of o1")
    running, cancel, copy = Order("running"), a_cancel_of("o1"), a_cancel_of("o1")
    scene.offer(running, cancel, copy)
    gevent.sleep(0.01)
    assert not scene.is_sent("cancel of o1")
    assert (cancel.state, copy.state) == (RequestState.WAITING, RequestState.WAITING)
    scene.reply("running")
    for _ in range(2):  # one after the other
        scene.reply("cancel of o1")
        gevent.sleep(0.01)
    assert (cancel.word, copy.word) == ("ack", "ack")


def test_a_cancel_request_is_attempted_once(scene: Scene) -> None:
    # It would be found without a call, which must not happen here.
    scene.at_the_pos.add("cancel of o1")
    cancel = a_cancel_of("o1")
    scene.offer(cancel)
    assert scene.is_sent("cancel of o1")
    assert cancel.call is not None
    scene.reply("cancel of o1")
    assert cancel.said.wait(PATIENCE)


def test_many_cancel_requests_take_no_slot_and_few_green_threads(scene: Scene) -> None:
    open_the_breaker(scene, 30)
    many = [a_cancel_of(f"o{n}") for n in range(3 * subject.SLOTLESS)]
    scene.offer(*many, Order("other", "n"))
    assert scene.dispatcher.in_flight == subject.SLOTLESS + 1
    assert many[-1].state is RequestState.WAITING
    assert scene.is_sent("other")
    for each in many:
        scene.reply(each.order_id, Outcome(Kind.CANCELLED))
    assert all(each.said.wait(PATIENCE) for each in many)


@pytest.mark.parametrize("after", ["the connection was lost", "the worker stops"])
def test_a_cancel_request_that_needs_its_pos_is_requeued_if_it_cannot_wait(
    scene: Scene, after: str
) -> None:
    open_the_breaker(scene, 30)
    scene.at_the_pos.add("cancel of o1")
    scene.broker_answers.clear()  # no outcome is written meanwhile
    cancel = a_cancel_of("o1")
    scene.offer(cancel)
    gevent.sleep(0)
    if after == "the worker stops":
        scene.dispatcher.close()
    else:
        scene.dispatcher.connection_lost()
    scene.broker_answers.set()
    assert cancel.said.wait(PATIENCE)
    assert cancel.word == "requeue"
    assert scene.dispatcher.admission.waiting == 0


def test_a_cancel_request_with_the_same_body_does_not_end_its_order(scene: Scene) -> None:
    """A backend may send the whole order to cancel it; that message is acknowledged by itself."""
    order, cancel = Order("o1"), a_cancel_of("o1")
    order.raw = cancel.raw
    scene.offer(cancel, order)
    scene.reply("cancel of o1", Outcome(Kind.RETRY))
    assert cancel.said.wait(PATIENCE)
    gevent.sleep(0.01)
    assert (order.word, scene.is_sent("o1")) == ("", True)
    scene.reply("o1")
    assert order.said.wait(PATIENCE)


def test_a_copy_is_not_parked_while_its_order_is_in_flight(scene: Scene) -> None:
    sent, copy = Order("twice"), Order("twice")
    scene.offer(sent)
    scene.dispatcher._park_soon(copy)
    scene.reply("twice")
    assert copy.said.wait(PATIENCE)
    assert scene.stored == [("accepted", "twice")]


def test_a_closed_dispatcher_that_waits_for_calls_has_no_overdue_entry(
    scene: Scene,
) -> None:
    """An overdue entry would make the ticker spin."""
    order = Order("o1")
    scene.offer(order)
    scene.dispatcher.close()
    scene.now += 60
    scene.dispatcher._dispatch()
    assert scene.dispatcher.admission.next_at > scene.now
    scene.reply("o1")
    assert order.said.wait(PATIENCE)


def test_a_finished_order_wakes_the_dispatcher_if_another_waits(scene: Scene) -> None:
    wake = Mock(wraps=scene.dispatcher._wake)
    scene.dispatcher._wake = wake
    first, second = Order("1"), Order("2")  # their merchant takes one at a time
    scene.offer(first, second)
    wake.set.reset_mock()
    scene.reply("1")
    assert first.said.wait(PATIENCE)
    gevent.sleep(0)
    assert wake.set.called, "the one that waits is not seen to"
    assert scene.is_sent("2")
    wake.set.reset_mock()
    scene.reply("2")
    assert second.said.wait(PATIENCE)
    gevent.sleep(0)
    assert not wake.set.called, "no order waits"


def test_a_dispatcher_without_orders_rests_until_one_comes(scene: Scene) -> None:
    dispatcher = scene.dispatcher
    assert dispatcher._rests
    assert scene.rested == [subject.REST]
    first, second = Order("1"), Order("2")  # their merchant takes one at a time
    scene.offer(first)
    assert not dispatcher._rests, "its clock is not read, and a stall would count"
    scene.offer(second)
    scene.reply("1")
    assert first.said.wait(PATIENCE)
    dispatcher._wake.set()
    gevent.sleep(0)
    assert not dispatcher._rests
    scene.reply("2")
    assert second.said.wait(PATIENCE)
    dispatcher._wake.set()
    gevent.sleep(0)
    assert dispatcher._rests


def test_a_dispatcher_with_a_retry_does_not_rest(scene: Scene) -> None:
    fail(scene, Order("1"))
    for _ in range(3):
        gevent.sleep(0)
        scene.dispatcher._wake.set()
        gevent.sleep(0)
    assert scene.dispatcher.waiting["retry"] == 1
    assert not scene.dispatcher._rests


def test_no_merchant_is_blamed_for_a_wait_for_the_database(scene: Scene) -> None:
    """Nothing was sent to the POSes: cutting the calls short would free no slot."""
    claiming = [Order(f"o{n}", f"m{n}") for n in range(SLOTS)]
    scene.offer(*claiming, Order("waits", "m9"))
    advance(scene, 3.2)
    advance(scene, 0.1)
    standings = [scene.dispatcher.admission.merchant(each.merchant_id) for each in claiming]
    assert not any(each is None or each.silent for each in standings)
    assert not any(each.attempt.context.is_cancelled for each in claiming)
    for each in claiming:
        each.attempt.on_call()
    advance(scene, 3.2)
    advance(scene, 0.1)
    assert [each.attempt.context.is_cancelled for each in claiming] == [True, False, False, False]


@pytest.mark.parametrize("begins", [True, False])
def test_a_finished_order_is_freed_without_the_garbage_collector(
    scene: Scene, begins: bool
) -> None:
    gc.disable()
    try:
        order = Order("o1")
        order_lives = weakref.ref(order)
        scene.offer(order)
        if begins:
            order.attempt.on_call()
        scene.reply("o1")
        order.said.wait(PATIENCE)
        gevent.sleep(0.01)
        del order
        scene.now += 10
        gevent.sleep(0.01)  # calls are judged as of the last turn
        scene.dispatcher._dispatch()
        assert order_lives() is None
    finally:
        gc.enable()


def test_a_slow_broker_does_not_count_against_a_merchant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch, max_concurrency=2 * SLOTS)
    scene.answer("first")
    scene.broker_answers.clear()
    orders = [Order(f"o{number}") for number in range(2 * SLOTS)]
    for order in orders[:-1]:
        scene.reply(order.order_id)
    asked = Outcome(Kind.RETRY, contact=CallResult.OVERLOADED, retry_after=30.0)
    scene.reply(orders[-1].order_id, asked)
    scene.offer(*orders)
    gevent.sleep(0.01)
    admission = scene.dispatcher.admission
    assert admission.in_flight == SLOTS  # this many wait without a slot, this many with one
    assert scene.dispatcher.uncommitted == SLOTS
    standing = admission.merchant("m")
    assert standing is not None
    assert standing.breaker is BreakerState.OPEN  # from its Retry-After, honoured at once
    scene.now += 29
    scene.dispatcher._dispatch()
    scene.broker_answers.set()
    for order in orders:
        assert order.said.wait(PATIENCE)
    gevent.sleep(0)
    standing = admission.merchant("m")
    assert standing is not None
    assert (standing.in_flight, standing.silent, standing.breaker) == (0, False, BreakerState.OPEN)
    assert scene.dispatcher.uncommitted == 0


ASKED = Outcome(Kind.RETRY, retry_after=900.0, contact=CallResult.OVERLOADED)


def test_a_429_does_not_fail_the_merchants_other_orders(scene: Scene) -> None:
    first, other, soon = (
        Order("first", seconds=3600),
        Order("other", seconds=600),
        Order("soon", seconds=20),
    )
    scene.offer(first, other, soon)
    scene.reply("first", ASKED)
    assert soon.said.wait(PATIENCE)
    gevent.sleep(0.01)
    assert (scene.stored, other.state) == (
        [("retry", "first"), ("expired", "soon")],
        RequestState.WAITING,
    )


def test_the_only_order_that_waits_expires_at_once_when_the_breaker_opens_past_its_deadline(
    scene: Scene,
) -> None:
    """It does not wait any more, and still has to be seen to."""
    first, soon = Order("first", seconds=3600), Order("soon", seconds=20)
    scene.offer(first, soon)
    scene.reply("first", ASKED)
    assert soon.said.wait(PATIENCE)
    assert ("expired", "soon") in scene.stored


def test_the_last_attempt_starts_30_s_before_deliver_by_whatever_retry_after_says(
    scene: Scene,
) -> None:
    first = Order("first", seconds=600)
    scene.offer(first)
    scene.reply("first", ASKED)
    assert first.said.wait(PATIENCE)
    scene.now += 570  # when its message is redelivered
    scene.offer(Order("first", seconds=30))
    gevent.sleep(0.01)
    assert scene.is_sent("first")


def test_an_order_that_was_taken_over_is_retried(scene: Scene) -> None:
    """The new owner may not have this message: a cancel request has its own."""
    scene.taken_over = True
    order = Order("o1")
    scene.reply("o1")
    scene.offer(order)
    assert order.said.wait(PATIENCE)
    assert order.word == "requeue"


def fail(scene: Scene, *orders: Order, delay: int = 2) -> None:
    """Send the orders, and have their merchant ask for a retry after this many seconds."""
    scene.offer(*orders)
    ask_for_a_retry(scene, orders[0].order_id, delay)


def ask_for_a_retry(scene: Scene, order_id: str, delay: int = 2) -> None:
    """The merchant asks for a retry of the order after this many seconds."""
    scene.delay = delay
    scene.reply(order_id, Outcome(Kind.RETRY, contact=CallResult.ANSWERED))
    gevent.sleep(0.01)


def advance(scene: Scene, seconds: float) -> None:
    """Advance the time, and let the dispatcher start what is due."""
    scene.now += seconds
    scene.dispatcher._wake.set()
    gevent.sleep(0.01)


def test_a_retry_that_is_due_soon_waits_in_the_worker(scene: Scene) -> None:
    order = Order("o1")
    fail(scene, order)
    advance(scene, 1.9)
    assert (order.word, scene.stored, scene.is_sent("o1")) == ("", [], False)
    advance(scene, 0.2)
    assert (scene.is_sent("o1"), order.raw.tries) == (True, 1)
    scene.reply("o1")
    assert order.said.wait(PATIENCE)
    assert (order.word, scene.stored) == ("ack", [("accepted", "o1")])


def test_celery_shows_a_waiting_retry_as_reserved(scene: Scene) -> None:
    order, reserved = Order("o1"), []
    fail(scene, order)
    assert order in celery_state.reserved_requests
    assert order not in celery_state.active_requests
    scene.dispatcher.offer = lambda each: reserved.append(  # type: ignore[method-assign]
        each in celery_state.reserved_requests
    )
    advance(scene, 2.1)
    assert reserved == [False]


def test_a_retry_that_is_due_later_is_delayed_in_the_broker(scene: Scene) -> None:
    order = Order("o1")
    fail(scene, order, delay=5)
    assert (order.word, scene.stored) == ("ack", [("retry", "o1")])


def test_a_retry_is_delayed_in_the_broker_if_the_worker_is_full(scene: Scene) -> None:
    most = AdmissionLimits(slots=SLOTS).max_blocked // subject.KEPT
    for number in range(most + 1):
        fail(scene, Order(f"o{number}", f"m{number}"))
    assert scene.stored == [("retry", f"o{most}")]


def test_retries_count_while_their_outcomes_are_being_stored(scene: Scene) -> None:
    """After the database was down, hundreds would otherwise exceed the bound at once."""
    most = AdmissionLimits(slots=SLOTS).max_blocked // subject.KEPT
    for number in range(most - 1):
        fail(scene, Order(f"o{number}", f"m{number}"))
    scene.broker_answers.clear()
    for number in range(most - 1, most + 2):
        fail(scene, Order(f"o{number}", f"m{number}"))
    scene.broker_answers.set()
    gevent.sleep(0.01)
    assert len(scene.dispatcher._retries) == most
    assert scene.stored == [("retry", f"o{most}"), ("retry", f"o{most + 1}")]


def test_the_dispatcher_yields_while_it_parses_many_retries(scene: Scene) -> None:
    read: Counter[int] = Counter()
    turns = 0

    class Large(Order):
        def become(self, again: Message, received: float) -> None:
            super().become(again, received)
            read[turns] += 1
            until = thread_time() + BUSY
            while thread_time() < until:
                pass

    def have_turns() -> None:
        nonlocal turns
        while True:
            gevent.sleep(1e-6)
            turns += 1

    again = Message("orders", "orders", b"", "o", {"x-attempts": 1})
    for number in range(20):
        large: Any = Large(f"o{number}", f"m{number}")
        large.state = RequestState.RETRY_WAITING
        scene.dispatcher._retries.keep(large, again, scene.now)
    other = gevent.spawn(have_turns)
    while read.total() < 20:
        gevent.sleep(0.001)
    other.kill()
    assert max(read.values()) <= 2


@pytest.mark.parametrize("outcome", [Kind.ACCEPTED, Kind.RETRY])
def test_an_order_whose_green_thread_is_killed_after_its_commit_is_acknowledged(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, outcome: Kind
) -> None:
    """Requeued, an order whose retry is published would have two messages."""
    monkeypatch.setattr(failpoints, "reach", Mock(side_effect=gevent.GreenletExit))
    order, copy = Order("twice"), Order("twice")
    scene.offer(order, copy)
    scene.reply("twice", Outcome(outcome))
    assert all(each.said.wait(PATIENCE) for each in (order, copy))
    assert (order.word, copy.word, scene.stored) == ("ack", "ack", [(outcome, "twice")])


def test_a_retry_delivered_before_its_publisher_confirm_is_no_copy(scene: Scene) -> None:
    order, retry = Order("o"), Order("o")
    retry.raw = retry.raw._replace(tries=1)
    scene.broker_answers.clear()
    scene.reply("o", Outcome(Kind.RETRY))
    scene.offer(order)
    gevent.sleep(0.01)
    scene.offer(retry)
    scene.broker_answers.set()
    assert order.said.wait(PATIENCE)
    scene.reply("o")
    assert retry.said.wait(PATIENCE)
    assert scene.stored == [("retry", "o"), ("accepted", "o")]


def test_a_copy_does_not_share_an_outcome_that_was_only_read(scene: Scene) -> None:
    """An operator may have reopened the order since."""
    order, copy = Order("o"), Order("o")
    scene.only_found = True
    scene.offer(order, copy)
    scene.reply("o")
    assert order.said.wait(PATIENCE)
    scene.reply("o")
    assert copy.said.wait(PATIENCE)
    assert scene.stored == [("accepted", "o"), ("accepted", "o")]


def test_a_copy_of_a_waiting_retry_is_not_acknowledged_before_it(scene: Scene) -> None:
    """If a connection was lost meanwhile, the copy is the order's only message."""
    order, copy = Order("twice"), Order("twice")
    fail(scene, order, copy)
    assert (order.word, copy.word) == ("", "")
    advance(scene, 2.1)
    scene.reply("twice")
    assert order.said.wait(PATIENCE)
    assert copy.said.wait(PATIENCE)
    assert (order.word, copy.word) == ("ack", "ack")
    assert scene.stored == [("accepted", "twice")]  # once


@pytest.mark.parametrize("delay", [0, 2, 5], ids=["ended", "waits here", "is delayed"])
def test_a_cancel_request_with_a_later_deadline_is_no_copy(scene: Scene, delay: int) -> None:
    """Joined to a request that expires or is retried sooner, it would be lost."""
    one, copy, longer = (
        Order("o1", seconds=seconds, action=Action.CANCEL) for seconds in (60, 60, 600)
    )
    kind = Kind.RETRY if delay else Kind.EXPIRED
    scene.delay = delay
    scene.offer(one, copy, longer)
    scene.reply("o1", Outcome(kind, contact=CallResult.ANSWERED))
    gevent.sleep(0.01)
    assert scene.is_sent("o1")  # for the request with the later deadline
    assert longer.word == ""
    assert (one.word, copy.word) == ("", "") if delay == 2 else ("ack", "ack")
    scene.reply("o1")
    assert longer.said.wait(PATIENCE)
    assert longer.word == "ack"


def test_waiting_retries_are_requeued_when_the_worker_stops(scene: Scene) -> None:
    waits, in_flight = Order("waits"), Order("under way", "other")
    fail(scene, waits)
    scene.offer(in_flight)
    scene.dispatcher.close()
    scene.dispatcher.requeue_waiting(1)
    assert waits.word == "requeue"
    scene.reply("under way", Outcome(Kind.RETRY, contact=CallResult.ANSWERED))
    assert in_flight.said.wait(PATIENCE)
    assert (in_flight.word, scene.stored) == ("ack", [("retry", "under way")])


def test_a_retry_is_requeued_if_the_worker_starts_to_stop_in_that_moment(
    scene: Scene,
) -> None:
    scene.broker_answers.clear()
    order, copy, other = Order("twice"), Order("twice"), Order("once", "other")
    fail(scene, order, copy)
    fail(scene, other)
    scene.dispatcher.close()
    scene.dispatcher.requeue_waiting(1)
    scene.broker_answers.set()
    for each in (order, copy, other):
        assert each.said.wait(PATIENCE)
        assert each.word == "requeue"


def test_waiting_retries_are_dropped_with_their_connection(scene: Scene) -> None:
    order, again = Order("o1"), Order("o1")
    fail(scene, order)
    scene.dispatcher.connection_lost()
    scene.offer(again)  # the broker redelivers it
    scene.reply("o1")
    assert again.said.wait(PATIENCE)
    advance(scene, 10)
    assert (order.word, scene.stored) == ("", [("accepted", "o1")])
    assert not scene.is_sent("o1")


def test_orders_that_joined_are_dropped_with_their_connection(scene: Scene) -> None:
    """Celery would keep them, and their messages, for as long as the worker lives."""
    order, copies = Order("o"), [Order("o"), Order("o")]
    for number, copy in enumerate(copies):
        copy.id = f"copy {number}"
    scene.offer(order, copies[0])
    assert copies[0].id in celery_state.requests
    scene.dispatcher.connection_lost()
    scene.offer(copies[1])  # one more, after the reconnect
    order.requeue = scene.dispatcher.connection_lost  # type: ignore[method-assign]
    scene.taken_over = True
    scene.reply("o")
    gevent.sleep(0.01)
    assert [copy.state for copy in copies] == [RequestState.REQUEUED] * 2
    assert not {copy.id for copy in copies} & celery_state.requests.keys()


def test_a_copy_is_not_attempted_when_its_connection_is_lost_in_that_moment(scene: Scene) -> None:
    order, copy = Order("twice"), Order("twice")
    scene.taken_over = True
    scene.offer(order, copy)
    order.requeue = scene.dispatcher.connection_lost  # type: ignore[method-assign]
    scene.reply("twice")
    gevent.sleep(0.01)
    assert not scene.is_sent("twice")
    assert copy.word == ""


@pytest.mark.parametrize("delay", [2, 30])
def test_a_stale_delivery_gets_no_second_message(scene: Scene, delay: int) -> None:
    """Otherwise each lost connection would double the messages."""
    order, again = Order("o1"), Order("o1")
    scene.offer(order)
    scene.dispatcher.connection_lost()
    ask_for_a_retry(scene, "o1", delay)
    assert (order.is_stale, scene.stored, len(scene.dispatcher._retries)) == (True, [], 0)
    scene.reply("o1")
    scene.offer(again)
    assert again.said.wait(PATIENCE)
    assert (again.word, scene.stored) == ("ack", [("accepted", "o1")])


@pytest.mark.parametrize("delay", [2, 30])
def test_an_order_redelivered_while_it_fails_is_retried_after_its_delay(
    scene: Scene, delay: int
) -> None:
    """By one message: the redelivery is acknowledged as a copy once the retry is stored."""
    order, copy = Order("twice"), Order("twice")
    scene.offer(order)
    scene.dispatcher.connection_lost()
    scene.broker_answers.clear()
    # Redelivered on the next connection, while the first was in flight.
    fail(scene, copy, delay=delay)
    assert copy.word == ""
    scene.broker_answers.set()
    assert copy.said.wait(PATIENCE)
    assert (copy.word, scene.stored) == ("ack", [("retry", "twice")])
    assert not scene.is_sent("twice")


def test_an_order_redelivered_before_its_outcome_is_stored_is_retried_after_its_delay(
    scene: Scene,
) -> None:
    scene.broker_answers.clear()
    order, copy = Order("twice"), Order("twice")
    fail(scene, order)
    scene.dispatcher.connection_lost()
    scene.offer(copy)
    scene.broker_answers.set()
    assert copy.said.wait(PATIENCE)
    assert (copy.word, scene.stored) == ("ack", [("retry", "twice")])
    assert len(scene.dispatcher._retries) == 0
    assert not scene.is_sent("twice")


def test_an_order_redelivered_while_the_worker_stops_is_requeued(scene: Scene) -> None:
    order, copy = Order("twice"), Order("twice")
    scene.offer(order)
    scene.dispatcher.connection_lost()
    scene.offer(copy)
    scene.dispatcher.close()
    ask_for_a_retry(scene, "twice")
    assert copy.said.wait(PATIENCE)
    assert (copy.word, scene.stored) == ("requeue", [])


def test_an_order_leased_elsewhere_opens_no_breaker(scene: Scene) -> None:
    """Its retry delay is the gateway's, and not a merchant's Retry-After."""
    orders = [Order("o1"), Order("o2")]
    scene.reply("o1", leased_elsewhere())
    scene.reply("o2")
    scene.offer(*orders)
    for order in orders:
        assert order.said.wait(PATIENCE)
    standing = scene.dispatcher.admission.merchant("m")
    assert standing is not None
    assert standing.breaker is BreakerState.CLOSED


def test_an_order_that_is_not_sent_for_want_of_a_key_is_shown_and_opens_no_breaker(
    scene: Scene,
) -> None:
    order = Order("o1")
    why = Reason.of("secret_key", "no key")
    scene.reply("o1", Outcome(Kind.RETRY, why, contact=CallResult.NONE))
    scene.offer(order)
    assert order.said.wait(PATIENCE)
    [[found]] = scene.dispatcher.admission.in_trouble_by(10)
    assert (found.unsent, found.breaker) == (True, BreakerState.CLOSED)


@pytest.mark.parametrize("code", ["local", "look_ups", "credential_refused"])
def test_a_rejection_with_a_code_like_one_of_ours_shows_nothing_wrong(
    scene: Scene, code: str
) -> None:
    order = Order("o1")
    why = Reason.of(code, "the POS's own words")
    scene.reply("o1", Outcome(Kind.REJECTED, why, contact=CallResult.ANSWERED))
    scene.offer(order)
    assert order.said.wait(PATIENCE)
    [troubled] = scene.dispatcher.admission.in_trouble_by(10)
    assert not troubled


def test_orders_of_a_refused_credential_wait_behind_a_breaker_that_says_so(scene: Scene) -> None:
    why = Reason.of("credential_refused", "401")
    for number in range(5):
        order = Order(f"o{number}")
        scene.reply(order.order_id, Outcome(Kind.RETRY, why, contact=CallResult.FAILED))
        scene.offer(order)
        assert order.said.wait(PATIENCE)
    [[found]] = scene.dispatcher.admission.in_trouble_by(10)
    assert (found.unsent, found.breaker) == (True, BreakerState.OPEN)
    scene.offer(Order("waits"))
    assert not scene.is_sent("waits")


@pytest.mark.parametrize("guarantee", Guarantee)
def test_no_call_is_cut_short_at_a_pos_without_look_up_and_idempotency_key(
    monkeypatch: pytest.MonkeyPatch, guarantee: Guarantee
) -> None:
    scene = Scene(monkeypatch, adapter="pos")
    scene.adapters["pos"] = SimpleNamespace(guarantee=guarantee, limits=PosLimits())
    order = Order("o1")
    scene.offer(order)
    assert order.call.lane.may_be_cut_short is (guarantee is not Guarantee.BLIND)


def test_a_worker_that_was_paused_starts_nothing_until_it_knows_its_permits(
    scene: Scene,
) -> None:
    fleet: Any = SimpleNamespace(may_start=lambda _now: False, short=lambda _merchant: None)
    scene.dispatcher._fleet = fleet
    order = Order("o1")
    scene.offer(order)
    assert not scene.is_sent("o1")
    fleet.may_start = lambda _now: True
    scene.dispatcher._wake.set()
    scene.reply("o1")
    assert order.said.wait(PATIENCE)
    assert order.word == "ack"


def test_a_breaker_that_time_closes_here_is_no_news_for_workers_with_orders(scene: Scene) -> None:
    heard: list[str] = []
    fleet: Any = SimpleNamespace(
        breaker_opened=lambda *_: heard.append("opened"),
        breaker_closed=lambda _: heard.append("closed"),
        short=lambda _merchant: None,
    )
    scene.dispatcher._fleet = fleet
    admission: Any = scene.dispatcher.admission
    for _ in range(MINIMUM):
        call = admission.offer("m", "o", scene.now)
        admission.release(call, scene.now, CallResult.FAILED)
    for _ in range(4):
        scene.now += QUIET
        admission.tick(scene.now)
    assert admission.merchant("m").breaker is BreakerState.CLOSED
    assert heard == ["opened"]


class SteppedClock:
    """The machine's clocks; the test sets the time of day."""

    def __init__(self) -> None:
        self.step = 0.0

    def monotonic(self) -> float:
        return SYSTEM_CLOCK.monotonic()

    def now(self) -> datetime:
        return SYSTEM_CLOCK.now() + timedelta(seconds=self.step)


@pytest.mark.parametrize("hours", [1, -1])
def test_a_step_of_the_wall_clock_is_logged_and_waiting_orders_keep_their_time(
    monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    clock = SteppedClock()
    scene = Scene(monkeypatch, clock=clock)
    monkeypatch.setattr(subject, "time", lambda: clock.now().timestamp())
    sent, waiting, late = Order("sent"), Order("waiting"), Order("late", seconds=-60)
    scene.offer(sent, waiting)
    with capture_logs() as said:
        scene.look_at_the_time()
        assert said == []
        clock.step = 3600.0 * hours
        scene.look_at_the_time()
        scene.look_at_the_time()
    [event] = said
    assert (event["event"], event["log_level"]) == ("clock.stepped", "warning")
    assert event["seconds"] == pytest.approx(clock.step, abs=1)
    late.deliver_by += clock.step
    scene.offer(late)
    assert late.said.wait(PATIENCE)
    assert scene.stored == [("expired", "late")]
    for each in (sent, waiting):
        scene.reply(each.order_id)
        assert each.said.wait(PATIENCE)
    assert scene.stored[1:] == [("accepted", "sent"), ("accepted", "waiting")]


def test_a_crashed_ticker_stops_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: AsyncResult[BaseException] = AsyncResult()
    monkeypatch.setattr(subject, "end_worker", ended.set)
    scene = Scene(monkeypatch)

    def break_down(*_: object) -> list[Any]:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(scene.dispatcher.admission, "overdue", break_down)
    scene.dispatcher._wake.set()
    assert str(ended.get(timeout=PATIENCE)) == "a mistake of ours"


def test_a_merchant_without_a_limit_gets_its_vendors_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch, max_concurrency=None, adapter="clover", default=50)
    scene.adapters["clover"] = CloverAdapter()
    terms = scene.dispatcher._terms_of("m")
    assert terms is not None
    own = QuotaTerms("m", 16.0, None, None, 13)  # without credentials: of the merchant
    assert (terms.limit, terms.quotas) == (5, (own,))


def test_a_vendors_limits_of_a_location_are_the_merchants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch, max_concurrency=None, adapter="toast", default=50)
    scene.adapters["toast"] = ToastAdapter()
    terms = scene.dispatcher._terms_of("m")
    assert terms is not None
    own = QuotaTerms("m", 20.0, (10_000, 900.0), None, 4)
    assert (terms.limit, terms.quotas) == (50, (own,))


def test_a_paused_quota_is_no_merchants_breaker_in_log_and_metrics(scene: Scene) -> None:
    before = value("pos_gateway_breaker_transitions_total", state="open")
    with capture_logs() as said:
        scene.dispatcher._announce(Transition("app clover c1", BreakerState.OPEN, 2.0, "asked"))
    [line] = said
    assert (line["event"], line["key"], line["seconds"]) == ("quota.paused", "app clover c1", 2.0)
    assert value("pos_gateway_breaker_transitions_total", state="open") == before


def test_idle_connections_past_their_time_are_closed_while_no_order_comes(scene: Scene) -> None:
    scene.swept.clear()
    scene.look_at_the_time()
    assert scene.swept == [scene.now]


def timed(name: str) -> tuple[float, float]:
    """The histogram's count and sum of seconds."""
    return value(f"pos_gateway_{name}_seconds_count"), value(f"pos_gateway_{name}_seconds_sum")


def placed(order_id: str, seconds: float, merchant_id: str = "m") -> Order:
    """An order that its backend placed this long ago."""
    order = Order(order_id, merchant_id)
    order.placed_at = time() - seconds
    return order


def test_the_queue_wait_ends_with_the_first_attempt(scene: Scene) -> None:
    count, total = timed("queue_wait")
    order, ahead = placed("o", 10), placed("ahead", -3, "other")
    fail(scene, order)
    scene.offer(ahead, Order("a cancel request", "third"))
    advance(scene, 2.1)
    assert scene.is_sent("o")  # its retry
    now = timed("queue_wait")
    assert (now[0] - count, now[1] - total) == (2, pytest.approx(10, abs=1))


def test_the_waits_of_healthy_merchants_orders_are_counted(scene: Scene) -> None:
    """For the report: first attempts alone, and none that its merchant itself may have held up."""
    waits = scene.dispatcher.healthy_waits
    scene.dispatcher._in_flight._crew = Mock()
    light, heavy = SimpleNamespace(light=3, well_for=inf), SimpleNamespace(light=None, well_for=inf)
    limited = SimpleNamespace(light=3, well_for=5.0)
    for number, (seconds, call) in enumerate(
        [(6, limited), (0, light), (100, light), (-1, light), (10, heavy), (10, None)]
    ):
        order = placed(f"o{number}", seconds)
        if call is not None:
            call.time_limit_share = 1.0
        scene.dispatcher._in_flight.begin(order, call, expired=False)  # type: ignore[arg-type]
    retry = placed("retry", 10)
    retry.raw = retry.raw._replace(tries=1)
    scene.dispatcher._in_flight.begin(retry, light, expired=False)  # type: ignore[arg-type]
    assert [waits[0], sum(waits), waits[-1]] == [2, 3, 1]


@pytest.mark.parametrize(
    ("kind", "is_counted"),
    [(Kind.ACCEPTED, True), (Kind.EXPIRED, True), (Kind.PENDING, False), (None, False)],
)
def test_an_orders_duration_ends_when_its_outcome_is_durable(
    scene: Scene, kind: Kind | None, is_counted: bool
) -> None:
    scene.event, (count, total) = kind, timed("order")
    order = placed("o", 10)
    scene.broker_answers.clear()
    scene.reply("o")
    scene.offer(order)
    gevent.sleep(0.01)
    assert timed("order") == (count, total)
    scene.broker_answers.set()
    assert order.said.wait(PATIENCE)
    gevent.sleep(0)
    now = timed("order")
    assert (now[0] - count, now[1] - total) == (is_counted, pytest.approx(10 * is_counted, abs=1))


def age(scene: Scene, **ready: int) -> dict[str, float]:
    found = {name.replace("_", "."): messages for name, messages in ready.items()}
    scene.dispatcher._gate.queue_metrics = SimpleNamespace(ready=found)
    scene.dispatcher.show()
    lengths = next(iter(metrics.queue_messages.collect())).samples
    assert {each.labels["queue"]: each.value for each in lengths} == found
    samples = next(iter(metrics.queue_age.collect())).samples
    return {each.labels["queue"]: round(each.value) for each in samples}


def test_a_queues_lag_is_the_age_of_the_youngest_order_received_from_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = time()
    monkeypatch.setattr(subject, "time", lambda: at)
    assert age(scene, orders=5, order_events=4) == {}
    assert age(scene, orders=0, order_events=0) == {"orders": 0}  # before the first order
    for number, seconds in enumerate((100, 30, 300)):  # the last one was parked for a while
        scene.offer(placed(f"o{number}", seconds))
    retry, canary = placed("retry", 1), placed("canary", 400)
    retry.routing_key, canary.routing_key = "0.0.1.orders", "orders.canary"
    scene.offer(retry, canary, Order("a cancel request"))
    assert age(scene, orders=5, orders_canary=1) == {"orders": 30, "orders.canary": 400}
    at += 60
    assert age(scene, orders=5) == {"orders": 90}  # none was received since
    assert age(scene, orders=0) == {"orders": 0}
    assert age(scene) == {}  # the broker does not answer


def test_a_backends_fast_clock_does_not_hide_later_orders(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = time()
    monkeypatch.setattr(subject, "time", lambda: at)
    scene.offer(placed("ahead", -99_999))
    at += 40
    later = placed("later", 0)
    later.placed_at = at - 30
    scene.offer(later)
    assert age(scene, orders=1) == {"orders": 30}
