"""The application: the routes that every order takes, and FastAPI's for the others."""

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog

from pos_gateway.server.body import Disconnected, Receive, Scope, Send
from pos_gateway.server.problems import Problem
from pos_gateway.server.submitting import Handler, Reply
from pos_gateway.telemetry import metrics

log = structlog.get_logger(__name__)

ASGI = Callable[[Scope, Receive, Send], Awaitable[None]]


class Application:
    """An ASGI application.

    Args:
        posts: handlers of ``POST`` by path.
        rest: the application for other paths.
    """

    def __init__(self, posts: Mapping[str, Handler], rest: ASGI) -> None:
        self._posts = posts
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._rest(scope, receive, send)
            return
        began = time.perf_counter()
        # Not decoded: an id may have a slash in it, as %2F.
        scope["path"] = path = scope["raw_path"].decode("ascii")
        handler = self._posts.get(path)
        if handler is not None:
            status = await answered(handler, scope, receive, send)
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


async def answered(handler: Handler, scope: Scope, receive: Receive, send: Send) -> int:
    """Send the handler's reply, or its problem; returns the status, 499 if the client is gone."""
    try:
        if scope["method"] != "POST":
            detail = f"{scope['path']} takes POST only"
            raise Problem(405, "method_not_allowed", detail, headers={"allow": "POST"}, close=True)
        reply = await handler(scope, receive)
        headers = [(b"content-type", b"application/json")]
    except Problem as problem:
        reply, headers = Reply(problem.status, problem.body()), problem.headers()
    except Disconnected:
        return 499
    except Exception:
        log.exception("http.failed", path=scope["path"])
        failure = internal()
        reply, headers = Reply(failure.status, failure.body()), failure.headers()
    headers.append((b"content-length", b"%d" % len(reply.body)))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})
    return reply.status


def internal() -> Problem:
    """500, which says nothing of the cause: the log does."""
    return Problem(500, "internal", "the request failed; this server's log says why", close=True)
