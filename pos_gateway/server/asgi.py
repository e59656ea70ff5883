"""The application: the routes that every order takes, the operations page, and FastAPI's for the others."""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import structlog

from pos_gateway.server.access import HOLDER
from pos_gateway.server.body import Disconnected, Receive, Scope, Send
from pos_gateway.server.page.app import PageApp
from pos_gateway.server.problems import Problem
from pos_gateway.server.submitting import Handler
from pos_gateway.server.unread import Unread, refuse, reply
from pos_gateway.telemetry import metrics

log = structlog.get_logger(__name__)

#: Maximum bytes of a body that are skipped, if it is not read, before the next request.
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
        page: the operations page, for its paths.
        rest: the application for other paths.
        unread: bounds the replies.
    """

    def __init__(
        self,
        posts: Mapping[str, Handler],
        callbacks: Handler,
        streams: Mapping[str, ASGI],
        page: PageApp,
        rest: ASGI,
        unread: Unread,
    ) -> None:
        self._posts = posts
        self._callbacks = callbacks
        self._streams = streams
        self._page = page
        self._rest = rest
        self._unread = unread

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._rest(scope, receive, send)
            return
        began = time.perf_counter()
        if _may_stay_unread(scope["headers"]):
            receive, send = _closing_if_unread(receive, send)
        # Not decoded: an id may have a slash in it, as %2F.
        scope["path"] = path = scope["raw_path"].decode("ascii")
        status = 499

        async def noting(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        sending = self._unread.sending(noting, lambda: scope.get(HOLDER))
        try:
            if path in self._posts:
                await _answer(self._posts[path], scope, receive, sending)
            elif path.startswith(CALLBACKS):
                path = CALLBACKS + "{adapter}/{merchant_id}"
                await _answer(self._callbacks, scope, receive, sending)
            elif path in self._streams:
                await _stream(self._streams[path], scope, receive, sending)
            else:
                takes, path = self._page.takes(scope, path), "(none)"
                await (self._page if takes else self._rest)(scope, receive, sending)
        except Disconnected:  # FastAPI has replied with a 500 to it, which no client gets
            status = 499
        if (route := scope.get("route")) is not None:
            path = route.path
        metrics.http_requests(path, str(status)).inc()
        metrics.http_seconds(path).observe(time.perf_counter() - began)


async def _answer(handler: Handler, scope: Scope, receive: Receive, send: Send) -> None:
    """Send the handler's reply, or its problem."""
    try:
        _require_method(scope, "POST")
        found = await handler(scope, receive)
    except Disconnected:
        raise
    except Exception as error:  # noqa: BLE001
        await refuse(_problem(error, scope), send)
        return
    await reply(found.status, found.body, [(b"content-type", b"application/json")], send)


async def _stream(application: ASGI, scope: Scope, receive: Receive, send: Send) -> None:
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
        await refuse(_problem(error, scope), send)


def _may_stay_unread(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether the body may not come, or takes longer to skip than a new connection."""
    return any(
        name in (b"expect", b"transfer-encoding")
        or (name == b"content-length" and int(value) > _SKIPPED)
        for name, value in headers
    )


def _closing_if_unread(receive: Receive, send: Send) -> tuple[Receive, Send]:
    """Close after a reply that comes before the body was read.

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


def internal() -> Problem:
    """500, which says nothing of the cause: the log does."""
    return Problem(500, "internal", "the request failed; this server's log says why", close=True)
