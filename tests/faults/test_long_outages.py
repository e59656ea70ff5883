"""A database and a broker that are unavailable for longer than RabbitMQ's consumer timeout.

One worker has the outcomes of delivered orders in memory meanwhile. That worker must live, even
without its channel: each order is created by one request, and none is in doubt.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from testkit.servers.proxy import Proxy
from testkit.servers.rabbitmq import RabbitMQ
from tests.faults.lab import FaultLab
from tests.worker.lab import GREEN, WorkerProcess

#: RabbitMQ's consumer timeout here in seconds; half an hour by default.
CONSUMER_TIMEOUT = 1.5
BROKER_LOST, NOT_CONNECTED = "Connection to broker lost", "broker.not_connected"


@pytest.mark.parametrize(
    ("app", "flags"),
    [(GREEN, ()), ("pos_gateway", ("-P", "prefork", "-c", "3"))],
    ids=["green", "synchronous"],
)
def test_a_database_away_for_longer_than_the_consumer_timeout_costs_a_channel_and_no_outcome(
    lab: FaultLab, rabbitmq: RabbitMQ, app: str, flags: tuple[str, ...]
) -> None:
    with (
        Proxy(lab.database_url) as database,
        rabbitmq.consumer_timeout(CONSUMER_TIMEOUT),
        orders_at_their_poses(lab, *flags, app=app, database_url=database.url) as (worker, release),
    ):
        database.down()
        release()
        worker.wait_for_more(BROKER_LOST, 2)
        database.heal()


def test_a_broker_and_a_database_that_are_away_together_for_long_lose_no_outcome(
    lab: FaultLab, rabbitmq: RabbitMQ
) -> None:
    """The broker is back first: it delivers orders whose outcomes cannot be committed yet."""
    with (
        Proxy(lab.database_url) as database,
        orders_at_their_poses(lab, database_url=database.url) as (worker, release),
    ):
        database.down()
        rabbitmq.kill()
        release()
        worker.wait_for_more(NOT_CONNECTED, 3)
        rabbitmq.start()
        with rabbitmq.consumer_timeout(CONSUMER_TIMEOUT):
            # A worker that is back already has a minute for its channels.
            rabbitmq.drop_connections()
            worker.wait_for_more(BROKER_LOST, 3)
        database.heal()


def test_a_broker_that_refuses_the_worker_for_a_while_loses_no_outcome(
    lab: FaultLab, rabbitmq: RabbitMQ
) -> None:
    """Its password is changed, and changed back: a refused login does not end a worker."""
    url = rabbitmq.add_user("worker", lab.broker_url)
    with orders_at_their_poses(lab, broker_url=url) as (worker, release):
        rabbitmq.set_password("worker", "another")
        rabbitmq.drop_connections()
        release()
        worker.wait_for_more("Cannot connect to", 2)
        rabbitmq.set_password("worker", "worker")


@contextmanager
def orders_at_their_poses(
    lab: FaultLab, *flags: str, **settings: str
) -> Iterator[tuple[WorkerProcess, Callable[[], None]]]:
    """A worker with an order at a POS of each guarantee, and what has them reply to it.

    At the end all orders are checked.
    """
    poses = lab.open_poses()

    def treat(kind: str) -> None:
        for pos in poses:
            profile = {"create": {"kind": kind}, "keyed": pos.startswith("keyed")}
            lab.merchants.profile(pos, profile, release=True)

    treat("hang")
    with lab.worker(*flags, **settings) as worker:
        lab.place_some(poses, each=1)
        lab.merchants.wait_until(in_flight=len(poses))
        yield worker, lambda: treat("accept")
        lab.settle()
        assert worker.process.poll() is None, worker.log[-2000:]
    assert lab.verdict(healthy=lambda _: True).in_doubt == []
    assert lab.merchants.summary()["requests"] == len(poses)
