"""Messages and events as an AsyncAPI 3.0 document; ``docs/wire-format.md`` is the same in prose."""

from collections.abc import Sequence
from typing import Any

from kombu import Queue
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from pos_gateway import __version__
from pos_gateway.broker import topology, wire
from pos_gateway.domain.order import CancelRequest, Order
from pos_gateway.domain.split import Split
from pos_gateway.server import examples, schemas
from pos_gateway.tokens.token import Capability, Role

_REF = "#/components/schemas/{model}"
_BINDING = "0.3.0"
_CANCEL_REQUEST = {**examples.IDS, **examples.CANCEL_REQUEST}
_SPLIT = {
    "percent": 10.0,
    "pins": ["m-1"],
    "changed_by": "kim",
    "changed_at": "2026-11-20T07:26:16Z",
}


def document() -> dict[str, Any]:
    """The document. Always the same for a version. It is JSON, and so YAML."""
    models = (Order, CancelRequest, schemas.EventView, Split)
    _, described = models_json_schema([(each, "validation") for each in models], ref_template=_REF)
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "POS Gateway",
            "version": __version__,
            "description": "Orders and cancel requests in, status events out: over RabbitMQ, and"
            " events as server-sent events, too. All other HTTP is in openapi.json.",
        },
        "defaultContentType": "application/json",
        "servers": {
            "rabbitmq": {
                "host": "localhost:5672",
                "protocol": "amqp",
                "protocolVersion": "0.9.1",
                "description": "POS_GATEWAY_BROKER_URL.",
                "security": [{"$ref": "#/components/securitySchemes/broker"}],
            },
            "http": {
                "host": "localhost:8080",
                "protocol": "http",
                "description": "pos-gateway serve.",
                "security": [{"$ref": "#/components/securitySchemes/bearer"}],
            },
        },
        "channels": _channels(),
        "operations": _operations(),
        "components": {
            "messages": _messages(),
            "schemas": described["$defs"],
            "securitySchemes": {
                "broker": {"type": "userPassword"},
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token: pos-gateway tokens create NAME --role ROLE.",
                },
            },
        },
    }


def _channels() -> dict[str, Any]:
    orders, events = topology.orders_exchange, topology.events_exchange
    outcomes = [each.removeprefix("order.") for each in schemas.EVENT_TYPES]
    return {
        "orders": {
            **_channel(topology.ORDERS_KEY, ("order", "cancelRequest")),
            "description": "Where backends publish. mandatory, with confirms: an order is safe once"
            " its confirm has come and no return has.",
            "bindings": _exchange(orders.name),
        },
        "canaryOrders": {
            **_channel(topology.CANARY_KEY, ("order", "cancelRequest")),
            "description": "Likewise, for merchants in the canary.",
            "bindings": _exchange(orders.name),
        },
        "events": {
            **_channel("order.{outcome}", ("event",)),
            "description": "The address is the routing key: the event's type.",
            "parameters": {"outcome": {"enum": outcomes}},
            "bindings": _exchange(events.name),
        },
        "eventsQueue": _queue(
            topology.events_queue, ("event",), "Every event, until a backend acknowledges it."
        ),
        "ordersQueue": _queue(
            topology.orders_queue, ("order", "cancelRequest"), "What workers consume."
        ),
        "canaryOrdersQueue": _queue(
            topology.canary_queue, ("order", "cancelRequest"), "What canary workers consume."
        ),
        "deadLetters": _queue(
            topology.dead_queue,
            ("deadLetter",),
            "For an operator to replay or discard: pos-gateway dlq.",
        ),
        "canarySplit": _queue(
            topology.splits_stream,
            ("canarySplit",),
            "A stream. Its last message is the split in force: backends that publish to the canary"
            " consume it, beginning with the last.",
        ),
        "eventStream": {
            **_channel("/v1/events/stream", ("serverSentEvent",), server="http"),
            "description": "GET. It resumes after the position in the header Last-Event-ID, or in"
            " the query's after; without one it begins with what is published from then on.",
        },
    }


