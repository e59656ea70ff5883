"""Compares replies with the OpenAPI document: status, code, headers, and every field."""

import json
import re
from collections.abc import Mapping
from typing import Any

import requests
from pydantic import TypeAdapter

from pos_gateway.server.openapi import OPERATIONS, OUTSIDE, Operation
from pos_gateway.server.schemas import BatchSubmittedView, ProblemView

_BATCH: TypeAdapter[Any] = TypeAdapter(list[BatchSubmittedView | ProblemView])


def operation_of(method: str, path: str) -> Operation | None:
    """The operation that a request is."""
    return next((each for each in OPERATIONS if _is(each, method, path)), None)


def require_described(reply: requests.Response, *_: Any, **__: Any) -> None:
    """Raise if the document has no such reply. A hook of requests."""
    request = reply.request
    assert request.method is not None
    operation = operation_of(request.method, request.path_url.partition("?")[0])
    kind = reply.headers["content-type"]
    if kind == "application/problem+json":
        problem = ProblemView.model_validate_json(reply.content, strict=True)
        codes: Any = OUTSIDE if operation is None else operation.codes()
        where = f"{request.method} {request.path_url[:200]}"
        assert problem.code in codes.get(reply.status_code, ()), f"{where}: {reply.text}"
        assert problem.status == reply.status_code
        require_known(reply.status_code, problem.code, reply.headers)
        return
    assert operation is not None, f"{request.method} {request.path_url} is not described"
    described = operation.replies[reply.status_code]
    assert kind == described.media_type
    if isinstance(described.content, type):
        described.content.model_validate_json(reply.content, strict=True)
    elif reply.status_code == 207:
        _BATCH.validate_json(reply.content, strict=True)


def require_known(status: int, code: str, headers: Mapping[str, str]) -> None:
    """Raise if no route has such a problem."""
    tables: list[Any] = [OUTSIDE, *(each.codes() for each in OPERATIONS)]
    assert any(code in table.get(status, ()) for table in tables), f"{status} {code}"
    assert ("retry-after" in headers) == (status in (429, 503)), f"{status} {code}: {headers}"


def require_references(described: dict[str, Any]) -> None:
    """Raise if a reference of a document has no target."""
    for reference in re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(described)):
        target: Any = described
        for part in reference.split("/"):
            target = target[part]


def _is(operation: Operation, method: str, path: str) -> bool:
    pattern = re.sub(r"\{[a-z_]+\}", "[^/]+", operation.path)
    return operation.method.upper() == method and re.fullmatch(pattern, path) is not None
