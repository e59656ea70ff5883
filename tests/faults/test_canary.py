"""Merchants that are moved to a canary and back, while their orders are in flight."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count, cycle

from pos_gateway.broker import topology
from pos_gateway.broker.publisher import Publisher
from pos_gateway.domain.split import Split
from pos_gateway.routing.splits import message_of
from tests.faults.lab import FaultLab
from tests.worker.lab import PATIENCE

CANARY = ("-Q", "orders.canary")
SYNCHRONOUS = ("-P", "prefork", "-c", "4")
#: Seconds between two orders of the load, which one synchronous worker can deliver; and some
#: orders.
APART, SOME = 0.05, 25


def move(lab: FaultLab, percent: float) -> None:
    """Move this percentage as an operator does, and wait until the backend follows."""
    split = Split().changed("kim", datetime.now(UTC), percent=percent)
    publisher = Publisher(lab.broker_url)
    publisher.publish(message_of(split))
    publisher.close()
    wait_until(lambda: lab.backend.split == split)


def wait_until(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.01)


@contextmanager
def load(lab: FaultLab, poses: list[str]) -> Iterator[Callable[[], None]]:
    """Orders at a steady rate while the block lasts; yields a function that waits for some more."""
    over, numbers = threading.Event(), count()

    def place() -> None:
        for number, pos in zip(numbers, cycle(poses), strict=False):
            lab.place(pos, f"load-{number}")
            if over.wait(APART):
                return

    def more() -> None:
        before = len(lab.backend.placed)
        wait_until(lambda: len(lab.backend.placed) >= before + SOME)

    thread = threading.Thread(target=place, daemon=True)
    thread.start()
    try:
        yield more
    finally:
        over.set()
        thread.join()


def test_a_canary_killed_during_a_move_and_the_move_back_lose_and_double_no_order(
    lab: FaultLab,
) -> None:
    """The synchronous worker delivers its unacknowledged orders, and those until the move back."""
    poses = lab.open_poses(4, request_timeout=5.0)
    for pattern, keyed in (("keyed-*", True), ("queryable-*", False), ("blind-*", False)):
        lab.merchants.profile(pattern, {"create": {"latency": 0.1}, "keyed": keyed})
    with lab.worker(*SYNCHRONOUS, app="pos_gateway"), lab.worker(*CANARY) as canary:
        lab.wait_for_workers(2, topology.CANARY_KEY)
        with load(lab, poses) as more:
            move(lab, 50)
            more()
            move(lab, 100)
            more()
            lab.merchants.wait_until(in_flight=3)
            canary.send(signal.SIGKILL)
            canary.wait()
            may_be_in_doubt = lab.left_in_sending(canary, "blind")
            more()
            move(lab, 0)
            more()
        lab.settle()
    verdict = lab.verdict(healthy=lambda merchant: not merchant.startswith("blind"))
    assert {merchant[:5] for merchant, _ in verdict.in_doubt} <= {"blind"}
    assert len(verdict.in_doubt) <= may_be_in_doubt


def test_a_cancel_request_is_right_on_either_queue_before_its_order_and_after(
    lab: FaultLab,
) -> None:
    """With a move between them, order and cancel request are on two queues, in no order."""
    lab.open_merchants("m")
    move(lab, 100)
    lab.place("m", "waits-in-the-canary")
    move(lab, 0)
    lab.place("m", "waits-in-orders")
    lab.backend.cancel("m", "waits-in-the-canary")
    with lab.worker("-Q", "orders") as stable:
        lab.wait_for_row("m", "waits-in-the-canary", action="cancel")
        lab.wait_for_row("m", "waits-in-orders", state="accepted")
        assert stable.stop() == 0
    assert lab.queued("orders.canary") == 1  # a worker of stable orders alone leaves it there
    move(lab, 100)
    lab.backend.cancel("m", "waits-in-orders")
    with lab.worker(*CANARY):
        lab.settle()
        lab.wait_for_events("waits-in-orders", 2)
    kinds = {
        order_id: [event["type"] for event in lab.backend.events(order_id)]
        for order_id in ("waits-in-the-canary", "waits-in-orders")
    }
    assert kinds == {
        "waits-in-the-canary": ["order.cancelled"],
        "waits-in-orders": ["order.accepted", "order.cancelled"],
    }
    assert lab.merchants.summary()["creates"] == 1
    lab.verdict()


def test_an_order_on_both_queues_is_created_once(lab: FaultLab) -> None:
    """Submitted again after an error, it may have gone to the other queue."""
    poses = lab.open_poses()
    for pos in poses:
        lab.merchants.profile(pos, {"create": {"latency": 0.5}, "keyed": False})
    for percent in (0, 100):
        move(lab, percent)
        for pos in poses:
            lab.place(pos, *[f"{pos}-{number}" for number in range(10)])
    with lab.worker("-Q", "orders"), lab.worker(*CANARY):
        lab.settle()
        lab.wait_until_queued("orders", 0)
        lab.wait_until_queued("orders.canary", 0)
    assert lab.verdict(healthy=lambda _: True).in_doubt == []
