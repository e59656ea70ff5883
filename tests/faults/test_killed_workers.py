"""Workers that are killed at every failpoint of an order's way."""

import signal

from pos_gateway.runtime.failpoints import OF_ORDERS
from tests.faults.lab import FaultLab


def test_orders_whose_workers_are_killed_at_every_failpoint_are_neither_lost_nor_doubled(
    lab: FaultLab,
) -> None:
    """One worker after the other, at POSes of every guarantee at once."""
    poses = lab.open_poses(2, request_timeout=5.0)
    may_be_in_doubt = 0
    for point in sorted(OF_ORDERS):
        lab.place_some(poses, each=2)
        with lab.worker(failpoints=f"{point}=kill:3") as worker:
            assert worker.wait() == -signal.SIGKILL, worker.log[-2000:]
            may_be_in_doubt += lab.left_in_sending(worker, "blind")
    with lab.worker():
        lab.settle()
    verdict = lab.verdict()
    assert {merchant for merchant, _ in verdict.in_doubt} <= {"blind-0", "blind-1"}
    assert len(verdict.in_doubt) <= may_be_in_doubt
