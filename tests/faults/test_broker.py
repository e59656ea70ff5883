"""A broker that fails in every way, and one that redelivers a message it thinks forgotten."""

from testkit.servers.proxy import Proxy
from testkit.servers.rabbitmq import RabbitMQ
from tests.faults.lab import FaultLab


def test_every_order_is_created_once_and_has_an_event_whatever_happens_to_the_broker(
    lab: FaultLab, rabbitmq: RabbitMQ
) -> None:
    poses = lab.open_poses(3)

    def killed() -> None:
        rabbitmq.kill()
        rabbitmq.start()

    def full() -> None:
        with rabbitmq.memory_alarm():
            lab.merchants.wait_until(idle=True)

    with Proxy(lab.broker_url) as proxy, lab.worker(broker_url=proxy.url):
        for fault in (proxy.cut, killed, full, rabbitmq.drop_connections):
            made = lab.merchants.summary()["creates"]
            lab.place_some(poses, each=5)
            lab.merchants.wait_until(creates=made + 10)
            fault()
        lab.settle()
    assert lab.verdict(healthy=lambda _: True).in_doubt == []
    events = [event for told in lab.backend.told.values() for event in told]
    positions = {event["id"]: event["position"] for event in events}
    assert all(positions[event["id"]] == event["position"] for event in events)
    assert sorted(positions.values()) == list(range(1, len(positions) + 1))


def test_an_order_redelivered_while_it_is_being_sent_is_not_sent_again(
    lab: FaultLab, rabbitmq: RabbitMQ
) -> None:
    """``consumer_timeout``: the broker closes the channel of an unacknowledged message."""
    poses = lab.open_poses(request_timeout=15.0)
    for pos in poses:
        slow = {"create": {"kind": "hang", "hangs_for": 8.0}, "keyed": False}
        lab.merchants.profile(pos, slow)
    with rabbitmq.consumer_timeout(2.0), lab.worker() as worker:
        lab.place_some(poses, each=2)
        worker.wait_for_log("PRECONDITION_FAILED")
        lab.settle()
        assert worker.process.poll() is None
    assert lab.verdict(healthy=lambda _: True).in_doubt == []
    assert lab.merchants.summary()["requests"] == len(lab.backend.placed)
