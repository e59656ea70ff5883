"""What parking puts into one message, and how it settles the originals, with a stub of a broker."""

import gc
from collections.abc import Iterable
from dataclasses import replace
from time import monotonic, time
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import gevent
import pytest
from gevent.event import Event

from pos_gateway.admission.admission import Admission
from pos_gateway.admission.lane import Call
from pos_gateway.admission.limits import AdmissionLimits, Terms
from pos_gateway.broker import wire
from pos_gateway.broker.bundle import MAX_BYTES, MAX_ORDERS, PARKED_ORDERS, Bundle, ParkedOrder
from pos_gateway.broker.message import Message
from pos_gateway.domain.errors import BrokerUnavailable
from pos_gateway.worker import parking as subject
from pos_gateway.worker.intake import MessageIntake
from pos_gateway.worker.parking import CONCURRENCY, Parking
from pos_gateway.worker.waiting_bundles import ReturnedBundle
from testkit.patience import PATIENCE


class Gate:
    """A stub that confirms publishes, unless it is down."""

    def __init__(self) -> None:
        self.answers = Event()
        self.answers.set()
        self.stored: list[Message] = []
        self.refuses: set[str] = set()

    def store(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.answers.wait()
            if "broken" in self.refuses:
                raise ValueError("no message")
            if self.refuses & {"all", message.message_id}:
                raise BrokerUnavailable("this publisher is closed")
            self.stored.append(message)


class Original:
    """An original message; records its acknowledgement or rejection, and what was stored before."""

    def __init__(self, gate: Gate) -> None:
        self.said: list[str] = []
        self.stored_before = -1
        self._gate = gate

    def acknowledge(self) -> None:
        self.said.append("ack")
        self.stored_before = len(self._gate.stored)

    def requeue(self) -> None:
        self.said.append("requeue")


class Scene:
    def __init__(self, limit: int = 1, **limits: Any) -> None:
        self.gate = Gate()
        self.admission: Admission[Any] = Admission(
            AdmissionLimits(**limits), lambda _: Terms(limit)
        )
        self.set_aside: list[tuple[str, str]] = []
        self.parking = Parking(
            self.gate,  # type: ignore[arg-type]
            self.admission,
            lambda _, code, reason: self.set_aside.append((code, reason)),
            monotonic,
        )

    def order(self, number: int = 0, *, bytes_: int = 100, left: float = 600) -> ParkedOrder:
        body = b'[["' + b"x" * bytes_ + b'"],{},{}]'
        headers = {"task": wire.SUBMIT_ORDER, "id": f"o{number}"}
        return ParkedOrder(Message("orders", "orders", body, f"o{number}", headers), time() + left)

    def park(self, number: int, *, merchant: str = "m", **order: Any) -> list[Original]:
        originals = [Original(self.gate) for _ in range(number)]
        for n, original in enumerate(originals):
            self.parking.park(merchant, self.order(n, **order), original)
        return originals

    def bring_back(
        self, number: int, *, merchant: str = "m", left: float = 600, **header: Any
    ) -> Original:
        bundle = Bundle.of(merchant, "orders", [self.order(n, left=left) for n in range(number)])
        bundle = replace(bundle, **header)
        original = Original(self.gate)
        message = SimpleNamespace(
            ack_log_error=lambda *_: original.acknowledge(),
            reject_log_error=lambda *_: original.requeue(),
        )
        self.parking.take_back(ReturnedBundle(bundle, message, ()))
        return original

    def settle(self) -> None:
        """Run everything in flight to its end."""
        with gevent.Timeout(PATIENCE):
            while not self.parking._publishing.join(PATIENCE) or self.parking._open:
                gevent.sleep(0.001)

    def unpark(self) -> None:
        """Unpark the bundles at hand until none is left."""
        with gevent.Timeout(PATIENCE):
            while self.parking._waiting._of:
                gevent.sleep(0.001)
        self.settle()

    def sizes(self) -> list[int]:
        return sorted(m.headers.get("x-orders", 1) for m in self.gate.stored)


def green_threads() -> int:
    return sum(isinstance(each, gevent.Greenlet) and not each.dead for each in gc.get_objects())


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "OPEN_FOR", 0.01)
    monkeypatch.setattr("pos_gateway.admission.parking.LATEST_LOOK", 0.02)


