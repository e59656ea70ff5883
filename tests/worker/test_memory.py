"""What large orders may take of a worker's memory, and that all of it is given back."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import gevent
import pytest

from pos_gateway.broker.bundle import MAX_BYTES, Bundle
from pos_gateway.domain.outcome import CallResult, Kind, Outcome
from pos_gateway.worker.consumer import LARGE_BYTES
from pos_gateway.worker.large import LEAVING, REDELIVERIES
from pos_gateway.worker.request import RequestState
from pos_gateway.worker.waiting_bundles import ReturnedBundle
from testkit.patience import PATIENCE
from tests.worker.test_dispatcher import Order, Scene, a_cancel_of

SIZE = LARGE_BYTES // 8


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    scene = Scene(monkeypatch)
    yield scene
    ticker = scene.dispatcher._ticker
    assert ticker is not None
    gevent.kill(ticker)


def large(order_id: str, merchant_id: str = "m", size: int = SIZE, seconds: float = 600) -> Order:
    order = Order(order_id, merchant_id, seconds)
    order.size = size
    return order


def taken(scene: Scene) -> int:
    return scene.dispatcher.admission.bytes


def settled(*orders: Order) -> None:
    for order in orders:
        assert order.said.wait(PATIENCE)


def test_one_merchants_large_orders_leave_room_for_anothers(scene: Scene) -> None:
    hogs = [large(f"hog{n}", "hog") for n in range(2600)]
    scene.offer(*hogs)
    assert taken(scene) == LARGE_BYTES // 2
    settled(*hogs[4:])  # parked
    healthy, small = large("healthy", "healthy"), Order("small", "other")
    scene.offer(healthy, small)
    assert scene.is_sent("healthy")
    assert scene.is_sent("small")
    for n in range(4):
        scene.reply(f"hog{n}")
    scene.reply("healthy")
    settled(*hogs, healthy)
    assert taken(scene) == 0


def test_large_orders_of_many_merchants_take_no_more_than_one_over_the_limit(scene: Scene) -> None:
    orders = [large(f"o{n}", f"m{n}", SIZE // 16) for n in range(2600)]
    scene.offer(*orders)
    assert LARGE_BYTES // 2 <= taken(scene) <= LARGE_BYTES + SIZE // 16
    small = Order("small", "m0")
    for n in range(100):
        scene.reply(f"o{n}")
    settled(orders[0])
    scene.reply("small")
    scene.offer(small)
    settled(small)


def test_an_order_larger_than_all_there_is_starts_alone(scene: Scene) -> None:
    first, second = (large(f"o{n}", f"m{n}", 3 * LARGE_BYTES) for n in range(2))
    scene.offer(first, second)
    assert scene.is_sent("o0")
    settled(second)  # parked
    scene.reply("o0")
    settled(first)
    scene.reply("again")
    scene.offer(again := large("again", "m1", 3 * LARGE_BYTES))
    settled(again)
    assert taken(scene) == 0


def test_a_merchants_large_look_ups_have_room_beside_its_new_orders(scene: Scene) -> None:
    """There are always more new ones, and each takes the place of the one before."""
    orders = [large(f"o{n}") for n in range(9)]
    look_up = large("in doubt")
    look_up.raw = look_up.raw._replace(look_up=True)
    scene.offer(*orders, look_up)
    settled(*orders[4:])  # parked
    assert look_up.state is RequestState.WAITING
    for each in (*orders[:4], look_up):
        scene.reply(each.order_id)
    settled(*orders[:4], look_up)
    assert taken(scene) == 0


def test_copies_of_a_large_order_in_flight_count_like_others(scene: Scene) -> None:
    order = large("o")
    copies = [large("o") for _ in range(100)]
    scene.offer(order, *copies)
    assert taken(scene) == LARGE_BYTES // 2
    assert [each.state for each in copies].count(RequestState.JOINED) == 3
    scene.reply("o")
    settled(order, *copies)
    assert taken(scene) == 0


def test_a_merchant_that_does_not_answer_leaves_half_to_others(scene: Scene) -> None:
    for n in range(20):
        scene.dispatcher.admission._lane(f"m{n}")
        scene.dispatcher.admission.open_breaker(f"m{n}", 2)
    scene.offer(*(large(f"o{n}", f"m{n}") for n in range(20)))
    assert taken(scene) <= LARGE_BYTES // 2 + SIZE


def two_hogs(scene: Scene) -> list[Order]:
    """Large orders of two merchants that answer: together they take more than half."""
    hogs = [large(f"{who}{n}", who, SIZE // 2) for n in range(12) for who in ("hog 1", "hog 2")]
    scene.offer(*hogs)
    assert taken(scene) > LARGE_BYTES // 2
    return hogs


def test_a_merchant_that_is_new_here_is_loaded_while_others_orders_fill_the_memory(
    scene: Scene,
) -> None:
    two_hogs(scene)
    directory, wanted = scene.dispatcher._gate.directory, list[str]()
    directory.want, directory.is_fresh = wanted.append, lambda _: False
    scene.offer(large("parked", "new", size=1))
    assert wanted == ["new"]


def test_a_merchant_without_an_allotment_asks_for_one_while_others_orders_fill_the_memory(
    scene: Scene,
) -> None:
    two_hogs(scene)
    admission, short = scene.dispatcher.admission, list[str]()
    admission._on_short = short.append
    admission._lane("idle")
    admission.allot("idle", 0)
    scene.offer(large("o", "idle", size=1))
    assert short


def test_a_lost_connection_frees_all_but_what_is_in_flight(scene: Scene) -> None:
    orders = [large(f"o{n}") for n in range(4)]
    scene.offer(*orders, large("o0"))
    assert taken(scene) == 4 * SIZE
    scene.dispatcher.connection_lost()
    assert taken(scene) == SIZE
    scene.reply("o0")
    while taken(scene):
        gevent.sleep(0.001)


def test_a_retry_counts_until_it_is_over(scene: Scene) -> None:
    scene.delay, order = 1, large("o")
    scene.reply("o", Outcome(Kind.RETRY, contact=CallResult.ANSWERED))
    scene.offer(order)
    while order.state is not RequestState.RETRY_WAITING:
        gevent.sleep(0.001)
    assert taken(scene) == SIZE
    scene.now += 2
    scene.reply("o")
    scene.dispatcher._wake.set()
    settled(order)
    assert taken(scene) == 0


def test_what_cannot_be_parked_is_read_a_few_at_a_time(scene: Scene) -> None:
    """Expired orders, and those without a merchant."""
    scene.broker_answers.clear()
    late = [large(f"late{n}", f"m{n}", seconds=-1) for n in range(40)]
    scene.offer(*late)
    assert scene.dispatcher.is_full
    scene.broker_answers.set()
    settled(*late)
    assert not scene.dispatcher.is_full
    assert taken(scene) == 0


def test_a_large_cancel_request_is_parked_when_there_is_no_room(scene: Scene) -> None:
    scene.offer(*(large(f"o{n}") for n in range(4)))
    cancel = a_cancel_of("x")
    cancel.size, cancel.order_id = SIZE, "x"
    scene.offer(cancel)
    settled(cancel)
    assert not scene.is_sent("x")


@pytest.fixture
def stuck(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """The broker stores nothing, and each message that is parked has half the bytes that may be on their way."""
    scene.broker_answers.clear()
    body = b"x" * (LARGE_BYTES // LEAVING // 2)
    monkeypatch.setattr(Order, "parked_body", body)
    return scene


def test_messages_are_set_aside_without_their_bodies_while_much_is_being_parked(
    stuck: Scene,
) -> None:
    orders = [large(f"hog{n}", "hog") for n in range(30)]
    stuck.offer(*orders)
    assert not stuck.dispatcher.is_full
    assert [each.raw.body for each in orders[6:]] == [b""] * 24
    healthy = large("healthy", "healthy")
    stuck.offer(healthy)
    assert stuck.is_sent("healthy")
    stuck.broker_answers.set()
    settled(*orders[4:])
    assert [each.word for each in orders[4:]] == ["ack"] * 2 + ["requeue"] * 24


def test_nothing_is_read_once_as_many_are_set_aside_as_may_be(stuck: Scene) -> None:
    stuck.dispatcher._large._most_aside = 5
    orders = [large(f"o{n}") for n in range(4 + 2 + 5)]
    stuck.offer(*orders)
    assert stuck.dispatcher.is_full
    stuck.broker_answers.set()
    settled(*orders[4:])
    assert not stuck.dispatcher.is_full


def test_a_message_that_the_broker_has_had_back_often_is_parked(stuck: Scene) -> None:
    orders = [large(f"o{n}") for n in range(8)]
    orders[-1].redeliveries = REDELIVERIES
    stuck.offer(*orders)
    stuck.broker_answers.set()
    settled(*orders[4:])
    assert orders[-1].word == "ack"


@pytest.mark.parametrize("is_lost", [False, True])
def test_what_is_set_aside_is_the_brokers_again_at_the_end(stuck: Scene, is_lost: bool) -> None:
    orders = [large(f"o{n}") for n in range(9)]
    stuck.offer(*orders)
    if is_lost:
        stuck.dispatcher.connection_lost()
    else:
        stuck.dispatcher.close()
        stuck.dispatcher.requeue_waiting(0.01)
    assert [each.state for each in orders[7:]] == [RequestState.REQUEUED] * 2
    assert not stuck.dispatcher._large.aside
    stuck.broker_answers.set()


def test_arrivals_while_nothing_may_start_are_bounded(scene: Scene) -> None:
    fleet: Any = SimpleNamespace(may_start=lambda _: False)
    scene.dispatcher._fleet = fleet
    orders = [large(f"o{n}") for n in range(8)]
    scene.offer(*orders)
    assert scene.dispatcher.is_full
    scene.dispatcher.requeue_waiting(1)
    assert {each.word for each in orders} == {"requeue"}
    assert not scene.dispatcher.is_full


def test_arrivals_while_the_worker_stops_keep_no_body(scene: Scene) -> None:
    """Once the reader was stopped, a whole window may come before the broker's answer that consuming ends."""
    scene.dispatcher.close()
    order, lines, reject = large("o"), b"x" * MAX_BYTES, Mock()
    bundle = Bundle("m", "orders", 64, len(lines), None, [lines])
    back = ReturnedBundle(bundle, Mock(reject_log_error=reject), ())
    scene.offer(order)
    scene.dispatcher.take_back(back)
    assert (order.raw.body, back.message.body, bundle.lines) == (b"", b"", b"")
    scene.dispatcher.requeue_waiting(1)
    assert order.word == "requeue"
    assert reject.called


