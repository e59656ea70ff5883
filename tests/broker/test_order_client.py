"""What the order backend sees of the gateway."""

import re
import socket
import subprocess
import sys
from typing import Any

import pytest
from kombu import Connection

from pos_gateway.broker import wire
from pos_gateway.client import OrderClient, in_canary
from pos_gateway.domain.errors import (
    BrokerUnavailable,
    InvalidOrder,
    MessageTooLarge,
    Unroutable,
)
from pos_gateway.domain.split import Split
from pos_gateway.routing.splits import FIRST, SplitWatch
from pos_gateway.settings import Settings
from pos_gateway.worker.dead_lettering import body_of
from testkit.patience import PATIENCE
from testkit.servers.rabbitmq import RabbitMQ
from tests.orders import an_order

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def queued(broker_url: str, queue: str) -> list[str]:
    """The ids of the messages in a queue, which is empty afterwards."""
    with Connection(broker_url) as connection:
        channel = connection.default_channel
        ids = []
        while (message := channel.basic_get(queue, no_ack=True)) is not None:
            ids.append(message.properties["message_id"])
        return ids


def test_an_order_that_was_submitted_is_in_the_queue(broker_url: str) -> None:
    with OrderClient(broker_url, timeout=PATIENCE) as client:
        client.submit(an_order("o1"))
    assert queued(broker_url, "orders") == ["o1"]


def test_a_broker_that_refuses_says_what_to_set(broker_url: str) -> None:
    """The password is not in the sentence."""
    wrong = broker_url.replace("guest:guest", "guest:hunter2")
    refused = (
        r"refuses this user or password \(ACCESS_REFUSED\); set them in POS_GATEWAY_BROKER_URL"
    )
    with OrderClient(wrong) as client, pytest.raises(BrokerUnavailable, match=refused) as raised:
        client.submit(an_order("o1"))
    assert "hunter2" not in str(raised.value)


def test_many_orders_have_a_result_each_in_order(broker_url: str) -> None:
    orders: list[Any] = [an_order(f"o{number}") for number in range(2500)]
    orders[7] = an_order("wrong", total="a lot")
    orders[8] = {"x": 1}
    orders[9] = an_order("late", seconds=-0.5)
    with OrderClient(broker_url, timeout=PATIENCE) as client:
        results = client.submit_many(iter(orders))
        assert client.submit_many([]) == []
        [late] = client.submit_many([orders[9]], again=True)
    assert [each.order_id for each in results[6:11]] == ["o6", "wrong", "", "late", "o10"]
    assert [each.state for each in results[6:11]] == ["submitted", None, None, None, "submitted"]
    assert all(isinstance(each.error, InvalidOrder) for each in results[7:10])
    assert late.state == "submitted"
    expected = [f"o{number}" for number in range(2500) if number not in (7, 8, 9)] + ["late"]
    assert queued(broker_url, "orders") == expected


def test_reading_the_split_is_part_of_the_first_call_s_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits, timeouts = [], []
    with socket.create_server(("127.0.0.1", 0)) as silent:  # its kernel accepts, and nothing comes
        client = OrderClient(f"amqp://u:p@127.0.0.1:{silent.getsockname()[1]}//", timeout=0.4)
        split = SplitWatch.split

        def waiting(watch: SplitWatch, wait: float = FIRST) -> Split | None:
            waits.append(wait)
            return split(watch, wait)

        monkeypatch.setattr(SplitWatch, "split", waiting)
        monkeypatch.setattr(
            client._publisher, "publish", lambda _, timeout: timeouts.append(timeout)
        )
        client.submit(an_order("o1"))
        client.close()
    assert waits == [0.2]
    assert timeouts[0] <= 0.2


def test_many_orders_fail_together_when_the_broker_is_down() -> None:
    with OrderClient("amqp://127.0.0.1:1//", timeout=5) as client:
        results = client.submit_many([an_order("o1"), an_order(total="a lot"), an_order("o3")])
    errors = [type(each.error) for each in results]
    assert errors == [BrokerUnavailable, InvalidOrder, BrokerUnavailable]


