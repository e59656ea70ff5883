"""A RabbitMQ of three nodes that loses one: killed, partitioned, or frozen.

Workers, the backend and the event publisher know all three nodes. What a node confirmed, the other
two have; what it delivered, they redeliver. ``CLUSTER=10`` plays ten rounds, with the frozen node
in each of them, too: its clients notice only by their heartbeats, seconds later.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from pos_gateway.simulated_merchants.client import SimulatedMerchants
from testkit.servers.rabbitmq_cluster import NODES, Node, RabbitMQCluster
from tests.faults.lab import FaultLab

ROUNDS = int(os.environ.get("CLUSTER", "0"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[RabbitMQCluster]:
    with RabbitMQCluster() as cluster:
        yield cluster


@pytest.fixture
def lab(
    cluster: RabbitMQCluster,
    postgres_url: str,
    simulated_merchants: SimulatedMerchants,
    tmp_path: Path,
) -> Iterator[FaultLab]:
    simulated_merchants.reset()
    lab = FaultLab(cluster.add_vhost(), postgres_url, simulated_merchants, tmp_path)
    yield lab
    lab.close()
    simulated_merchants.reset()


@contextmanager
def killed(node: Node) -> Iterator[None]:
    node.kill()
    yield
    node.start()


@contextmanager
def frozen(node: Node) -> Iterator[None]:
    node.pause()
    yield
    node.resume()
    node.wait_until_running()


def test_losing_a_node_loses_and_doubles_no_order(cluster: RabbitMQCluster, lab: FaultLab) -> None:
    """Each time it is the leader of the queue of orders; two of three nodes go on without it."""
    poses = lab.open_poses(2)
    faults: list[Callable[[Node], AbstractContextManager[None]]] = [killed, cluster.cut_off]
    faults = [*faults, frozen] * ROUNDS if ROUNDS else faults
    with lab.worker() as one, lab.worker() as another:
        lab.wait_for_workers(2)
        assert cluster.members(lab.broker_url, "orders") == NODES
        for fault in faults:
            made = lab.merchants.summary()["creates"]
            lab.place_some(poses, each=8)
            lab.merchants.wait_until(creates=made + 10)
            with fault(cluster.leader(lab.broker_url, "orders")):
                lab.place_some(poses, each=4)
                lab.settle()
        lab.settle()
        assert (one.process.poll(), another.process.poll()) == (None, None)
    assert lab.verdict(healthy=lambda _: True).in_doubt == []
    assert lab.merchants.summary()["requests"] == len(lab.backend.placed)