def test_open_bundles_alone_are_no_reason_to_set_others_aside(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are open for seconds while their merchants are silent, and the broker takes them at once."""
    body = b"x" * (60 * 1024)
    monkeypatch.setattr(Order, "parked_body", body)
    number = LARGE_BYTES // LEAVING // len(body) + 10
    orders = [large(f"o{n}", f"m{n}") for n in range(number)]
    for order in orders:
        scene.dispatcher.admission._lane(order.merchant_id)
        scene.dispatcher.admission.open_breaker(order.merchant_id, 30)
        scene.offer(order)
    assert scene.dispatcher._parking.bytes < LARGE_BYTES // LEAVING
    assert not scene.dispatcher._large.aside


def test_bundles_that_return_while_the_broker_stores_nothing_stop_the_reader(scene: Scene) -> None:
    """They are not large, and none of them is set aside: a window of them would take 256 MiB."""
    scene.broker_answers.clear()
    lines = b"x" * MAX_BYTES
    number = 2 * LARGE_BYTES // LEAVING // MAX_BYTES
    for n in range(number + 1):
        bundle = Bundle(f"m{n}", "orders", 64, len(lines), None, [lines])
        scene.dispatcher.take_back(ReturnedBundle(bundle, Mock(), ()))
        assert scene.dispatcher.is_full is (n == number)
    scene.broker_answers.set()
    while scene.dispatcher.is_full:
        gevent.sleep(0.001)
