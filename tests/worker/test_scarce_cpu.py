"""What needs no slot yields, too, while CPU is scarce: the test says how busy the loop was."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import gevent
import pytest
from celery import Celery
from celery.concurrency.gevent import TaskPool

from pos_gateway.admission.admission import Admission
from pos_gateway.admission.lane import Call
from pos_gateway.admission.limits import QuotaTerms, Terms
from pos_gateway.admission.scheduler import BEHIND_FOR
from pos_gateway.attempt import gateway
from pos_gateway.domain.outcome import CallResult
from pos_gateway.worker import dispatcher as subject
from pos_gateway.worker.consumer import OrderConsumer
from pos_gateway.worker.dispatcher import SLOTLESS_WAITING
from testkit.patience import PATIENCE
from tests.gate import Gate
from tests.worker import test_bundling
from tests.worker.test_dispatcher import Order, Scene, a_cancel_of

TURN = 0.01


def make_scarce(admission: Admission[Any], now: float) -> None:
    """A merchant keeps up with its orders, and the loop has no time left."""
    for at in (now - BEHIND_FOR, now):
        call = admission.offer("healthy", None, at)
        assert isinstance(call, Call)
        admission.release(call, at)
    for _ in range(10):
        admission.turned(TURN, TURN)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(subject, "LoopLoad", Mock())
    made = Scene(monkeypatch)
    make_scarce(made.dispatcher.admission, made.now)
    return made


def a_turn(scene: Scene, busy: float) -> None:
    """The loop turns: it was busy in this part of the last one."""
    scene.dispatcher.admission.turned(busy * 1.0, 1.0)
    scene.look_at_the_time()


def test_orders_that_expired_start_one_in_a_turn(scene: Scene) -> None:
    scene.broker_answers.clear()
    scene.offer(*(Order(f"late{number}", seconds=-1) for number in range(5)))
    assert scene.dispatcher.in_flight == 1  # in any case
    a_turn(scene, busy=0.0)
    assert scene.dispatcher.in_flight == 2
    for _ in range(3):
        scene.dispatcher.admission.turned(TURN, TURN)
    scene.look_at_the_time()
    assert scene.dispatcher.in_flight == 3  # a 50th of a second later, in any case
    scene.broker_answers.set()


def test_the_next_turn_starts_one_though_nothing_else_happens(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "TICK", 10 * PATIENCE)
    scene.broker_answers.clear()
    scene.offer(*(Order(f"late{number}", seconds=-1) for number in range(5)))
    assert scene.dispatcher.in_flight == 1
    scene.dispatcher.admission.turned(0.0, 1.0)
    with gevent.Timeout(PATIENCE):
        while scene.dispatcher.in_flight < 2:
            gevent.sleep(0.001)
    scene.broker_answers.set()


def test_cancel_requests_start_one_in_a_turn(scene: Scene) -> None:
    for number in range(3):  # what can start keeps the merchant busy
        scene.offer(Order(f"o{number}"))
    scene.broker_answers.clear()
    in_flight = scene.dispatcher.in_flight
    scene.offer(*(a_cancel_of(f"another {number}") for number in range(5)))
    assert scene.dispatcher.in_flight == in_flight + 1
    scene.broker_answers.set()


def test_few_wait_for_cpu_and_the_others_are_parked(scene: Scene) -> None:
    late = [Order(f"late{number}", seconds=-1) for number in range(SLOTLESS_WAITING + 11)]
    scene.offer(*late)
    parked = late[SLOTLESS_WAITING + 1 :]
    assert all(each.said.wait(PATIENCE) for each in parked)
    assert {each.word for each in parked} == {"ack"}
    assert scene.dispatcher.admission.parked_count.total == len(parked)
    assert [each.word for each in late[1 : SLOTLESS_WAITING + 1]] == [""] * SLOTLESS_WAITING
    with gevent.Timeout(PATIENCE):
        while not all(each.word for each in late):  # they are told of all the same
            a_turn(scene, busy=0.0)


def test_without_a_lack_of_cpu_all_wait_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "LoopLoad", Mock())
    scene = Scene(monkeypatch)
    scene.broker_answers.clear()
    late = [Order(f"late{number}", seconds=-1) for number in range(2 * SLOTLESS_WAITING)]
    scene.offer(*late)
    assert scene.dispatcher.in_flight == subject.SLOTLESS
    scene.broker_answers.set()
    assert all(each.said.wait(PATIENCE) for each in late)
    assert scene.dispatcher.admission.parked_count.total == 0


def test_parked_orders_that_expired_come_back_a_bundle_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pos_gateway.admission.cpu.EXPIRED", 0.1)
    scene = test_bundling.Scene()
    make_scarce(scene.admission, 0.0)
    scene.admission.returns_soon("m", 0.0)
    scene.admission.set_terms("m", Terms(0))
    first, second = scene.bring_back(10, left=-1), scene.bring_back(10, left=-1)
    scene.settle()
    assert [first.said, second.said] == [["ack"], ["ack"]]
    *singly, bundle = scene.gate.stored
    assert [each.delay for each in singly] == [0] * 10
    assert bundle.headers["x-orders"] == 10
    assert bundle.delay >= 1
    assert scene.admission.parked_count.of("m") == 10


def test_events_are_hydrated_when_a_worker_has_cpu_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a million of them healthy orders' p99 was 55 ms on half a core, and is 12."""
    gate = Gate(tmp_path, Mock(), id="healthy")
    gate.directory.get("healthy")
    monkeypatch.setattr(gateway, "current", lambda: gate)
    parts = gate.events._pipeline, gate.events._helping
    consumer = OrderConsumer(
        Mock(), pool=TaskPool(4), app=Celery(set_as_current=False), controller=Mock()
    )
    assert consumer.dispatcher is not None
    admission = consumer.dispatcher.admission
    assert [part.pause() for part in parts] == [0.0, 0.0]
    make_scarce(admission, 100.0)
    assert admission.cpu.pause() > 0
    assert [part.pause() for part in parts] == [admission.cpu.pause()] * 2


