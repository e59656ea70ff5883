"""The HTTP API as an OpenAPI 3.1 document: one table of operations, and the replies' models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from pos_gateway import __version__
from pos_gateway.domain.http_limits import BATCH, LONGEST_WAIT, PAGE
from pos_gateway.domain.order import CancelRequest, Order
from pos_gateway.server import views

_REF = "#/components/schemas/{model}"
_LONGEST_POSITION = 2**63 - 1

#: By status: the problems' codes that any route may reply with.
ANYWHERE: Mapping[int, tuple[str, ...]] = {
    400: ("malformed_request", "bad_target", "bad_host", "upgrade_with_body", "repeated_header"),
    401: ("unauthorized",),
    403: ("not_allowed",),
    405: ("method_not_allowed",),
    408: ("slow_request",),
    422: ("invalid_request",),
    429: ("rate_limited", "too_many_requests", "too_many_pipelined"),
    431: ("head_too_large",),
    500: ("internal",),
    501: ("unsupported_coding",),
    503: ("tokens_unknown", "too_many_connections"),
}
_BODY: Mapping[int, tuple[str, ...]] = {
    413: ("too_large",),
    415: ("unsupported_media_type", "unsupported_encoding"),
    503: ("broker_unavailable",),
}
_READ: Mapping[int, tuple[str, ...]] = {503: ("database_unavailable", "database_busy")}

_POSITION = {"type": "integer", "minimum": 0, "maximum": _LONGEST_POSITION}


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation."""

    method: str
    path: str
    name: str
    summary: str
    description: str
    tag: str
    #: The reply's model by status; a text is a media type without a model.
    replies: Mapping[int, type[BaseModel] | Mapping[str, Any] | str]
    #: The problems' codes that only this one has, by status.
    problems: Sequence[Mapping[int, tuple[str, ...]]] = ()
    parameters: Sequence[Mapping[str, Any]] = ()
    body: Mapping[str, Any] | None = None
    is_open: bool = False
    #: Statuses of ``ANYWHERE`` that it has not.
    never: Sequence[int] = field(default=())


