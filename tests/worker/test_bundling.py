"""What parking puts into one message, and what it does with the originals: a broker's stub notes it."""

from collections.abc import Iterable
from time import monotonic, time
from typing import Any

import gevent
import pytest
from gevent.event import Event

from pos_gateway.admission.admission import Admission
from pos_gateway.admission.lane import Call
from pos_gateway.admission.limits import Limits, Terms
from pos_gateway.broker import wire
from pos_gateway.broker.bundle import MOST_BYTES, MOST_ORDERS, PARKED_ORDERS, Bundle, ParkedOrder
from pos_gateway.broker.message import Message
from pos_gateway.domain.errors import BrokerUnavailable
from pos_gateway.worker import parking as subject
from pos_gateway.worker.bundles import ReturnedBundle
from pos_gateway.worker.parking import Parking


class Gate:
    """Stores what it is given, when it answers, unless it is away."""

    def __init__(self) -> None:
        self.answers = Event()
        self.answers.set()
        self.stored: list[Message] = []
        self.refuses: set[str] = set()

    def store(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.answers.wait()
            if self.refuses & {"all", message.message_id}:
                raise BrokerUnavailable("this publisher is closed")
            self.stored.append(message)


class Original:
    """A message as it came; it remembers what was said about it, and what was stored by then."""

    def __init__(self, gate: Gate) -> None:
        self.said: list[str] = []
        self.stored_before = -1
        self._gate = gate

    def acknowledge(self) -> None:
        self.said.append("ack")
        self.stored_before = len(self._gate.stored)

    def reject(self, requeue: bool) -> None:
        self.said.append("requeue" if requeue else "reject")


class Scene:
    def __init__(self, limit: int = 1, **limits: Any) -> None:
        self.gate = Gate()
        self.admission: Admission[Any] = Admission(Limits(**limits), lambda _: Terms(limit))
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

    def bring_back(self, number: int, *, merchant: str = "m", left: float = 600) -> Original:
        bundle = Bundle.of(merchant, "orders", [self.order(n, left=left) for n in range(number)])
        original = Original(self.gate)
        self.parking.take_back(
            ReturnedBundle(
                bundle,
                None,
                lambda *_: original.acknowledge(),
                lambda _log, _errors, requeue: original.reject(requeue),
                (),
            )
        )
        return original

    def settle(self) -> None:
        """Let everything that is under way come to its end."""
        self.parking._publishing.join(10)

    def let_out(self) -> None:
        """Look at the bundles at hand until none is left."""
        self.parking._at_hand._looking.join(10)
        self.settle()

    def sizes(self) -> list[int]:
        return sorted(m.headers.get("x-orders", 1) for m in self.gate.stored)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "OPEN_FOR", 0.01)
    monkeypatch.setattr("pos_gateway.admission.parking.LATEST_LOOK", 0.02)


def test_orders_that_come_together_are_one_message_and_acknowledged_when_it_is_stored() -> None:
    scene = Scene()
    originals = scene.park(10)
    assert scene.gate.stored == []
    scene.settle()
    assert scene.sizes() == [10]
    assert [(each.said, each.stored_before) for each in originals] == [(["ack"], 1)] * 10
    assert scene.admission.parked_count.of("m") == 10


def test_a_full_bundle_is_closed_and_another_one_begun() -> None:
    scene = Scene()
    scene.park(2 * MOST_ORDERS + 1)
    scene.settle()
    assert scene.sizes() == [1, MOST_ORDERS, MOST_ORDERS]


def test_a_full_bundle_does_not_wait_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "OPEN_FOR", 1e6)
    scene = Scene()
    scene.park(MOST_ORDERS)
    scene.park(1, bytes_=MOST_BYTES)
    scene.settle()
    assert scene.sizes() == [1, MOST_ORDERS]