def test_polls_yield_to_orders_that_lack_cpu_and_leave_merchants_alone_that_are_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(tmp_path, Mock(), id="healthy")
    gate.directory.get("healthy")
    monkeypatch.setattr(gateway, "current", lambda: gate)
    yields = Mock()
    monkeypatch.setattr(gate.poller, "yield_to", yields)
    consumer = OrderConsumer(
        Mock(), pool=TaskPool(4), app=Celery(set_as_current=False), controller=Mock()
    )
    assert consumer.dispatcher is not None
    admission = consumer.dispatcher.admission
    [orders] = yields.call_args.args
    assert (orders.pause(), orders.is_down("healthy")) == (0.0, False)
    make_scarce(admission, 100.0)
    assert orders.pause() == admission.cpu.pause() > 0
    own = QuotaTerms("app x", 1.0, is_app=True)
    for merchant_id in ("healthy", "other"):
        orders.begin(merchant_id)
        admission.set_terms(merchant_id, Terms(5, quotas=(own,)))
    end = orders.begin("healthy")
    assert admission.demand(own.key).in_flight == 1
    assert orders.begin("healthy") is None
    end()
    assert admission.demand(own.key).in_flight == 0
    orders.refused("healthy", CallResult.APP_OVERLOADED, 7.0)
    admission.open_breaker("healthy", 60.0)
    assert orders.is_down("healthy")


def test_a_worker_says_how_much_cpu_it_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """On less than a core the loop counts the CPU of other threads, too."""
    load = Mock()
    monkeypatch.setattr(subject, "LoopLoad", load)
    scene = Scene(monkeypatch)
    _loop, _turned, cores = load.call_args.args
    assert cores == scene.dispatcher.admission.limits.cores


def test_orders_that_expired_are_parked_together() -> None:
    scene = test_bundling.Scene(limit=0, park_delay_min=30.0)
    scene.park(10, left=-1)
    scene.settle()
    assert scene.sizes() == [10]
    assert scene.gate.stored[0].delay == 1  # one bundle is looked at soon
