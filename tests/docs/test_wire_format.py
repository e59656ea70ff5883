"""docs/wire-format.md, which backends in other languages are built on, matches the code."""

import ast
import hashlib
import json
import math
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from pos_gateway.adapters.steps import NOT_REFUNDED
from pos_gateway.broker import topology, wire
from pos_gateway.broker.publisher import Publisher
from pos_gateway.client import in_canary
from pos_gateway.domain import outcome
from pos_gateway.domain.order import CancelRequest, Order
from pos_gateway.domain.outcome import Kind, Lifecycle
from pos_gateway.domain.split import Split
from pos_gateway.events.event import dehydrated
from pos_gateway.events.hydration import Hydration
from pos_gateway.events.outbox import Row
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import NOT_UNDONE, Key
from pos_gateway.routing.splits import message_of
from pos_gateway.runtime.vault import Vault
from pos_gateway.settings import Settings

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "wire-format.md").read_text()


def section(title: str) -> str:
    """The text between a heading and the next one of its level or above."""
    marks = re.search(rf"^(#+) {re.escape(title)}$", TEXT, re.MULTILINE)
    assert marks, f"there is no heading {title!r}"
    following = TEXT[marks.end() :]
    end = re.search(rf"^#{{1,{len(marks[1])}}} ", following, re.MULTILINE)
    return following[: end.start()] if end else following


def block(title: str, language: str) -> str:
    """The first code block of a language in a section."""
    found = re.search(rf"^```{language}\n(.*?)\n```$", section(title), re.MULTILINE | re.DOTALL)
    assert found, f"{title!r} has no {language} block"
    return found[1]


def example_order() -> dict[str, Any]:
    [order], *rest = json.loads(block("An example, byte for byte", "json"))
    assert rest == [{}, {}]
    assert isinstance(order, dict)
    return order


def test_the_example_order_is_valid_by_the_schema() -> None:
    schema = json.loads((ROOT / "docs" / "order.schema.json").read_text())
    Draft202012Validator(schema).validate(example_order())


def test_the_gateway_accepts_the_example_order() -> None:
    order = Order.parse(example_order())
    assert (order.order_id, order.merchant_id, order.total) == ("A-1001", "m-8", 1700)


def test_the_example_of_a_delivery_is_valid_by_schema_and_gateway() -> None:
    record = json.loads(block("The order", "json"))
    Draft202012Validator(json.loads((ROOT / "docs" / "order.schema.json").read_text())).validate(
        record
    )
    assert Order.parse(record).subtotal == 2500
    assert set(Order.model_fields) - set(record) <= {
        *("fulfillment", "notes", "prep_minutes", "dine_in", "payment"),
    }


def test_the_gateway_accepts_the_example_cancel_request() -> None:
    [record], *rest = json.loads(block("Cancelling an order", "json"))
    assert rest == [{}, {}]
    request = CancelRequest.parse(record)
    assert (request.order_id, request.merchant_id) == ("A-1001", "m-8")
    assert set(CancelRequest.model_fields) == set(record)
    ours = wire.cancel_message("A-1001", request.to_json(), routing_key=topology.ORDERS_KEY)
    assert f"`{ours.headers['task']}`" in section("Cancelling an order")


def test_the_examples_length_headers_and_queue_are_as_stated() -> None:
    prose = " ".join(section("An example, byte for byte").split())
    assert f"these {len(block('An example, byte for byte', 'json').encode())} bytes" in prose
    ours = wire.submit_message("A-1001", b"{}", routing_key=topology.ORDERS_KEY)
    assert f"Exchange `{ours.exchange}`, routing key `{ours.routing_key}`" in prose
    assert f"`task: {ours.headers['task']}` and `id: {ours.headers['id']}`" in prose
    assert f"{Settings().max_order_bytes:,} bytes" in section("The message")


def test_the_queues_arguments_are_the_codes() -> None:
    arguments = json.loads(block("Where to publish", "json"))
    assert arguments == topology.orders_queue.queue_arguments
    assert arguments == topology.canary_queue.queue_arguments
    for queue in (topology.dead_queue, topology.events_queue):
        assert json.dumps(queue.queue_arguments) in section("Where to publish")


VECTORS = re.findall(
    r"^\| `(\S+)` \| `([0-9a-f]{16})` \| ([0-9.]+) \| `(\S+)` \| `(\S+)` \|$", TEXT, re.MULTILINE
)


def test_there_are_three_canary_vectors() -> None:
    assert len(VECTORS) == 3


