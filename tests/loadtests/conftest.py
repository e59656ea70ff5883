"""What the benchmark's runs need."""

import pytest

from loadtests.bench.servers import Servers
from testkit.servers.postgresql import PostgreSQL
from testkit.servers.rabbitmq import RabbitMQ


@pytest.fixture
def servers(rabbitmq: RabbitMQ, postgresql: PostgreSQL) -> Servers:
    """Those of a benchmark, whatever another test did to them."""
    rabbitmq.start()
    postgresql.start()
    return Servers(rabbitmq, postgresql)
