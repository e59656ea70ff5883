"""The AsyncAPI document: its form, and that messages are as it has them."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from pos_gateway.broker import topology, wire
from pos_gateway.broker.message import Message
from pos_gateway.domain.split import Split
from pos_gateway.events.hydration import Hydration
from pos_gateway.events.outbox import Row
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.runtime.vault import Vault
from pos_gateway.server import asyncapi, schemas
from tests.server.conformance import require_references
from tests.server.lab import order

DOCUMENT = asyncapi.document()
PAYLOADS = Payloads(Vault(()))
MESSAGES = DOCUMENT["components"]["messages"]
TEXT = (Path(__file__).parents[2] / "docs" / "asyncapi.yaml").read_text()

#: What an object of AsyncAPI 3.0 may have, of what this document uses; a field with ``!`` must be.
FIELDS = {
    "document": "asyncapi! info! id servers defaultContentType channels operations components",
    "info": "title! version! description license tags",
    "server": "host! protocol! protocolVersion pathname description security bindings",
    "channel": "address messages title summary description servers parameters bindings",
    "operation": "action! channel! title summary description security bindings messages reply",
    "message": "headers payload contentType name title summary description bindings examples",
    "components": "schemas messages securitySchemes channels servers operations parameters",
}


def objects() -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield "document", DOCUMENT
    yield "info", DOCUMENT["info"]
    yield "components", DOCUMENT["components"]
    for kind in ("server", "channel", "operation"):
        yield from ((kind, each) for each in DOCUMENT[f"{kind}s"].values())
    yield from (("message", each) for each in MESSAGES.values())


def require_valid(schema: Any, value: Any) -> None:
    Draft202012Validator({**schema, "components": DOCUMENT["components"]}).validate(value)


def require_as(name: str, message: Message) -> None:
    require_valid(MESSAGES[name].get("headers", {}), dict(message.headers))
    require_valid(MESSAGES[name]["payload"], json.loads(message.body))


def test_the_file_is_the_document() -> None:
    assert yaml.safe_load(TEXT) == json.loads(TEXT) == json.loads(json.dumps(DOCUMENT))


def test_its_objects_are_those_of_asyncapi() -> None:
    for kind, found in objects():
        fields = FIELDS[kind].split()
        required = {each.removesuffix("!") for each in fields if each.endswith("!")}
        known = {each.removesuffix("!") for each in fields}
        own = {name for name in found if not name.startswith("x-")}
        assert required <= own <= known, f"{kind}: {own}"
    for schema in DOCUMENT["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_references_have_their_targets() -> None:
    require_references(DOCUMENT)
    for operation in DOCUMENT["operations"].values():
        assert operation["action"] in ("send", "receive")
        for message in operation["messages"]:
            # A message of an operation is one of its channel's.
            assert message["$ref"].startswith(operation["channel"]["$ref"] + "/messages/")
    used = {each["channel"]["$ref"].rpartition("/")[2] for each in DOCUMENT["operations"].values()}
    queues = {"ordersQueue", "canaryOrdersQueue"}  # workers' alone
    assert used | queues == set(DOCUMENT["channels"])


def test_every_queue_is_a_channel() -> None:
    channels = {}
    for channel in DOCUMENT["channels"].values():
        binding = channel.get("bindings", {}).get("amqp", {})
        if binding.get("is") == "queue":
            channels[channel["address"]] = channel["x-queue-arguments"]
    expected = (*topology.QUEUES, topology.splits_stream)
    assert channels == {queue.name: queue.queue_arguments for queue in expected}


@pytest.mark.parametrize("name", MESSAGES)
def test_examples_are_valid(name: str) -> None:
    for example in MESSAGES[name].get("examples", ()):
        require_valid(MESSAGES[name]["payload"], example["payload"])
        if "headers" in example:
            require_valid(MESSAGES[name]["headers"], example["headers"])


def test_messages_are_as_described() -> None:
    submit = wire.submit_message("o1", json.dumps(order()).encode(), routing_key="orders")
    require_as("order", submit)
    request = json.dumps(
        {"order_id": "o1", "merchant_id": "m1", "deliver_by": order()["deliver_by"]}
    )
    require_as("cancelRequest", wire.cancel_message("o1", request.encode(), routing_key="orders"))
    require_as("deadLetter", wire.dead_letter(submit, code="expired", reason="too late"))
    split = Split(percent=10.0, pins=frozenset({"m-1"}))
    require_valid(MESSAGES["canarySplit"]["payload"], json.loads(split.to_json()))


@pytest.mark.parametrize("kind", [each.removeprefix("order.") for each in schemas.EVENT_TYPES])
@pytest.mark.parametrize("is_kept", [True, False])
def test_events_are_as_described(kind: str, is_kept: bool) -> None:
    """Both as the model has them, strictly, and as the document does."""
    event = Hydration(PAYLOADS).message(
        Row(
            id=1,
            position=7,
            event_id="e-1",
            kind=kind,
            merchant_id="m1",
            order_id="o1",
            occurred_at=1763623577.2,
            external_id=None,
            reason_code="busy" if is_kept else None,
            reason_message=None,
            attempts=1,
            body=None,
            payload=json.dumps(order()) if is_kept else None,
            provider=None,
            adapter="rest" if is_kept else None,
            trace="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01" if is_kept else None,
        )
    )
    require_as("event", event)
    schemas.EventView.model_validate_json(event.body, strict=True)
    assert event.exchange == DOCUMENT["channels"]["events"]["bindings"]["amqp"]["exchange"]["name"]
    assert event.routing_key == f"order.{kind}"