def test_an_order_that_the_broker_finds_too_long_is_refused_alone(
    broker_url: str, rabbitmq: RabbitMQ
) -> None:
    """The broker closes the channel at it, and takes nothing that was written behind it."""
    limit = rabbitmq.eval("{ok, Limit} = application:get_env(rabbit, max_message_size), Limit")
    rabbitmq.eval("application:set_env(rabbit, max_message_size, 5000)")
    rabbitmq.eval("persistent_term:put(max_message_size, 5000)")
    try:
        orders = [an_order(f"o{number}") for number in range(20)]
        for number in (3, 11):
            orders[number] = an_order(f"o{number}", x="y" * 6000)
        with OrderClient(broker_url, timeout=PATIENCE) as client:
            results = client.submit_many(orders)
            with pytest.raises(MessageTooLarge, match="max size 5000"):
                client.submit(orders[3])
    finally:
        rabbitmq.eval(f"application:set_env(rabbit, max_message_size, {limit})")
        rabbitmq.eval(f"persistent_term:put(max_message_size, {limit})")
    refused = [each.order_id for each in results if isinstance(each.error, MessageTooLarge)]
    assert refused == ["o3", "o11"]
    assert sum(each.error is None for each in results) == 18
    assert {*queued(broker_url, "orders")} == {f"o{n}" for n in range(20)} - {"o3", "o11"}


def test_an_invalid_order_names_its_field_and_is_not_sent(broker_url: str) -> None:
    with OrderClient(broker_url, timeout=PATIENCE) as client:
        with pytest.raises(InvalidOrder) as caught:
            client.submit(an_order(total="a lot"))
        assert caught.value.field == "total"
        with pytest.raises(InvalidOrder, match="deliver_by"):
            client.submit(an_order(seconds=-0.5))
        client.connect()
    assert queued(broker_url, "orders") == []


def test_a_late_order_is_submitted_only_as_one_that_may_have_been_before(broker_url: str) -> None:
    with OrderClient(broker_url, timeout=PATIENCE) as client:
        with pytest.raises(InvalidOrder, match="again=True"):
            client.submit(an_order("o1", seconds=-0.5))
        client.submit(an_order("o1", seconds=-0.5), again=True)
        with pytest.raises(InvalidOrder, match="total"):
            client.submit(an_order(total="a lot"), again=True)
    assert queued(broker_url, "orders") == ["o1"]


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"x": nested(198)}, "x", "nest it less deeply"),
        ({"notes": "n", "fulfillment": {"x": nested(220)}}, "fulfillment", "nest it less deeply"),
        ({"x": 10**5000}, "x", "as texts"),
        (
            {"order_id": 'A"1', "x": "y" * 300_000, "z": "y"},
            "(record)",
            "262144 are allowed; shorten x",
        ),
        ({"x": [[]] * 20_000}, "(record)", "20000 are allowed; shorten x"),
    ],
    ids=["deep", "deep in a field of ours", "long number", "long", "many lists"],
)
def test_what_no_worker_could_read_is_not_sent(
    broker_url: str, fields: dict[str, Any], field: str, words: str
) -> None:
    """It would be dead-lettered without an event: most of it says nothing of whose it is."""
    with OrderClient(broker_url, timeout=PATIENCE) as client:
        with pytest.raises(InvalidOrder, match=re.escape(words)) as caught:
            client.submit(an_order(**fields))
        client.connect()
    assert caught.value.field == field
    assert queued(broker_url, "orders") == []


@pytest.mark.parametrize(
    "value",
    [nested(197), 10**4000, "y" * 200_000, [[]] * 19_000],
    ids=["deep", "long number", "long", "many lists"],
)
def test_whatever_is_sent_a_worker_can_read(broker_url: str, value: Any) -> None:
    with OrderClient(broker_url, timeout=PATIENCE) as client:
        client.submit(an_order("o1", x=value))
    with Connection(broker_url) as connection:
        message = connection.default_channel.basic_get("orders", no_ack=True)
    body = body_of(message)
    wire.require_small(body, Settings.model_fields["max_order_bytes"].default)
    [[order], _, _] = wire.decoded(body)
    assert order["x"] == value
    assert "expiration" not in message.properties  # RabbitMQ would dead-letter it without an event


