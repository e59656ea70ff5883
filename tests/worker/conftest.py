"""A lab for each test, or one with a worker for a file; the simulated merchants are reset."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pos_gateway.simulated_merchants.client import SimulatedMerchants
from testkit.servers.rabbitmq import RabbitMQ
from tests.worker.lab import Lab


@pytest.fixture
def lab(
    broker_url: str, database_url: str, simulated_merchants: SimulatedMerchants, tmp_path: Path
) -> Iterator[Lab]:
    simulated_merchants.reset()
    lab = Lab(broker_url, database_url, simulated_merchants, tmp_path)
    yield lab
    lab.close()
    simulated_merchants.reset()


@pytest.fixture(scope="module")
def lab_with_a_worker(
    rabbitmq: RabbitMQ,
    simulated_merchants: SimulatedMerchants,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Lab]:
    """A lab for the tests of a file, in which a green worker runs."""
    rabbitmq.start()
    url, folder = rabbitmq.add_vhost(), tmp_path_factory.mktemp("lab")
    lab = Lab(url, f"sqlite:///{folder / 'pos_gateway.db'}", simulated_merchants, folder)
    with lab.worker():
        lab.wait_for_worker()
        yield lab
    lab.close()
    rabbitmq.give_back(url)


@pytest.fixture
def served(lab_with_a_worker: Lab) -> Iterator[Lab]:
    """The lab with a worker, for a test that leaves no order, event or dead letter behind.

    Workers remember merchants and orders: each test has ids of its own.
    """
    lab_with_a_worker.merchants.reset()
    yield lab_with_a_worker
    lab_with_a_worker.merchants.reset()
    assert [
        lab_with_a_worker.queued(each) for each in ("orders", "order-events", "orders.dead")
    ] == [*(0, 0, 0)]
