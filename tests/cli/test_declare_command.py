"""``pos-gateway declare``, and the commands of a broker user who may not."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from kombu import Connection

from pos_gateway.broker import topology
from pos_gateway.broker.message import Message
from pos_gateway.broker.publisher import Publisher
from testkit.servers.rabbitmq import RabbitMQ
from tests.cli.books import Letters
from tests.cli.conftest import Program, press_ctrl_c

MakeOrder = Callable[..., dict[str, Any]]

#: Commands, by what they are without configure once everything is declared: done, or refused for that right.
DONE = (
    ("enqueue", "-"),
    ("cancel", "o-1", "--merchant", "m-1"),
    ("dlq", "replay", "--all", "--yes"),
    ("canary", "status"),
    ("canary", "abort"),
)
REFUSED = {
    ("declare",): "exchange 'orders'",
    ("canary", "set", "0", "--pin", "m-1"): "queue 'orders.canary.split.turn'",
    ("events", "tail"): "queue 'amq.gen-",
}


@pytest.fixture
def limited(migrated: Program, connected: Program, rabbitmq: RabbitMQ, broker_url: str) -> Program:
    """The program with a broker user who may read and write, and not configure."""
    url = rabbitmq.add_user("few", broker_url, configure="")
    connected.settings["POS_GATEWAY_BROKER_URL"] = url
    return connected


def test_declare_makes_everything_and_is_harmless_again(
    limited: Program, broker_url: str, letters: Letters, order: MakeOrder
) -> None:
    for _ in range(2):
        done = limited.invoke("declare", POS_GATEWAY_BROKER_URL=broker_url)
        assert done.output.endswith(" has all exchanges and queues\n"), done.output
        assert "guest:guest" not in done.output
    letters.order(order("o-1"))
    for command in DONE:
        stdin = json.dumps(order("o-2")) if command[0] == "enqueue" else ""
        done = limited.invoke(*command, stdin=stdin)
        assert done.exit_code == 0, (command, done.output)
    with Connection(broker_url) as connection:
        there = connection.default_channel.queue_declare("orders", passive=True)
    assert there.message_count == 3, "the order, the cancel request and the dead letter"


def test_what_takes_more_than_to_read_and_write_names_the_right(
    limited: Program, broker_url: str
) -> None:
    assert limited.invoke("declare", POS_GATEWAY_BROKER_URL=broker_url).exit_code == 0
    with (
        Connection(broker_url) as connection,
        connection.Consumer([topology.canary_queue], on_message=lambda _: None),
    ):
        for command, what in REFUSED.items():
            done = limited.invoke(*command)
            assert (done.exit_code, done.stdout) == (1, ""), command
            [said] = done.stderr.splitlines()
            assert f"access to {what}" in said, command
            assert said.endswith("; grant this user configure (rabbitmqctl set_permissions)")
            assert "few:few" not in said


def test_without_the_queues_each_names_the_command_that_declares_them(
    limited: Program, order: MakeOrder
) -> None:
    for command in (*DONE, *REFUSED, ("events", "run")):
        if command in {("declare",), ("dlq", "replay", "--all", "--yes")}:
            continue  # that one is for a user who may; no dead letters: nothing to replay
        done = limited.invoke(*command, stdin=json.dumps(order("o-2")))
        assert done.exit_code == 1, command
        assert "no queue 'order" in done.stderr, command
        assert "run pos-gateway declare as a user who has configure" in done.stderr, command


def test_events_are_followed_by_a_user_who_may_make_the_queue_for_that_alone(
    limited: Program, rabbitmq: RabbitMQ, broker_url: str
) -> None:
    assert limited.invoke("declare", POS_GATEWAY_BROKER_URL=broker_url).exit_code == 0
    rabbitmq.add_user("few", broker_url, configure="^amq[.]gen-")
    tail = limited.start("events", "tail")
    assert tail.stderr is not None and tail.stdout is not None
    assert tail.stderr.readline() == "listening; Ctrl-C ends\n"
    publisher = Publisher(limited.settings["POS_GATEWAY_BROKER_URL"])
    event = {"id": "e-1", "position": 1, "type": "order.accepted", "order_id": "o-1"}
    publisher.publish(Message("order-events", "order.accepted", json.dumps(event).encode(), "e-1"))
    publisher.close()
    assert "o-1" in tail.stdout.readline()
    press_ctrl_c(tail)