def _query(name: str, description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": description, "schema": schema}


def _in_path(name: str) -> dict[str, Any]:
    ids = {"type": "string", "pattern": "^[!-~]{1,128}$"}
    return {"name": name, "in": "path", "required": True, "schema": ids}


def _json_body(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    return {"required": required, "content": {"application/json": {"schema": _ref(model)}}}


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REF.format(model=model.__name__)}


_IDS = (_in_path("merchant_id"), _in_path("order_id"))
_AFTER = _query("after", "The last position that you have.", {**_POSITION, "default": 0})

OPERATIONS: Sequence[Operation] = (
    Operation(
        "post",
        "/v1/orders",
        "submitOrder",
        "Submit an order",
        "202 once the broker has stored it: it ends in exactly one terminal event. The same order"
        " again is harmless: 202, or 200 if it has ended. Without a reply, and after a 429 or a"
        " 503, submit the same again.",
        "orders",
        {200: views.SubmittedView, 202: views.SubmittedView},
        (_BODY, {409: ("order_differs",), 422: ("invalid_order",)}),
        body=_json_body(Order),
    ),
    Operation(
        "post",
        "/v1/orders/batch",
        "submitOrders",
        "Submit many orders",
        f"A line an order, or one list; {BATCH} at most. The reply has a result for each, in order,"
        " with the status that it would have had.",
        "orders",
        {
            207: {
                "type": "array",
                "items": {"anyOf": [_ref(views.BatchSubmittedView), _ref(views.ProblemView)]},
            }
        },
        (_BODY, {400: ("not_json", "empty_batch"), 413: ("too_many_orders", "too_many_values")}),
        body={
            "required": True,
            "content": {
                "application/x-ndjson": {"schema": {"type": "string"}},
                "application/json": {
                    "schema": {
                        "type": "array",
                        "items": _ref(Order),
                        "minItems": 1,
                        "maxItems": BATCH,
                    }
                },
            },
        },
    ),
    Operation(
        "post",
        "/v1/merchants/{merchant_id}/orders/{order_id}/cancel",
        "cancelOrder",
        "Cancel an order",
        "202 once the broker has stored the request, which may come before the order. Its outcome"
        " is an event.",
        "orders",
        {202: views.CancellingView},
        (_BODY, {400: ("not_json", "not_an_object"), 422: ("invalid_cancel_request",)}),
        _IDS,
        body=_json_body(CancelRequest, required=False),
    ),
    Operation(
        "get",
        "/v1/merchants/{merchant_id}/orders/{order_id}",
        "showOrder",
        "See an order",
        "Its state, its last attempts and its events.",
        "orders",
        {200: views.OrderView},
        (_READ, {404: ("unknown_order",)}),
        _IDS,
    ),
    Operation(
        "get",
        "/v1/events",
        "listEvents",
        "Events behind a position",
        "In order, at least once. With `wait` the reply comes as soon as there is one.",
        "events",
        {200: views.EventPage},
        (_READ,),
        (
            _AFTER,
            _query(
                "limit",
                "Most events.",
                {"type": "integer", "minimum": 1, "maximum": PAGE, "default": 100},
            ),
            _query(
                "wait",
                "Seconds to wait if there is none.",
                {"type": "number", "minimum": 0, "maximum": LONGEST_WAIT, "default": 0},
            ),
        ),
    ),
    Operation(
        "get",
        "/v1/events/stream",
        "streamEvents",
        "The same as server-sent events",
        "`id:` is the position, `event:` the type, `data:` the event. Without a position it begins"
        " with what is published from then on.",
        "events",
        {200: "text/event-stream"},
        (_READ,),
        (
            _query("after", "The last position that you have.", _POSITION),
            {
                "name": "Last-Event-ID",
                "in": "header",
                "description": "Likewise; a client that reconnects sends it.",
                "schema": _POSITION,
            },
        ),
    ),
    Operation(
        "get",
        "/openapi.json",
        "showDocument",
        "This document",
        "As the server's version has it.",
        "documents",
        {200: {"type": "object"}},
    ),
    Operation(
        "get",
        "/healthz",
        "showHealth",
        "Whether the process runs",
        "Needs no token.",
        "health",
        {200: views.HealthView},
        is_open=True,
    ),
    Operation(
        "get",
        "/readyz",
        "showReadiness",
        "Whether it takes orders",
        "503 while it does not; the page of the same name at the metrics port says why. Needs no"
        " token.",
        "health",
        {200: views.ReadyView, 503: views.ReadyView},
        is_open=True,
        never=(503,),
    ),
)


def document() -> dict[str, Any]:
    """The document. Always the same for a version."""
    models: list[type[BaseModel]] = [Order, CancelRequest, *_models()]
    _, schemas = models_json_schema([(model, "validation") for model in models], ref_template=_REF)
    paths: dict[str, Any] = {}
    for each in OPERATIONS:
        paths.setdefault(each.path, {})[each.method] = _operation(each)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "POS Gateway",
            "version": __version__,
            "description": "Sends every order to its merchant's point-of-sale API.",
        },
        "paths": paths,
        "components": {
            "schemas": _without_ids(schemas["$defs"]),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def codes(operation: Operation) -> dict[int, list[str]]:
    """The problems' codes that it may reply with, by status."""
    found: dict[int, list[str]] = {}
    for table in (ANYWHERE, *operation.problems):
        for status, names in table.items():
            if not (table is ANYWHERE and status in operation.never):
                found.setdefault(status, []).extend(names)
    if operation.is_open:
        for status in (401, 403, 422):
            found.pop(status, None)
    return dict(sorted(found.items()))


def _operation(operation: Operation) -> dict[str, Any]:
    replies = {str(s): _reply(model) for s, model in operation.replies.items()}
    for status, names in codes(operation).items():
        problem: dict[str, Any] = {
            "description": "Code: " + ", ".join(f"`{name}`" for name in names),
            "content": {"application/problem+json": {"schema": _ref(views.ProblemView)}},
        }
        if status in (429, 503):
            problem["headers"] = {
                "Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}
            }
        replies.setdefault(str(status), problem)
    found: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": operation.description,
        "tags": [operation.tag],
        "responses": dict(sorted(replies.items())),
    }
    if operation.parameters:
        found["parameters"] = list(operation.parameters)
    if operation.body is not None:
        found["requestBody"] = operation.body
    if operation.is_open:
        found["security"] = []
    return found


def _reply(model: "type[BaseModel] | Mapping[str, Any] | str") -> dict[str, Any]:
    if isinstance(model, str):
        return {"description": "Done", "content": {model: {"schema": {"type": "string"}}}}
    schema = model if isinstance(model, Mapping) else _ref(model)
    return {"description": "Done", "content": {"application/json": {"schema": schema}}}


def _models() -> list[type[BaseModel]]:
    found = vars(views).values()
    return [
        each
        for each in found
        if isinstance(each, type) and issubclass(each, views.View) and each is not views.View
    ]


def _without_ids(schemas: dict[str, Any]) -> dict[str, Any]:
    """The ids of a cancel request are in its path."""
    request = schemas["CancelRequest"]
    for name in ("order_id", "merchant_id"):
        del request["properties"][name]
    del request["required"]
    return schemas
