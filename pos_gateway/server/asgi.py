"""The application: the routes that every order takes, and FastAPI's for the others."""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import structlog

from pos_gateway.server.body import Disconnected, Receive, Scope, Send
from pos_gateway.server.problems import Problem
from pos_gateway.server.submitting import Handler
from pos_gateway.telemetry import metrics

log = structlog.get_logger(__name__)

#: Most bytes of a body that are skipped, if it is not read, before the next request.
_SKIPPED = 64 * 1024

#: Where POSes call.
CALLBACKS = "/v1/callbacks/"

ASGI = Callable[[Scope, Receive, Send], Awaitable[None]]


class Application:
    """An ASGI application.

    Args:
        posts: handlers of ``POST`` by path.
        callbacks: the handler of ``POST`` to paths below ``CALLBACKS``.
        streams: applications of ``GET`` by path; what they raise before they reply becomes a problem.
        rest: the application for other paths.
    """

    def __init__(
        self,
        posts: Mapping[str, Handler],
        callbacks: Handler,
        streams: Mapping[str, ASGI],
        rest: ASGI,
    ) -> None:
        self._posts = posts
        self._callbacks = callbacks
        self._streams = streams
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._rest(scope, receive, send)
            return
        began = time.perf_counter()
        if _may_stay_unread(scope["headers"]):
            receive, send = _closing_if_unread(receive, send)
        # Not decoded: an id may have a slash in it, as %2F.
        scope["path"] = path = scope["raw_path"].decode("ascii")
        if path in self._posts:
            status = await _answered(self._posts[path], scope, receive, send)
        elif path.startswith(CALLBACKS):
            status = await _answered(self._callbacks, scope, receive, send)
            path = CALLBACKS + "{adapter}/{merchant_id}"
        elif path in self._streams:
            status = await _streamed(self._streams[path], scope, receive, send)
        else:
            status = await self._answered_by_rest(scope, receive, send)
            route = scope.get("route")
            path = "(none)" if route is None else route.path
        metrics.http_requests(path, str(status)).inc()
        metrics.http_seconds(path).observe(time.perf_counter() - began)

    async def _answered_by_rest(self, scope: Scope, receive: Receive, send: Send) -> int:
        status = 499

        async def noting(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._rest(scope, receive, noting)
        except Disconnected:
            return 499
        return status


async def _answered(handler: Handler, scope: Scope, receive: Receive, send: Send) -> int:
    """Send the handler's reply, or its problem; returns the status, 499 if the client is gone."""
    try:
        _require_method(scope, "POST")
        reply = await handler(scope, receive)
    except Disconnected:
        return 499
    except Exception as error:  # noqa: BLE001
        return await _refuse(_problem(error, scope), send)
    headers = [(b"content-type", b"application/json")]
    return await _reply(reply.status, reply.body, headers, send)


async def _streamed(application: ASGI, scope: Scope, receive: Receive, send: Send) -> int:
    has_begun = False

    async def noting(message: Any) -> None:
        nonlocal has_begun
        has_begun = True
        await send(message)

    try:
        _require_method(scope, "GET")
        await application(scope, receive, noting)
    except Exception as error:
        if has_begun:
            raise
        return await _refuse(_problem(error, scope), send)
    return 200


def _may_stay_unread(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether the body may not come, or takes longer to skip than a new connection."""
    return any(
        name in (b"expect", b"transfer-encoding")
        or (name == b"content-length" and int(value) > _SKIPPED)
        for name, value in headers
    )


def _closing_if_unread(receive: Receive, send: Send) -> tuple[Receive, Send]:
    """Close behind a reply that comes before the body was read.

    A client that waits for 100 Continue may not send its body then: its next request would pass for it.
    """
    is_read = False

    async def reading() -> Any:
        nonlocal is_read
        message = await receive()
        is_read = is_read or not message.get("more_body", False)
        return message

    async def closing(message: Any) -> None:
        if message["type"] == "http.response.start" and not is_read:
            others = [each for each in message["headers"] if each[0] != b"connection"]
            message = {**message, "headers": [*others, (b"connection", b"close")]}
        await send(message)

    return reading, closing


def _require_method(scope: Scope, method: str) -> None:
    if scope["method"] != method:
        detail = f"{scope['path']} takes {method} only"
        raise Problem(405, "method_not_allowed", detail, headers={"allow": method}, close=True)


def _problem(error: Exception, scope: Scope) -> Problem:
    if isinstance(error, Problem):
        return error
    log.error("http.failed", path=scope["path"], exc_info=error)
    return internal()


async def _refuse(problem: Problem, send: Send) -> int:
    return await _reply(problem.status, problem.body(), problem.headers(), send)


async def _reply(status: int, body: bytes, headers: list[tuple[bytes, bytes]], send: Send) -> int:
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
    return status


def internal() -> Problem:
    """500, which says nothing of the cause: the log does."""
    return Problem(500, "internal", "the request failed; this server's log says why", close=True)
