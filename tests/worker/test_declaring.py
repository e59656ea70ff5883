"""What a worker declares, and one whose broker user may read and write, and not configure."""

from collections.abc import Callable

import pytest
from kombu import Connection

from pos_gateway.broker import topology
from testkit.servers.rabbitmq import RabbitMQ
from tests.worker.lab import GREEN, Lab, by_type

Declare = Callable[[], None]


@pytest.fixture
def declare(broker_url: str) -> Declare:
    """Declares everything, as a user who may."""

    def declare() -> None:
        with Connection(broker_url) as connection:
            topology.declare_all(connection)

    return declare


@pytest.fixture
def may_not(rabbitmq: RabbitMQ, broker_url: str) -> str:
    """The URL of a user who may not configure."""
    return rabbitmq.add_user("few", broker_url, configure="")


def test_retries_come_back_to_a_queue_that_was_deleted_and_is_declared_again(lab: Lab) -> None:
    lab.open_merchants("m")
    lab.merchants.profile("m", {"kind": "limit", "retry_after": "1"})
    with lab.worker() as worker:
        lab.wait_for_worker()
        with Connection(lab.broker_url) as connection:
            connection.default_channel.queue_delete("orders")
            worker.wait_for_log("Connection to broker lost")
            topology.declare(connection)  # as the worker does, now or a moment later
        lab.wait_for_worker()
        lab.submit("m", "o1")
        lab.wait_until_some_are_parked()
        lab.merchants.profile("m", {"kind": "accept"})
        assert by_type(lab.events_until_all_ended(["o1"])) == {"order.accepted": ["o1"]}


@pytest.mark.parametrize("app", [GREEN, "pos_gateway"])
def test_it_delivers_and_its_retries_come_back_from_the_delay_queues(
    lab: Lab, rabbitmq: RabbitMQ, declare: Declare, may_not: str, app: str
) -> None:
    declare()
    lab.open_merchants("fast-1", "m")
    lab.merchants.profile("m", {"kind": "limit", "retry_after": "1"})
    lab.submit("fast-1", "o1")
    lab.submit("m", "o2")
    flags = () if app == GREEN else ("-P", "prefork", "-c", "2")
    with lab.worker(*flags, app=app, broker_url=may_not):
        lab.events_until_all_ended(["o1"])
        lab.wait_until_some_are_parked()
        lab.merchants.profile("m", {"kind": "accept"})
        told = by_type(lab.events_until_all_ended(["o2"]))
    assert told["order.accepted"] == ["o2"]


def test_one_whose_right_is_taken_reconnects(lab: Lab, rabbitmq: RabbitMQ) -> None:
    url = rabbitmq.add_user("few", lab.broker_url)
    lab.open_merchants("fast-1")
    with lab.worker(broker_url=url):
        lab.wait_for_worker()
        rabbitmq.add_user("few", lab.broker_url, configure="")
        rabbitmq.drop_connections()
        lab.submit("fast-1", "o1")
        assert by_type(lab.events_until_all_ended(["o1"])) == {"order.accepted": ["o1"]}


@pytest.mark.parametrize(
    ("there", "missing"), [(None, "orders"), (topology.declare, "celery_delayed_0")]
)
def test_one_that_may_not_declare_what_is_missing_refuses_to_start_and_names_the_command(
    lab: Lab,
    rabbitmq: RabbitMQ,
    may_not: str,
    there: Callable[[Connection], object] | None,
    missing: str,
) -> None:
    if there is not None:
        with Connection(lab.broker_url) as connection:
            there(connection)
    with lab.worker(broker_url=may_not) as worker:
        assert worker.wait() == 78
    [said] = [line for line in worker.log.splitlines() if "does not start" in line]
    assert said.startswith(f"pos-gateway does not start: no queue {missing!r} in vhost")
    assert said.endswith("run pos-gateway declare as a user who has configure")
    assert "Traceback" not in worker.log


def test_one_whose_queue_is_deleted_waits_until_it_is_declared_again(
    lab: Lab, rabbitmq: RabbitMQ, declare: Declare, may_not: str
) -> None:
    declare()
    lab.open_merchants("fast-1")
    with lab.worker(broker_url=may_not) as worker:
        lab.wait_for_worker()
        with Connection(lab.broker_url) as connection:
            connection.default_channel.queue_delete("orders.canary")
        worker.wait_for_log("no queue 'orders.canary' in vhost")
        declare()
        lab.submit("fast-1", "o1")
        assert by_type(lab.events_until_all_ended(["o1"])) == {"order.accepted": ["o1"]}
        assert "Traceback" not in worker.log
