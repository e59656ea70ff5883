"""``pos-gateway events tail``: a copy of the events, and none taken from the backend."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kombu import Connection

from loadtests.servers.rabbitmq import RabbitMQ
from pos_gateway.broker import topology
from pos_gateway.broker.publisher import Publisher
from pos_gateway.events.event import dehydrated, hydrated
from pos_gateway.ledger.states import Key
from pos_gateway.outcome import Kind, Outcome, Reason
from tests.cli.conftest import Program, press_ctrl_c

Publish = Callable[..., None]


@pytest.fixture
def publish(broker_url: str) -> Iterator[Publish]:
    """Publishes events as workers do."""
    publisher = Publisher(broker_url)

    def publish(kind: Kind = Kind.ACCEPTED, *, order: str = "o-1", merchant: str = "m-1") -> None:
        key = Key(merchant, order)
        event = hydrated(
            dehydrated(key, kind),
            key,
            Outcome(kind, Reason("why", "because \x1b[31m"), external_id="x-1"),
            at=time.time(),
            attempts=2,
            order_json=b"{}",
        )
        publisher.publish(event)

    yield publish
    publisher.close()


@contextmanager
def listening(program: Program, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """The command, once it would see an event."""
    process = program.start("events", "tail", *arguments)
    assert process.stderr is not None
    assert process.stderr.readline() == "listening; Ctrl-C ends\n"
    yield process


def events(process: "subprocess.Popen[str]", count: int) -> list[dict[str, Any]]:
    assert process.stdout is not None
    return [json.loads(process.stdout.readline()) for _ in range(count)]


def test_an_event_is_one_readable_line_and_the_backend_gets_it_too(
    connected: Program, publish: Publish, broker_url: str
) -> None:
    with listening(connected) as tail:
        publish(Kind.REJECTED, order="o-7")
        assert tail.stdout is not None
        line = tail.stdout.readline()
        assert "rejected   merchant m-1  order o-7  POS id x-1  attempts 2  why: because" in line
        assert "\x1b" not in line
        assert press_ctrl_c(tail) == ("", "")
        assert tail.returncode == 0
    with Connection(broker_url) as connection:
        queue = topology.events_queue.bind(connection.channel())
        assert queue.queue_declare(passive=True)[1] == 1


def test_types_are_filtered_and_a_limit_ends_it(connected: Program, publish: Publish) -> None:
    types = ("--type", "failed", "--type", "order.in_doubt")
    with listening(connected, "--json", "--limit", "2", *types) as tail:
        for kind in (Kind.ACCEPTED, Kind.FAILED, Kind.PENDING, Kind.IN_DOUBT):
            publish(kind)
        assert [e["type"] for e in events(tail, 2)] == ["order.failed", "order.in_doubt"]
        assert tail.wait(30) == 0


def test_a_merchant_and_an_order_are_filtered(connected: Program, publish: Publish) -> None:
    with listening(connected, "--json", "--merchant", "m-2", "--order", "b") as tail:
        for merchant, order in (("m-1", "b"), ("m-2", "a"), ("m-2", "b")):
            publish(merchant=merchant, order=order)
        [event] = events(tail, 1)
        assert (event["merchant_id"], event["order_id"]) == ("m-2", "b")


def test_it_connects_again_after_a_lost_connection(
    connected: Program, publish: Publish, rabbitmq: RabbitMQ
) -> None:
    with listening(connected, "--json") as tail:
        rabbitmq.drop_connections()
        assert tail.stderr is not None
        assert "the broker is gone, events may be missed" in tail.stderr.readline()
        assert tail.stderr.readline() == "listening again\n"
        publish(order="after")
        assert events(tail, 1)[0]["order_id"] == "after"


def test_a_broker_that_is_down_is_one_sentence(program: Program) -> None:
    done = program.run("events", "tail")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("pos-gateway: cannot follow the events at amqp://")
    assert len(done.stderr.splitlines()) == 1


def test_a_type_that_is_none_is_refused(program: Program) -> None:
    done = program.run("events", "tail", "--type", "retry")
    assert done.returncode == 2
    assert "in_doubt" in done.stderr