def _operations() -> dict[str, Any]:
    # For the gateway: it receives what backends publish, and sends what they consume.
    publishing = {"deliveryMode": 2, "mandatory": True, "bindingVersion": _BINDING}
    roles = " or ".join(role for role in Role if role.allows(Capability.READ))
    return {
        "submitOrder": {
            **_operation("receive", "orders", ("order",)),
            "summary": "Submit an order. The same again is harmless.",
            "bindings": {"amqp": publishing},
        },
        "cancelOrder": {
            **_operation("receive", "orders", ("cancelRequest",)),
            "summary": "Cancel an order. Its outcome is an event.",
            "bindings": {"amqp": publishing},
        },
        "submitToCanary": {
            **_operation("receive", "canaryOrders", ("order", "cancelRequest")),
            "summary": "Likewise, for a merchant in the canary.",
            "bindings": {"amqp": publishing},
        },
        "publishEvent": {
            **_operation("send", "events", ("event",)),
            "summary": "A change of an order. By position without a gap, at least once.",
            "bindings": {"amqp": {"deliveryMode": 2, "bindingVersion": _BINDING}},
        },
        "deliverEvent": {
            **_operation("send", "eventsQueue", ("event",)),
            "summary": "A backend consumes this queue, and acknowledges what it has applied.",
            "bindings": {"amqp": {"ack": True, "bindingVersion": _BINDING}},
        },
        "deadLetter": {
            **_operation("send", "deadLetters", ("deadLetter",)),
            "summary": "A message that is invalid, or an order that failed or expired.",
        },
        "publishSplit": {
            **_operation("send", "canarySplit", ("canarySplit",)),
            "summary": "pos-gateway canary set has changed the split.",
        },
        "streamEvents": {
            **_operation("send", "eventStream", ("serverSentEvent",)),
            "summary": f"The same events, for a token of the role {roles}.",
            "bindings": {"http": {"method": "GET", "bindingVersion": _BINDING}},
        },
    }


def _messages() -> dict[str, Any]:
    event = {
        "title": "A status event",
        "contentType": "application/json",
        "payload": _ref(schemas.EventView),
        "examples": [{"payload": examples.EVENT}],
    }
    traced = {name: {"type": "string"} for name in ("traceparent", "tracestate")}
    return {
        "order": _task("An order", wire.SUBMIT_ORDER, Order, examples.ORDER),
        "cancelRequest": _task(
            "A cancel request", wire.CANCEL_ORDER, CancelRequest, _CANCEL_REQUEST
        ),
        "event": {
            **event,
            "headers": {"type": "object", "properties": traced},
        },
        "serverSentEvent": {
            **event,
            "title": "A status event, as data of a server-sent event",
            "description": "id is its position, event its type. Personal data is masked for a"
            " viewer.",
        },
        "deadLetter": {
            "title": "A dead letter",
            "description": "The message as it came, byte for byte.",
            "headers": {
                "type": "object",
                "properties": {
                    "x-reason-code": {"type": "string", "description": "For programs."},
                    "x-reason": {"type": "string", "description": "For people."},
                },
            },
            "payload": {},
        },
        "canarySplit": {
            "title": "The canary split",
            "contentType": "application/json",
            "payload": _ref(Split),
            "examples": [{"payload": _SPLIT}],
        },
    }


def _channel(address: str, messages: Sequence[str], *, server: str = "rabbitmq") -> dict[str, Any]:
    return {
        "address": address,
        "servers": [{"$ref": f"#/servers/{server}"}],
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in messages},
    }


def _exchange(name: str) -> dict[str, Any]:
    exchange = {"name": name, "type": "topic", "durable": True, "autoDelete": False}
    return {"amqp": {"is": "routingKey", "exchange": exchange, "bindingVersion": _BINDING}}


def _queue(queue: Queue, messages: Sequence[str], description: str) -> dict[str, Any]:
    described = {"name": queue.name, "durable": True, "exclusive": False, "autoDelete": False}
    return {
        **_channel(queue.name, messages),
        "description": description,
        "bindings": {
            "amqp": {"is": "queue", "queue": described, "bindingVersion": _BINDING},
        },
        "x-queue-arguments": queue.queue_arguments,
    }


def _operation(action: str, channel: str, messages: Sequence[str]) -> dict[str, Any]:
    return {
        "action": action,
        "channel": {"$ref": f"#/channels/{channel}"},
        "messages": [{"$ref": f"#/channels/{channel}/messages/{name}"} for name in messages],
    }


def _task(title: str, task: str, model: type[BaseModel], example: Any) -> dict[str, Any]:
    """A Celery task message, protocol 2: ``[[argument], {}, {…}]`` and two headers."""
    argument = {"type": "array", "prefixItems": [_ref(model)], "minItems": 1, "maxItems": 1}
    order_id = examples.IDS["order_id"]
    return {
        "title": title,
        "contentType": "application/json",
        "bindings": {"amqp": {"contentEncoding": "utf-8", "bindingVersion": _BINDING}},
        "headers": {
            "type": "object",
            "required": ["task", "id"],
            "properties": {
                "task": {"const": task},
                "id": {"type": "string", "description": "The order_id."},
                "traceparent": {"type": "string"},
                "tracestate": {"type": "string"},
            },
        },
        "payload": {
            "type": "array",
            "prefixItems": [argument, {"type": "object"}, {"type": "object"}],
            "minItems": 3,
            "maxItems": 3,
        },
        "examples": [{"headers": {"task": task, "id": order_id}, "payload": [[example], {}, {}]}],
    }


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REF.format(model=model.__name__)}