def test_orders_parked_together_are_one_message_and_acknowledged_once_it_is_confirmed() -> None:
    scene = Scene()
    originals = scene.park(10)
    assert scene.gate.stored == []
    scene.settle()
    assert scene.sizes() == [10]
    assert [(each.said, each.stored_before) for each in originals] == [(["ack"], 1)] * 10
    assert scene.admission.parked_count.of("m") == 10


def test_a_full_bundle_is_closed_and_a_new_one_opened() -> None:
    scene = Scene()
    scene.park(2 * MAX_ORDERS + 1)
    scene.settle()
    assert scene.sizes() == [1, MAX_ORDERS, MAX_ORDERS]


def test_a_full_bundle_is_published_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "OPEN_FOR", 1e6)
    scene = Scene()
    scene.park(MAX_ORDERS)
    scene.park(1, bytes_=MAX_BYTES)
    scene.settle()
    assert scene.sizes() == [1, MAX_ORDERS]


def test_large_orders_fill_a_bundle_sooner_and_a_huge_order_is_parked_alone() -> None:
    scene = Scene()
    scene.park(6, bytes_=MAX_BYTES // 3)
    scene.park(1, bytes_=2 * MAX_BYTES)
    scene.settle()
    assert scene.sizes() == [1, 2, 2, 2]
    assert all(
        len(m.body) < MAX_BYTES + 500
        for m in scene.gate.stored
        if m.headers["task"] == PARKED_ORDERS
    )


def test_a_bundle_has_orders_of_one_merchant_and_one_queue() -> None:
    scene = Scene()
    scene.park(3, merchant="a")
    scene.park(3, merchant="b")
    canary = scene.order()
    message = Message("orders", "orders.canary", canary.message.body, "c", canary.message.headers)
    scene.parking.park("a", ParkedOrder(message, None), Original(scene.gate))
    scene.settle()
    assert scene.sizes() == [1, 3, 3]
    assert {(m.headers.get("x-merchant-id"), m.routing_key) for m in scene.gate.stored} == {
        ("a", "orders"),
        ("b", "orders"),
        (None, "orders.canary"),
    }


def test_a_single_order_is_parked_as_its_own_message() -> None:
    scene = Scene()
    scene.park(1)
    scene.settle()
    [message] = scene.gate.stored
    assert (message.headers["task"], message.message_id) == (wire.SUBMIT_ORDER, "o0")
    assert message.delay > 0


def test_a_stopping_worker_requeues_instead_of_parking() -> None:
    scene = Scene()
    scene.gate.refuses.add("all")
    originals = [*scene.park(10), scene.bring_back(64)]
    scene.settle()
    assert {tuple(each.said) for each in originals} == {("requeue",)}
    assert scene.admission.parked_count.of("m") == 0


def test_unpublished_bundles_are_dropped_when_the_connection_is_lost() -> None:
    scene = Scene(limit=10)
    scene.gate.answers.clear()
    originals = [*scene.park(10), *scene.park(MAX_ORDERS), scene.bring_back(MAX_ORDERS)]
    # Their threads settle no message: some end before the one that waits for them.
    originals += [scene.bring_back(1, merchant=f"m{n}") for n in range(40)]
    gevent.sleep(0)  # publishing the full bundles has begun
    scene.parking.forget()
    scene.gate.answers.set()
    scene.settle()
    assert scene.gate.stored == []
    assert {tuple(each.said) for each in originals} == {()}
    scene.park(2)  # by the next connection
    scene.settle()
    assert scene.sizes() == [2]


def test_a_stop_parks_the_orders_of_open_bundles_and_awaits_the_confirms() -> None:
    scene = Scene()
    originals = [*scene.park(MAX_ORDERS), *scene.park(10)]
    scene.parking.requeue_waiting(timeout=10)
    assert scene.sizes() == [10, MAX_ORDERS]
    assert {tuple(each.said) for each in originals} == {("ack",)}


@pytest.mark.parametrize("stored", [4, 0])
def test_a_stop_leaves_each_order_of_a_bundle_there_once(
    stored: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of the bundle is unparked, or is being unparked, and the rest is in an open bundle, or will be."""
    scene = Scene(limit=10)
    monkeypatch.setattr(subject, "OPEN_FOR", 600)
    monkeypatch.setattr(scene.admission, "unpark", lambda *_, **_kind: 4)
    if not stored:
        scene.gate.answers.clear()
        gevent.spawn_later(0.01, scene.gate.answers.set)
    original = scene.bring_back(10)
    if stored:
        assert scene.parking._publishing.join(PATIENCE)
    assert (original.said, len(scene.gate.stored)) == ([], stored)
    scene.parking.requeue_waiting(timeout=PATIENCE)
    assert scene.sizes() == [1, 1, 1, 1, 6]
    assert original.said == ["ack"]


def test_a_bundle_whose_merchant_is_not_ready_is_parked_again_unopened() -> None:
    scene = Scene(limit=0)
    original = scene.bring_back(MAX_ORDERS)
    scene.settle()
    assert scene.sizes() == [MAX_ORDERS]
    assert (original.said, original.stored_before) == (["ack"], 1)
    assert scene.gate.stored[0].delay == 1
    assert scene.admission.parked_count.bundles == 1


def test_small_bundles_are_merged_with_the_open_bundle() -> None:
    scene = Scene(limit=0)
    originals = [scene.bring_back(5), *scene.park(3), scene.bring_back(7)]
    scene.settle()
    assert scene.sizes() == [15]
    assert {tuple(each.said) for each in originals} == {("ack",)}


def test_a_bundle_is_acknowledged_after_its_orders_are_unparked_or_parked_again() -> None:
    scene = Scene(limit=10, max_blocked=20)
    original = scene.bring_back(MAX_ORDERS)
    scene.settle()
    out = [m for m in scene.gate.stored if not m.delay]
    [rest] = [m for m in scene.gate.stored if m.delay]
    assert 0 < len(out) < MAX_ORDERS
    assert rest.headers["x-orders"] == MAX_ORDERS - len(out)
    assert (original.said, original.stored_before) == (["ack"], len(out) + 1)
    assert scene.admission.parked_count.of("m") == MAX_ORDERS - len(out)


def test_what_stays_of_a_bundle_is_parked_with_the_merchants_other_orders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(limit=10)
    monkeypatch.setattr(scene.admission, "unpark", lambda *_, **_kind: 4)
    originals = [scene.bring_back(10), *scene.park(3), scene.bring_back(MAX_ORDERS)]
    scene.settle()
    assert scene.sizes() == [1] * 8 + [9, MAX_ORDERS - 4]
    assert {tuple(each.said) for each in originals} == {("ack",)}
    assert scene.admission.parked_count.of("m") == 9 + MAX_ORDERS - 4


def test_a_bundle_that_expired_by_its_header_alone_is_parked_again() -> None:
    scene = Scene(limit=0)
    original = scene.bring_back(10, deliver_by=1)
    scene.settle()
    assert (scene.sizes(), original.said) == ([10], ["ack"])


def test_the_last_order_of_a_bundle_is_parked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(limit=10)
    monkeypatch.setattr(scene.admission, "unpark", lambda *_, **_kind: 9)
    original = scene.bring_back(10)
    scene.settle()
    assert {m.message_id for m in scene.gate.stored} == {f"o{n}" for n in range(10)}
    assert [bool(m.delay) for m in scene.gate.stored] == [False] * 9 + [True]
    assert original.said == ["ack"]


def test_a_bundle_stays_open_longer_while_its_merchant_is_not_ready() -> None:
    scene = Scene()
    scene.admission.returns_soon("paused", monotonic())  # from now on the merchant is known
    scene.admission.set_terms("paused", Terms(0))
    scene.park(2, merchant="paused")
    scene.park(2, merchant="answers")
    scene.settle()
    assert [m.headers["x-merchant-id"] for m in scene.gate.stored] == ["answers", "paused"]


def test_open_bundles_are_bounded_and_the_oldest_is_published_first() -> None:
    scene = Scene(limit=0, max_blocked=10)
    originals = [scene.park(1, merchant=f"m{n}")[0] for n in range(8)]
    gevent.sleep(0.05)
    assert [each.said for each in originals] == [["ack"]] * 3 + [[]] * 5
    scene.settle()
    assert [each.said for each in originals] == [["ack"]] * 8
    assert scene.parking._gathered == 0


def test_a_parked_order_holds_no_green_thread_until_it_is_published() -> None:
    """Each is a stack: those of hundreds of merchants' bundles were 30 MiB of a worker."""
    scene, before = Scene(limit=10), green_threads()
    scene.gate.answers.clear()
    originals = [scene.park(1, merchant=f"m{n}")[0] for n in range(100)]
    assert green_threads() == before
    originals += [scene.bring_back(MAX_ORDERS, merchant=f"back{n}") for n in range(10)]
    with gevent.Timeout(PATIENCE):
        while scene.parking._open:
            gevent.sleep(0.001)
    assert green_threads() - before == CONCURRENCY
    scene.gate.answers.set()
    scene.settle()
    assert [each.said for each in originals] == [["ack"]] * 110


def test_a_bundle_that_was_closed_as_full_is_not_closed_again_by_its_timer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    scene = Scene()
    scene.park(MAX_ORDERS + 1)
    scene.settle()
    gevent.sleep(2 * subject.OPEN_FOR)
    assert scene.sizes() == [1, MAX_ORDERS]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("missing", ["o0", "o3", "broken"])
def test_a_bundle_is_not_acknowledged_unless_every_order_is_stored(
    missing: str,
) -> None:
    scene = Scene(limit=10)
    scene.gate.refuses.add(missing)
    original = scene.bring_back(MAX_ORDERS)
    scene.settle()
    assert original.said == ["requeue"]


def test_a_bundle_is_back_before_its_first_order_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "OPEN_FOR_LATER", 20.0)
    scene = Scene(limit=0, park_delay_min=30.0)
    scene.park(40)
    scene.parking.park("m", scene.order(99, left=25), Original(scene.gate))
    scene.settle()  # the other orders don't keep the bundle open as long as usual
    [message] = scene.gate.stored
    assert 15 < message.delay <= 26  # a bundle knows the whole second


def test_expired_orders_are_unparked_though_their_merchant_is_not_ready() -> None:
    scene = Scene(limit=0)
    original = scene.bring_back(10, left=-1)
    scene.settle()
    assert [m.delay for m in scene.gate.stored] == [0] * 10
    assert original.said == ["ack"]


@pytest.mark.parametrize("takes", [True, False])
def test_expired_orders_that_may_not_come_back_yet_are_parked_whole_and_probe_no_merchant(
    takes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To open a bundle, and to publish its orders one by one, takes CPU that is scarce then."""
    scene = Scene(limit=10)
    scene.admission = scene.parking._admission = Admission(AdmissionLimits(), lambda _: None)
    monkeypatch.setattr(scene.admission.cpu, "takes_expired", lambda _orders: takes)
    monkeypatch.setattr(scene.admission, "park_delay", lambda *_, **__: 21.0)
    opened: list[Bundle] = []
    really = Bundle.open

    def counted(bundle: Bundle) -> list[ParkedOrder]:
        opened.append(bundle)
        return really(bundle)

    monkeypatch.setattr(Bundle, "open", counted)
    original = scene.bring_back(MAX_ORDERS, left=-1)
    scene.settle()
    assert scene.sizes() == ([1] * MAX_ORDERS if takes else [MAX_ORDERS])
    assert len(opened) == takes
    # By two queues of delays instead of three: nothing depends on the second any more.
    assert {m.delay for m in scene.gate.stored} == {0 if takes else 24}
    assert original.said == ["ack"]


class TestAtHand:
    """Bundles that the worker holds until more orders may wait."""

    @staticmethod
    def full(**limits: Any) -> tuple[Scene, list[Any]]:
        """A scene in which no more of the merchant's orders may wait, and the calls in flight."""
        scene = Scene(limit=2, slots=2, max_blocked=128, **limits)
        offered = [scene.admission.offer("m", None, monotonic()) for _ in range(66)]
        return scene, [each for each in offered if isinstance(each, Call)]

    @staticmethod
    def finish(scene: Scene, calls: list[Any], number: int) -> None:
        """Complete this many of the merchant's orders, one after the other."""
        for _ in range(number):
            scene.admission.release(calls.pop(0), monotonic())
            if (call := scene.admission.next_start(monotonic())) is not None:
                calls.append(call)

    def test_a_bundle_is_held_while_no_more_orders_may_wait_and_unparked_afterwards(self) -> None:
        scene, calls = self.full()
        original = scene.bring_back(40)
        gevent.sleep(0.1)
        assert (scene.gate.stored, original.said, scene.parking.waiting_orders) == ([], [], 40)
        self.finish(scene, calls, 64)
        scene.unpark()
        assert [message.delay for message in scene.gate.stored] == [0] * 40
        assert (original.said, scene.parking.waiting_orders) == (["ack"], 0)

    def test_bundles_are_unparked_in_order_of_arrival(self) -> None:
        scene, calls = self.full()
        originals = [scene.bring_back(number) for number in (30, 20, 10)]
        self.finish(scene, calls, 65)
        late = scene.bring_back(5)
        scene.unpark()
        stored = [message.message_id for message in scene.gate.stored]
        assert stored.index("o29") < len(stored) - stored[::-1].index("o19")
        assert [each.stored_before for each in originals] == [30, 50, 60]
        assert late.stored_before == 65

    def test_a_bundle_of_a_silent_merchant_is_parked_again(self) -> None:
        scene, _ = self.full()
        kept = scene.bring_back(40)
        scene.admission.set_terms("m", Terms(0))
        refused = scene.bring_back(40)
        scene.unpark()
        assert (kept.said, refused.said, scene.parking.waiting_orders) == (["ack"], ["ack"], 0)
        assert all(message.delay for message in scene.gate.stored)

    def test_a_held_bundle_is_unparked_when_an_order_in_it_expires(self) -> None:
        scene, _ = self.full(slow_after=1000.0)
        original = scene.bring_back(40, left=0.2)
        scene.unpark()
        assert original.said == ["ack"]
        assert [message.delay for message in scene.gate.stored] == [0] * 40

    def test_a_bundle_is_not_held_until_rabbitmq_closes_its_channel(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("pos_gateway.worker.waiting_bundles.LONGEST_HERE", 0.1)
        scene, _ = self.full(slow_after=1000.0)
        original = scene.bring_back(40)
        scene.unpark()
        assert original.said == ["ack"]
        assert [message.headers.get("x-orders") for message in scene.gate.stored] == [40]

    def test_the_number_of_held_bundles_is_bounded(self) -> None:
        scene, _ = self.full()
        before = green_threads()
        originals = [scene.bring_back(1) for _ in range(128 // 4 + 3)]
        assert scene.parking.waiting_orders == 128 // 4
        assert green_threads() == before
        scene.settle()
        assert [each.said for each in originals[-3:]] == [["ack"]] * 3

    def test_held_bundles_are_requeued_when_the_worker_stops(self) -> None:
        scene, _ = self.full()
        originals = [scene.bring_back(40), scene.bring_back(40)]
        scene.parking.requeue_waiting(1)
        scene.unpark()
        assert [each.said for each in originals] == [["requeue"]] * 2
        assert (scene.gate.stored, scene.parking.waiting_orders) == ([], 0)

    def test_held_bundles_are_dropped_when_the_connection_is_lost(self) -> None:
        scene, calls = self.full()
        original = scene.bring_back(40)
        scene.parking.forget()
        again = scene.bring_back(40)  # redelivered on the next connection
        self.finish(scene, calls, 65)
        scene.unpark()
        assert (original.said, again.said) == ([], ["ack"])
        assert len(scene.gate.stored) == 40


@pytest.mark.parametrize("is_down", [False, True])
def test_a_synchronous_worker_acknowledges_a_bundle_once_its_orders_are_stored(
    is_down: bool,
) -> None:
    said: list[str] = []
    scene = Scene()

    def store(messages: Iterable[Message], timeout: float) -> None:
        if is_down:
            raise BrokerUnavailable("away")
        scene.gate.stored.extend(messages)

    tasks = {wire.SUBMIT_ORDER: None, wire.CANCEL_ORDER: None}
    app = SimpleNamespace(tasks=tasks)
    consumer = SimpleNamespace(app=app, connection_errors=(), channel_errors=(), dispatcher=None)
    gate: Any = SimpleNamespace(store=store, settings=SimpleNamespace(max_order_bytes=10_000))
    intake = MessageIntake(consumer, gate, Mock(), Mock())
    orders = [scene.order(number) for number in range(2)]
    bundle = Bundle.of("m", "orders", orders).message()
    info = {"routing_key": "orders"}
    message = SimpleNamespace(
        headers=bundle.headers,
        body=bundle.body,
        delivery_info=info,
        content_type="application/json",
        ack_log_error=lambda *_: said.append("ack"),
        reject_log_error=lambda _log, _errors, requeue: said.append("requeue" * requeue),
    )
    intake.handle(message)
    assert (said, len(scene.gate.stored)) == ((["requeue"], 0) if is_down else (["ack"], 2))