@pytest.mark.parametrize(("merchant", "digest", "share", "at_10", "at_50"), VECTORS)
def test_a_canary_vector_is_what_the_client_computes(
    merchant: str, digest: str, share: str, at_10: str, at_50: str
) -> None:
    assert hashlib.sha256(merchant.encode()).digest()[:8].hex() == digest
    assert not in_canary(merchant, float(share))
    assert in_canary(merchant, math.nextafter(float(share), 100))
    for percent, key in ((10, at_10), (50, at_50)):
        assert key == (topology.CANARY_KEY if in_canary(merchant, percent) else topology.ORDERS_KEY)


def test_the_client_accepts_the_example_split() -> None:
    text = block("The canary", "json")
    split = Split.parse_json(text)
    assert split.to_json().decode() == text
    assert f"Here `{min(split.pins)}` is in at {split.percent:g} %, as a pilot" in TEXT
    assert [split.takes(merchant) for merchant, *_ in VECTORS] == [True, False, True]
    assert json.dumps(topology.splits_stream.queue_arguments) in section("The canary")
    assert f"stream `{topology.splits_stream.name}`" in section("The canary")


def test_the_example_consumer_of_splits_works(broker_url: str) -> None:
    """It gets the last split at once and the next when it is published, until the broker closes."""
    example: dict[str, Any] = {}
    exec(block("The canary", "python"), example)
    publisher = Publisher(broker_url)
    heard: list[float] = []

    def on_split(body: Any) -> None:
        heard.append(json.loads(body)["percent"])
        if len(heard) == 1:
            publisher.publish(message_of(Split(percent=20)))
        else:
            raise StopIteration

    publisher.publish(message_of(Split(percent=10)))
    with pytest.raises(StopIteration):
        example["follow"](broker_url, on_split)
    publisher.close()
    assert heard == [10, 20]


def test_the_example_event_is_the_example_orders() -> None:
    text = block("Status events", "json")
    event = json.loads(text)
    order = Order.parse(example_order())
    row = Row(
        id=1,
        position=event["position"],
        event_id=dehydrated(Key(order.merchant_id, order.order_id), Kind.ACCEPTED).id,
        kind="accepted",
        merchant_id=order.merchant_id,
        order_id=order.order_id,
        occurred_at=datetime.fromisoformat(event["occurred_at"]).timestamp(),
        external_id=event["external_id"],
        reason_code=None,
        reason_message=None,
        attempts=1,
        body=None,
        payload=order.source.decode(),
        provider="acme",
        adapter="rest",
    )
    made = Hydration(Payloads(Vault())).message(row)
    assert made.body.decode() == text
    assert (made.exchange, made.routing_key) == ("order-events", event["type"])
    assert made.message_id == event["id"]


def test_every_field_and_type_of_an_event_is_described() -> None:
    described = set(re.findall(r"`([a-z_.]+)`", section("Status events")))
    assert set(json.loads(block("Status events", "json"))) <= described
    types = {f"order.{kind}" for kind in (*Kind, *Lifecycle) if kind is not Kind.RETRY}
    assert types <= described
    assert {name for name in described if name.startswith("order.")} == types


def test_exactly_the_codes_reason_codes_are_documented() -> None:
    described = set(re.findall(r"^\| `([A-Za-z_]+)` \|", section("Reason codes"), re.MULTILINE))
    assert described == set(codes_in_the_source())


def test_the_python_examples_are_python() -> None:
    compile(block("In Python, with kombu alone", "python"), "backend.py", "exec")


#: The callables with a reason's code, and its argument.
TAKES_A_CODE = {
    "Reason": 0,
    "Reason.of": 0,
    "NotSent": 0,
    "Misconfigured": 0,
    "NoValidReply": 0,
    "FailureRow": 0,
    "by_progress": 0,
    "_error": 1,
    "self._dead_letter": 1,
    "Malformed": 0,
}


def codes_in_the_source() -> Iterator[str]:
    """Every reason code that is a literal in the package; a status in it becomes ``NNN``."""
    for path in sorted((ROOT / "pos_gateway").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                place = TAKES_A_CODE.get(ast.unparse(node.func))
                if place is not None and len(node.args) > place:
                    yield from code(node.args[place])


def code(node: ast.expr) -> Iterator[str]:
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.Name(id="CREDENTIAL_REFUSED" | "RESOLVED" as name):
            yield getattr(outcome, name)
        case ast.Name(id="NOT_REFUNDED" | "NOT_UNDONE" as name):
            yield {"NOT_REFUNDED": NOT_REFUNDED, "NOT_UNDONE": NOT_UNDONE}[name]
        case ast.JoinedStr(values=[ast.Constant(value=str(text)), ast.FormattedValue()]):
            yield f"{text}NNN"
