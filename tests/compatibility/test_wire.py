"""Two releases on one broker: each reads the other's messages."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection, Exchange, Queue

from pos_gateway.broker import topology
from pos_gateway.database.engine import open_database, upgrade
from pos_gateway.simulated_merchants.client import SimulatedMerchants
from tests.compatibility import scenario
from tests.compatibility.record import on_the_wire
from tests.compatibility.release import Release, releases, without_chance
from tests.worker.lab import Lab

every_release = pytest.mark.parametrize("release", releases(), ids=lambda each: each.version)
#: Headers that are not written any more: earlier releases take their absence for their value here,
#: False.
LEFT_OUT = "x-reserved"
#: The orders of the recorded messages, except for the dead-lettered one.
ORDERS = {"fresh", "canary", "parked-1", "parked-2", *scenario.LEFT}


@every_release
def test_an_earlier_release_reads_this_ones_messages(broker_url: str, release: Release) -> None:
    # An earlier release can't be tested with new fields. So there are none until no running release
    # wants the old form: see docs/upgrading.md.
    written = {name: without_chance(each) for name, each in on_the_wire(broker_url)}
    recorded = {name: without_chance(each) for name, each in release.messages.items()}
    assert not any(each["headers"].pop(LEFT_OUT, False) for each in recorded.values())
    assert written == recorded


@every_release
def test_this_release_accepts_an_earlier_ones_queues(broker_url: str, release: Release) -> None:
    with Connection(broker_url) as connection:
        for name, arguments in release.queues.items():
            Queue(name, Exchange("", "direct"), queue_arguments=arguments).bind(
                connection.channel()
            ).queue_declare()
        topology.declare(connection)


@pytest.fixture
def lab(
    broker_url: str,
    postgres_url: str,
    simulated_merchants: SimulatedMerchants,
    tmp_path: Path,
    release: Release,
) -> Iterator[Lab]:
    simulated_merchants.reset()
    engine = open_database(postgres_url)
    release.make_schema(engine)
    release.play(engine)
    upgrade(engine)
    engine.dispose()
    lab = Lab(broker_url, postgres_url, simulated_merchants, tmp_path)
    yield lab
    lab.close()


def publish_as_recorded(lab: Lab, message: dict[str, Any]) -> None:
    with Connection(lab.broker_url) as connection:
        connection.Producer().publish(
            message["body"].encode(),
            exchange=message["exchange"],
            routing_key=message["routing_key"],
            headers=message["headers"],
            **message["properties"],
        )


@every_release
def test_a_worker_finishes_every_order_of_an_earlier_release(lab: Lab, release: Release) -> None:
    lab.open_merchants(scenario.MERCHANT)
    lab.client.connect()
    for name, message in release.messages.items():
        if name != "dead letter":
            publish_as_recorded(lab, message)
    with lab.worker():
        told = lab.events_until_all_ended(ORDERS)
    last = {event["order_id"]: event["type"] for event in told}
    assert {order: last[order] for order in ORDERS} == dict.fromkeys(ORDERS, "order.accepted")
    # Events that the earlier release had published are not published again, and positions go on.
    assert [event["position"] for event in told] == list(range(4, 4 + len(told)))
    assert lab.queued(topology.DEAD_KEY) == 0
