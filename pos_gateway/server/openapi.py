"""The HTTP API as an OpenAPI 3.1 document: one table of operations, and the replies' models."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from pydantic_core import to_json

from pos_gateway import __version__
from pos_gateway.domain.http_limits import BATCH, BATCH_BYTES, LONGEST_WAIT, PAGE
from pos_gateway.domain.order import CancelRequest, Order
from pos_gateway.server import examples, schemas
from pos_gateway.server.following import HEARTBEAT
from pos_gateway.server.problems import CONTENT_TYPE
from pos_gateway.tokens.token import Capability, Role

_REF = "#/components/schemas/{model}"
_LONGEST_POSITION = 2**63 - 1

#: Codes of problems by their status.
Codes = Mapping[int, tuple[str, ...]]

#: By module, the problems that it raises. An operation has those of the modules that it passes.
PROBLEMS: Mapping[str, Codes] = {
    "uvicorn_internals": {
        400: ("malformed_request", "bad_target", "bad_host"),
        408: ("slow_request",),
        431: ("head_too_large",),
        501: ("unsupported_coding",),
        503: ("too_many_connections",),
    },
    "asgi": {500: ("internal",)},
    "access": {
        401: ("unauthorized",),
        403: ("not_allowed",),
        429: ("rate_limited",),
        503: ("tokens_unknown",),
    },
    "api": {422: ("invalid_request",)},
    "body": {
        400: ("repeated_header",),
        413: ("too_large",),
        415: ("unsupported_media_type", "unsupported_encoding"),
    },
    "callbacks": {
        403: ("unsigned",),
        422: ("invalid_callback",),
    },
    "callback_merchants": {503: ("secrets_unreadable",)},
    "callback_intake": {503: ("order_busy",)},
    "callback_writer": {503: ("database_unavailable",)},
    "in_flight": {429: ("too_many_requests",)},
    "orders": {404: ("unknown_order",)},
    "query": {422: ("invalid_request",)},
    "reading": {503: ("database_unavailable", "database_busy")},
    "streaming": {422: ("invalid_request",)},
    "unread": {503: ("replies_unread",)},
}
#: Those of ``submitting``, by what a request does.
_ORDER: Codes = {
    409: ("order_differs",),
    413: ("too_large",),
    422: ("invalid_order",),
    503: ("broker_unavailable",),
}
_BATCH: Codes = {
    400: ("not_json", "empty_batch"),
    413: ("too_many_orders", "too_many_values"),
    503: ("broker_unavailable",),
}
_CANCEL: Codes = {
    400: ("not_json", "not_an_object"),
    422: ("invalid_cancel_request",),
    503: ("broker_unavailable",),
}
#: Of requests that are no operation.
OUTSIDE: Codes = {404: ("not_found",), 405: ("method_not_allowed",)}

_STREAM = "text/event-stream"
_PROBLEM = CONTENT_TYPE.decode()
#: The header that a problem of a status has, what it says, and its type.
_HEADERS = {
    401: ("WWW-Authenticate", "How to send a token.", "string"),
    429: ("Retry-After", "Seconds.", "integer"),
    503: ("Retry-After", "Seconds.", "integer"),
}
_ANYWHERE = ("uvicorn_internals", "asgi")
_HEADER: Codes = {400: ("repeated_header",)}
_POSITION = {"type": "integer", "minimum": 0, "maximum": _LONGEST_POSITION}


@dataclass(frozen=True, slots=True)
class ApiReply:
    """A reply that is no problem."""

    description: str
    #: A model, or a schema.
    content: type[BaseModel] | Mapping[str, Any]
    example: Any = None
    media_type: str = "application/json"


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation."""

    method: str
    path: str
    name: str
    summary: str
    description: str
    tag: str
    #: By status.
    replies: Mapping[int, ApiReply]
    #: What its token must allow; None: it needs no token.
    needs: Capability | None = Capability.READ
    #: The modules that its requests pass beside ``access`` and those that all pass.
    passes: Sequence[str] = ()
    #: Its own problems.
    problems: Codes = field(default_factory=dict)
    parameters: Sequence[Mapping[str, Any]] = ()
    body: Mapping[str, Any] | None = None

    @property
    def roles(self) -> list[Role]:
        """The roles that may use it."""
        return [] if self.needs is None else [role for role in Role if role.allows(self.needs)]

    def codes(self) -> dict[int, list[str]]:
        """The problems' codes that it may reply with, by status."""
        tables = [PROBLEMS[module] for module in (*_ANYWHERE, *self.passes)]
        if self.needs is not None:
            tables += [PROBLEMS["access"], _HEADER]
        found: dict[int, list[str]] = {}
        for table in (*tables, self.problems):
            for status, names in table.items():
                known = found.setdefault(status, [])
                known += [name for name in names if name not in known]
        if self.roles == list(Role):
            found.pop(403, None)
        return dict(sorted(found.items()))


