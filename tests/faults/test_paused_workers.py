"""Workers that are paused for longer than their lease, while another one takes over."""

import signal

from testkit.servers.rabbitmq import RabbitMQ
from tests.faults.lab import FaultLab


def test_paused_workers_send_nothing_after_a_takeover(lab: FaultLab, rabbitmq: RabbitMQ) -> None:
    """Their orders were looked up and then sent by others; their own claims have expired."""
    poses = lab.open_poses(request_timeout=2.0)  # less than a lease: a paused exchange is over
    with (
        lab.worker(failpoints="sending.committed=stop:3") as early,
        lab.worker(failpoints="byte.first=stop:3") as late,
    ):
        lab.wait_for_workers(2)
        lab.place_some(poses, each=12)
        early.wait_until_paused()
        late.wait_until_paused()
        with lab.worker():
            rabbitmq.drop_connections()  # as the broker does by itself without heartbeats
            lab.settle()
            early.send(signal.SIGCONT)
            late.send(signal.SIGCONT)
            lab.place_some(poses, each=2)
            lab.settle()
    verdict = lab.verdict()
    assert {merchant for merchant, _ in verdict.in_doubt} <= {"blind-0"}
