"""The AMQP messages as an AsyncAPI 3.0 document; ``docs/wire-format.md`` is the same in prose."""

from typing import Any

from pydantic.json_schema import models_json_schema

from pos_gateway import __version__
from pos_gateway.broker import topology, wire
from pos_gateway.domain.order import CancelRequest, Order
from pos_gateway.domain.outcome import Kind
from pos_gateway.server import views

_REF = "#/components/schemas/{model}"
#: Outcomes of an attempt that are no event's.
_NO_EVENT = {Kind.RETRY}


def document() -> dict[str, Any]:
    """The document. Always the same for a version. It is JSON, and so YAML."""
    _, schemas = models_json_schema(
        [(Order, "validation"), (CancelRequest, "validation"), (views.EventView, "validation")],
        ref_template=_REF,
    )
    types = sorted(f"order.{kind}" for kind in Kind if kind not in _NO_EVENT)
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "POS Gateway",
            "version": __version__,
            "description": "Orders in, status events out. A queue's arguments are in"
            " docs/wire-format.md.",
        },
        "servers": {"rabbitmq": {"host": "localhost:5672", "protocol": "amqp"}},
        "channels": {
            "orders": _channel(
                topology.orders_exchange.name,
                topology.ORDERS_KEY,
                "Orders and cancel requests, for the exchange of this name.",
                ("order", "cancelRequest"),
            ),
            "orderEvents": _channel(
                topology.events_exchange.name,
                "order.#",
                "Status events; the routing key is the event's type. The queue of this name has all.",
                ("event",),
            ),
        },
        "operations": {
            "submitOrder": _operation("receive", "orders", ("order",)),
            "cancelOrder": _operation("receive", "orders", ("cancelRequest",)),
            "tellOutcome": _operation("send", "orderEvents", ("event",)),
        },
        "components": {
            "messages": {
                "order": _task("An order", wire.SUBMIT_ORDER, Order.__name__),
                "cancelRequest": _task(
                    "A cancel request", wire.CANCEL_ORDER, CancelRequest.__name__
                ),
                "event": {
                    "title": "A status event",
                    "contentType": "application/json",
                    "summary": "Of one of the types " + ", ".join(types),
                    "payload": {"$ref": _REF.format(model=views.EventView.__name__)},
                },
            },
            "schemas": schemas["$defs"],
        },
    }


def _channel(
    exchange: str, routing_key: str, description: str, messages: tuple[str, ...]
) -> dict[str, Any]:
    return {
        "address": routing_key,
        "description": description,
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in messages},
        "bindings": {
            "amqp": {
                "is": "routingKey",
                "exchange": {"name": exchange, "type": "topic", "durable": True},
            }
        },
    }


def _operation(action: str, channel: str, messages: tuple[str, ...]) -> dict[str, Any]:
    return {
        "action": action,
        "channel": {"$ref": f"#/channels/{channel}"},
        "messages": [{"$ref": f"#/channels/{channel}/messages/{name}"} for name in messages],
    }


def _task(title: str, task: str, model: str) -> dict[str, Any]:
    """A Celery task message, protocol 2: ``[[argument], {}, {…}]`` and two headers."""
    return {
        "title": title,
        "contentType": "application/json",
        "headers": {
            "type": "object",
            "required": ["task", "id"],
            "properties": {"task": {"const": task}, "id": {"type": "string"}},
        },
        "payload": {
            "type": "array",
            "prefixItems": [
                {
                    "type": "array",
                    "prefixItems": [{"$ref": _REF.format(model=model)}],
                    "minItems": 1,
                },
                {"type": "object"},
                {"type": "object"},
            ],
            "minItems": 3,
            "maxItems": 3,
        },
    }