def test_how_long_an_order_may_be_is_what_the_workers_take(
    broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = an_order(notes="x" * 2000)
    with OrderClient(broker_url, max_order_bytes=2000) as client, pytest.raises(InvalidOrder):
        client.submit(order)
    monkeypatch.setenv("POS_GATEWAY_MAX_ORDER_BYTES", "2000")
    with (
        OrderClient(broker_url, timeout=PATIENCE) as client,
        pytest.raises(InvalidOrder, match="2000 are allowed"),
    ):
        client.submit(order)


def test_a_broker_that_is_down_is_a_typed_error() -> None:
    with pytest.raises(BrokerUnavailable):
        OrderClient("amqp://guest:guest@127.0.0.1:1//").submit(an_order())


def test_an_order_that_no_queue_takes_is_a_typed_error(broker_url: str) -> None:
    with OrderClient(broker_url, timeout=PATIENCE) as client:
        client.connect()
        with Connection(broker_url) as connection:
            connection.default_channel.queue_delete("orders")
        with pytest.raises(Unroutable):
            client.submit(an_order())


def test_orders_go_to_the_canary_merchant_by_merchant(broker_url: str) -> None:
    merchants = [f"m{n}" for n in range(200)]
    chosen = {merchant for merchant in merchants if in_canary(merchant, 25)}
    assert 25 <= len(chosen) <= 75
    with OrderClient(broker_url, canary_percent=25) as client:
        for merchant in merchants:
            client.submit(an_order(merchant, merchant))
    assert set(queued(broker_url, "orders.canary")) == chosen
    assert set(queued(broker_url, "orders")) == set(merchants) - chosen


def test_merchants_stay_in_the_canary_while_it_grows() -> None:
    merchants = [f"m{n}" for n in range(1000)]
    previous: set[str] = set()
    for percent in (0, 1, 10, 50, 100):
        chosen = {merchant for merchant in merchants if in_canary(merchant, percent)}
        assert chosen >= previous
        previous = chosen
    assert previous == set(merchants)


def test_the_canary_percent_comes_from_the_environment(
    broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POS_GATEWAY_CANARY_PERCENT", "100")
    with OrderClient(broker_url, timeout=PATIENCE) as client:
        client.submit(an_order("o1"))
    assert queued(broker_url, "orders.canary") == ["o1"]


def test_the_client_brings_neither_gevent_nor_the_worker_with_it() -> None:
    program = (
        "import sys, pos_gateway.client; "
        "print([m for m in ('gevent', 'celery', 'sqlalchemy', 'requests') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("program", "shown", "trace"),
    [
        ("", False, None),  # a backend without OpenTelemetry
        ("from opentelemetry import trace", True, None),  # imported, and not used
        (
            # One whose proxy has begun the trace, and that has nothing but the interface.
            "from opentelemetry import context, trace; "
            "from opentelemetry.trace.propagation import tracecontext as w3c; "
            f"found = w3c.TraceContextTextMapPropagator().extract({{'traceparent': {PARENT!r}}}); "
            "context.attach(found)",
            True,
            PARENT,
        ),
    ],
)
def test_the_client_uses_opentelemetry_if_its_program_does(
    broker_url: str, program: str, shown: bool, trace: str | None
) -> None:
    """It sets nothing up itself: that is the program's."""
    program = f"""
{program}
import sys
from pos_gateway.client import OrderClient
from tests.orders import an_order
with OrderClient({broker_url!r}) as client:
    client.submit(an_order("o1"))
print([name for name in sys.modules if name.startswith("opentelemetry.")] != [])
print("opentelemetry.sdk" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == [str(shown), "False"], done.stderr
    with Connection(broker_url) as connection:
        message = connection.default_channel.basic_get("orders", no_ack=True)
    assert message.headers.get("traceparent") == trace


def test_the_client_works_in_a_process_that_gevent_has_patched(broker_url: str) -> None:
    program = f"""
from gevent import monkey; monkey.patch_all()
import gevent
from pos_gateway.client import OrderClient
from tests.orders import an_order
client = OrderClient({broker_url!r})
jobs = [gevent.spawn(client.submit, an_order(f"o{{n}}")) for n in range(200)]
gevent.joinall(jobs, raise_error=True)
client.close()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(queued(broker_url, "orders")) == 200
