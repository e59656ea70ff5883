"""Orders that two workers receive, one after the other or at once."""

import signal

from tests.faults.lab import FaultLab
from tests.orders import an_order


def test_an_order_submitted_twice_to_two_workers_is_created_once(lab: FaultLab) -> None:
    poses = lab.open_poses()
    for pos in poses:
        lab.merchants.profile(pos, {"create": {"latency": 0.5}, "keyed": False})
    with lab.worker(), lab.worker():
        for number in range(20):
            for pos in poses:
                order = an_order(f"o{number}", pos)
                lab.backend.place(order)
                lab.backend.place(order)
        lab.settle()
    assert lab.verdict(healthy=lambda _: True).in_doubt == []


def test_a_pending_order_is_looked_up_by_the_next_worker(
    lab: FaultLab,
) -> None:
    lab.open_merchants("m")
    lab.merchants.profile("m", {"kind": "pending", "decided_after": None})
    lab.place("m", "o1")
    with lab.worker() as worker:
        lab.wait_for_events("o1", 1)  # not its row, which is there before its event
        worker.send(signal.SIGKILL)
        worker.wait()
    lab.merchants.profile("m", {"create": {"kind": "reset"}, "lookups": {"kind": "accept"}})
    lab.backend.cancel("m", "o1")
    with lab.worker():
        lab.settle()
    assert [event["type"] for event in lab.backend.events("o1")] == [
        "order.pending",
        "order.cancelled",
    ]
    assert lab.merchants.summary()["requests"] == 1
    lab.verdict()