def _query(name: str, description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": description, "schema": schema}


def _in_path(name: str, example: str) -> dict[str, Any]:
    ids = {"type": "string", "pattern": "^[!-~]{1,128}$"}
    about = "In a URL percent-encoded: a `/` is `%2F`."
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": about,
        "schema": ids,
        "example": example,
    }


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REF.format(model=model.__name__)}


def _named(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


_IDS = (
    _in_path("merchant_id", examples.ORDER["merchant_id"]),
    _in_path("order_id", examples.ORDER["order_id"]),
)
_AFTER = _query("after", "The last position that you have.", {**_POSITION, "default": 0})
_MASKED = " Personal data is masked for a viewer."

OPERATIONS: Sequence[Operation] = (
    Operation(
        "post",
        "/v1/orders",
        "submitOrder",
        "Submit an order",
        "The same order again is harmless: 202, or 200 if it has ended. Without a reply, and after"
        " a 429, a 500 or a 503, submit the same again.",
        "orders",
        {
            200: ApiReply("It has ended; `state` says how.", schemas.SubmittedView, examples.ENDED),
            202: ApiReply(
                "The broker has stored it: it ends in exactly one terminal event, or, if it is cancelled once"
                " accepted, in two: `order.accepted`, then `order.cancelled`.",
                schemas.SubmittedView,
                examples.SUBMITTED,
            ),
        },
        Capability.SUBMIT,
        ("body", "in_flight"),
        _ORDER,
        body={
            "required": True,
            "content": {"application/json": {"schema": _ref(Order), "example": examples.ORDER}},
        },
    ),
    Operation(
        "post",
        "/v1/orders/batch",
        "submitOrders",
        "Submit many orders",
        f"A line an order, or one list; {BATCH} orders and {BATCH_BYTES // 2**20} MiB at most. An"
        " order's result has the status that it would have had alone, and if it is refused one of"
        f" the codes {_named(name for names in _ORDER.values() for name in names)}. 503: no order"
        " is known to be stored.",
        "orders",
        {
            207: ApiReply(
                "A result for each order, in order.",
                {
                    "type": "array",
                    "items": {
                        "anyOf": [_ref(schemas.BatchSubmittedView), _ref(schemas.ProblemView)]
                    },
                },
                examples.BATCH,
            )
        },
        Capability.SUBMIT,
        ("body", "in_flight", "unread"),
        _BATCH,
        body={
            "required": True,
            "content": {
                "application/x-ndjson": {
                    "schema": {"type": "string", "pattern": r"^\s*\{"},
                    "example": "".join(to_json(each).decode() + "\n" for each in examples.ORDERS),
                },
                "application/json": {
                    "schema": {
                        "type": "array",
                        "items": _ref(Order),
                        "minItems": 1,
                        "maxItems": BATCH,
                    },
                    "example": examples.ORDERS,
                },
            },
        },
    ),
    Operation(
        "post",
        "/v1/merchants/{merchant_id}/orders/{order_id}/cancel",
        "cancelOrder",
        "Cancel an order",
        "The request may come before the order does. Its outcome is an event. The body may be left"
        " out: it is then tried for a quarter of an hour.",
        "orders",
        {202: ApiReply("The broker has stored the request.", schemas.CancellingView, examples.IDS)},
        Capability.SUBMIT,
        ("api", "body", "in_flight"),
        _CANCEL,
        _IDS,
        {
            "required": False,
            "content": {
                "application/json": {
                    "schema": _ref(CancelRequest),
                    "example": examples.CANCEL_REQUEST,
                }
            },
        },
    ),
    Operation(
        "get",
        "/v1/merchants/{merchant_id}/orders/{order_id}",
        "showOrder",
        "See an order",
        "Its state, its last attempts, its cancel request and its events." + _MASKED,
        "orders",
        {200: ApiReply("The order.", schemas.OrderView, examples.SHOWN)},
        passes=("api", "reading", "orders", "unread"),
        parameters=_IDS,
    ),
    Operation(
        "get",
        "/v1/events",
        "listEvents",
        "Events after a position",
        "In order, at least once. With `wait` the reply comes as soon as there is one." + _MASKED,
        "events",
        {200: ApiReply("The events, which may be none.", schemas.EventPage, examples.EVENTS)},
        passes=("api", "query", "reading", "unread"),
        parameters=(
            _AFTER,
            _query(
                "limit",
                "Most events; fewer come where they are large.",
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
        "Events as server-sent events",
        "`id:` is the position, `event:` the type, `data:` the event (`EventView`). Without a"
        " position it begins with what is published from then on. A comment comes every"
        f" {HEARTBEAT:g} s. It ends once its token is revoked." + _MASKED,
        "events",
        {200: ApiReply("Events without end.", {"type": "string"}, examples.STREAM, _STREAM)},
        passes=("query", "streaming", "reading"),
        parameters=(
            _query("after", "The last position that you have.", _POSITION),
            {
                "name": "Last-Event-ID",
                "in": "header",
                "description": "Likewise, and it counts before `after`: a client that reconnects"
                " sends it.",
                "schema": _POSITION,
            },
        ),
    ),
    Operation(
        "post",
        "/v1/callbacks/{adapter}/{merchant_id}",
        "callBack",
        "Say something about an order",
        "For POSes, which sign the call: docs/adapters.md says how. 200 once what follows is stored.",
        "callbacks",
        {
            200: ApiReply(
                "What followed from each thing that the call says.",
                schemas.CallbackView,
                examples.CALLED_BACK,
            )
        },
        None,
        (
            "body",
            "in_flight",
            "reading",
            "callbacks",
            "callback_merchants",
            "callback_intake",
            "callback_writer",
        ),
        parameters=(
            _in_path("adapter", "rest"),
            _in_path("merchant_id", examples.ORDER["merchant_id"]),
        ),
        body={
            "required": True,
            "description": "As the POS has it, whatever its Content-Type.",
            "content": {"application/json": {"schema": {}, "example": examples.CALLBACK}},
        },
    ),
    Operation(
        "get",
        "/openapi.json",
        "showDocument",
        "This document",
        "As the server's version has it.",
        "documents",
        {200: ApiReply("The document.", {"type": "object"})},
        passes=("unread",),
    ),
    Operation(
        "get",
        "/healthz",
        "showHealth",
        "Whether the process runs",
        "",
        "health",
        {200: ApiReply("It does.", schemas.HealthView, {"healthy": True})},
        None,
    ),
    Operation(
        "get",
        "/readyz",
        "showReadiness",
        "Whether the server takes orders",
        "The page of the same name at the metrics port says why not.",
        "health",
        {
            200: ApiReply("It does.", schemas.ReadyView, {"ready": True}),
            503: ApiReply("It does not.", schemas.ReadyView, {"ready": False}),
        },
        None,
    ),
)


def document() -> dict[str, Any]:
    """The document. Always the same for a version."""
    models: list[type[BaseModel]] = [Order, CancelRequest, *_models()]
    _, described = models_json_schema(
        [(model, "validation") for model in models], ref_template=_REF
    )
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
            "schemas": _without_ids(described["$defs"]),
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token: `pos-gateway tokens create NAME --role ROLE`.",
                }
            },
        },
        "security": [{"bearer": []}],
    }