def test_large_orders_fill_a_bundle_sooner_and_a_huge_one_goes_alone() -> None:
    scene = Scene()
    scene.park(6, bytes_=MOST_BYTES // 3)
    scene.park(1, bytes_=2 * MOST_BYTES)
    scene.settle()
    assert scene.sizes() == [1, 2, 2, 2]
    assert all(
        len(m.body) < MOST_BYTES + 500
        for m in scene.gate.stored
        if m.headers["task"] == PARKED_ORDERS
    )


def test_merchants_and_queues_are_kept_apart() -> None:
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


def test_orders_go_back_to_the_queue_when_this_process_is_going_down() -> None:
    scene = Scene()
    scene.gate.refuses.add("all")
    originals = [*scene.park(10), scene.bring_back(64)]
    scene.settle()
    assert {tuple(each.said) for each in originals} == {("requeue",)}
    assert scene.admission.parked_count.of("m") == 0


def test_what_is_not_published_yet_is_forgotten_when_the_connection_is_lost() -> None:
    scene = Scene(limit=10)
    scene.gate.answers.clear()
    originals = [*scene.park(10), *scene.park(MOST_ORDERS), scene.bring_back(MOST_ORDERS)]
    # Their threads end in no order: of so many, some end before the one that waits for them.
    originals += [scene.bring_back(1, merchant=f"m{n}") for n in range(40)]
    gevent.sleep(0)  # the full ones have begun
    scene.parking.forget()
    scene.gate.answers.set()
    scene.settle()
    assert scene.gate.stored == []
    assert {tuple(each.said) for each in originals} == {()}
    scene.park(2)  # by the next connection
    scene.settle()
    assert scene.sizes() == [2]


def test_what_is_not_published_yet_is_handed_back_and_the_rest_is_waited_for() -> None:
    scene = Scene()
    full = scene.park(MOST_ORDERS)
    rest = scene.park(10)
    scene.parking.hand_back(timeout=10)
    assert scene.sizes() == [MOST_ORDERS]
    assert {tuple(each.said) for each in full} == {("ack",)}
    assert {tuple(each.said) for each in rest} == {("requeue",)}


def test_a_bundle_whose_merchant_is_not_ready_is_parked_again_as_it_is() -> None:
    scene = Scene(limit=0)
    original = scene.bring_back(MOST_ORDERS)
    scene.settle()
    assert scene.sizes() == [MOST_ORDERS]
    assert (original.said, original.stored_before) == (["ack"], 1)
    assert scene.gate.stored[0].delay == 1
    assert scene.admission.parked_count.bundles == 1


def test_small_bundles_are_parked_again_as_one_with_what_is_being_parked() -> None:
    scene = Scene(limit=0)
    originals = [scene.bring_back(5), *scene.park(3), scene.bring_back(7)]
    scene.settle()
    assert scene.sizes() == [15]
    assert {tuple(each.said) for each in originals} == {("ack",)}


def test_as_many_as_may_come_are_let_out_and_the_others_parked_before_it_is_acknowledged() -> None:
    scene = Scene(limit=10, max_blocked=20)
    original = scene.bring_back(MOST_ORDERS)
    scene.settle()
    out = [m for m in scene.gate.stored if not m.delay]
    [rest] = [m for m in scene.gate.stored if m.delay]
    assert 0 < len(out) < MOST_ORDERS
    assert rest.headers["x-orders"] == MOST_ORDERS - len(out)
    assert (original.said, original.stored_before) == (["ack"], len(out) + 1)
    assert scene.admission.parked_count.of("m") == MOST_ORDERS - len(out)


def test_the_last_order_of_a_bundle_is_parked_again_too(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(limit=10)
    monkeypatch.setattr(scene.admission, "let_out", lambda *_: 9)
    original = scene.bring_back(10)
    scene.settle()
    assert {m.message_id for m in scene.gate.stored} == {f"o{n}" for n in range(10)}
    assert [bool(m.delay) for m in scene.gate.stored] == [False] * 9 + [True]
    assert original.said == ["ack"]


def test_orders_wait_longer_for_others_where_nobody_waits_for_them_to_be_back() -> None:
    scene = Scene()
    scene.admission.answers("paused", monotonic())  # from now on it is known
    scene.admission.set_terms("paused", Terms(0))
    scene.park(2, merchant="paused")
    scene.park(2, merchant="answers")
    scene.settle()
    assert [m.headers["x-merchant-id"] for m in scene.gate.stored] == ["answers", "paused"]


def test_so_many_orders_at_most_wait_for_others_before_the_oldest_of_them_go() -> None:
    scene = Scene(limit=0, max_blocked=10)
    originals = [scene.park(1, merchant=f"m{n}")[0] for n in range(8)]
    gevent.sleep(0.05)
    assert [each.said for each in originals] == [["ack"]] * 3 + [[]] * 5
    scene.parking.hand_back(1)
    assert [each.said for each in originals] == [["ack"]] * 3 + [["requeue"]] * 5
    assert scene.parking._gathered == 0


@pytest.mark.parametrize("missing", ["o0", "o3"])
def test_a_bundle_is_not_acknowledged_when_one_of_its_orders_could_not_be_stored(
    missing: str,
) -> None:
    scene = Scene(limit=10)
    scene.gate.refuses.add(missing)
    original = scene.bring_back(MOST_ORDERS)
    scene.settle()
    assert original.said == ["requeue"]


def test_orders_are_back_by_the_second_in_which_the_first_of_them_is_worthless() -> None:
    scene = Scene(limit=0, shortest_park=30.0)
    scene.park(40)
    scene.parking.park("m", scene.order(99, left=3.2), Original(scene.gate))
    scene.settle()  # the others do not keep it for as long as they would wait for more
    [message] = scene.gate.stored
    assert message.delay in (3, 4)


def test_orders_that_are_worthless_are_let_out_although_their_merchant_is_not_ready() -> None:
    scene = Scene(limit=0)
    original = scene.bring_back(10, left=-1)
    scene.settle()
    assert [m.delay for m in scene.gate.stored] == [0] * 10
    assert original.said == ["ack"]


class TestAtHand:
    """Bundles that are kept in the worker until there is room."""

    @staticmethod
    def full(**limits: Any) -> tuple[Scene, list[Any]]:
        """A scene in which no more of the merchant's orders may wait, and the calls under way."""
        scene = Scene(limit=2, slots=2, max_blocked=128, **limits)
        offered = [scene.admission.offer("m", None, monotonic()) for _ in range(66)]
        return scene, [each for each in offered if isinstance(each, Call)]

    @staticmethod
    def finish(scene: Scene, calls: list[Any], number: int) -> None:
        """So many of the merchant's orders are done, one after the other."""
        for _ in range(number):
            scene.admission.release(calls.pop(0), monotonic())
            if (call := scene.admission.next_start(monotonic())) is not None:
                calls.append(call)

    def test_a_bundle_is_kept_while_there_is_no_room_and_let_out_when_there_is(self) -> None:
        scene, calls = self.full()
        original = scene.bring_back(40)
        gevent.sleep(0.1)
        assert (scene.gate.stored, original.said, scene.parking.at_hand) == ([], [], 40)
        self.finish(scene, calls, 64)
        scene.let_out()
        assert [message.delay for message in scene.gate.stored] == [0] * 40
        assert (original.said, scene.parking.at_hand) == (["ack"], 0)

    def test_bundles_are_let_out_in_the_order_in_which_they_were_back(self) -> None:
        scene, calls = self.full()
        originals = [scene.bring_back(number) for number in (30, 20, 10)]
        self.finish(scene, calls, 65)
        late = scene.bring_back(5)
        scene.let_out()
        stored = [message.message_id for message in scene.gate.stored]
        assert stored.index("o29") < len(stored) - stored[::-1].index("o19")
        assert [each.stored_before for each in originals] == [30, 50, 60]
        assert late.stored_before == 65

    def test_no_bundle_is_kept_whose_merchant_does_not_answer(self) -> None:
        scene, _ = self.full()
        kept = scene.bring_back(40)
        scene.admission.set_terms("m", Terms(0))
        refused = scene.bring_back(40)
        scene.let_out()
        assert (kept.said, refused.said, scene.parking.at_hand) == (["ack"], ["ack"], 0)
        assert all(message.delay for message in scene.gate.stored)

    def test_a_bundle_with_an_order_whose_time_is_over_is_kept_no_longer(self) -> None:
        scene, _ = self.full(slow_after=1000.0)
        original = scene.bring_back(40, left=0.2)
        scene.let_out()
        assert original.said == ["ack"]
        assert [message.delay for message in scene.gate.stored] == [0] * 40

    def test_so_many_bundles_are_kept_at_most(self) -> None:
        scene, _ = self.full()
        originals = [scene.bring_back(1) for _ in range(128 // 4 + 3)]
        assert scene.parking.at_hand == 128 // 4
        scene.settle()
        assert [each.said for each in originals[-3:]] == [["ack"]] * 3

    def test_what_is_kept_is_handed_back_when_the_worker_stops(self) -> None:
        scene, _ = self.full()
        originals = [scene.bring_back(40), scene.bring_back(40)]
        scene.parking.hand_back(1)
        scene.let_out()
        assert [each.said for each in originals] == [["requeue"]] * 2
        assert (scene.gate.stored, scene.parking.at_hand) == ([], 0)

    def test_what_is_kept_is_forgotten_when_the_connection_is_lost(self) -> None:
        scene, calls = self.full()
        original = scene.bring_back(40)
        scene.parking.forget()
        again = scene.bring_back(40)  # by the next connection
        self.finish(scene, calls, 65)
        scene.let_out()
        assert (original.said, again.said) == ([], ["ack"])
        assert len(scene.gate.stored) == 40