def _operation(operation: Operation) -> dict[str, Any]:
    replies = {str(status): _reply(reply) for status, reply in operation.replies.items()}
    for status, names in operation.codes().items():
        _add_problem(replies, status, names)
    if operation.needs is None:
        needs = "Needs no token."
    else:
        needs = f"For the roles {_named(operation.roles)}."
    found: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": f"{operation.description} {needs}".strip(),
        "tags": [operation.tag],
        "responses": dict(sorted(replies.items())),
    }
    if operation.parameters:
        found["parameters"] = list(operation.parameters)
    if operation.body is not None:
        found["requestBody"] = operation.body
    if operation.needs is None:
        found["security"] = []
    return found


def _reply(reply: ApiReply) -> dict[str, Any]:
    content = reply.content
    shown: dict[str, Any] = {"schema": _ref(content) if isinstance(content, type) else content}
    if reply.example is not None:
        shown["example"] = reply.example
    return {"description": reply.description, "content": {reply.media_type: shown}}


def _add_problem(replies: dict[str, Any], status: int, names: Sequence[str]) -> None:
    """Describe problems of this status, which may be another reply's, too."""
    reply = replies.setdefault(str(status), {"description": "", "content": {}})
    reply["description"] = f"{reply['description']} Problem: {_named(names)}.".strip()
    code = {"properties": {"code": {"enum": list(names)}}}
    reply["content"][_PROBLEM] = {"schema": {**_ref(schemas.ProblemView), **code}}
    if header := _HEADERS.get(status):
        name, about, kind = header
        required = len(reply["content"]) == 1
        described = {"description": about, "required": required, "schema": {"type": kind}}
        reply["headers"] = {name: described}


def _models() -> list[type[BaseModel]]:
    found = vars(schemas).values()
    return [
        each
        for each in found
        if isinstance(each, type)
        and issubclass(each, schemas.ReplyModel)
        and each is not schemas.ReplyModel
    ]


def _without_ids(described: dict[str, Any]) -> dict[str, Any]:
    """The ids of a cancel request are in its path."""
    request = described["CancelRequest"]
    for name in ("order_id", "merchant_id"):
        del request["properties"][name]
    del request["required"]
    return described
