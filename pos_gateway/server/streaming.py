"""``GET /v1/events/stream``: server-sent events. Plain ASGI, since an idle stream is to weigh little.

https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

import asyncio
from collections.abc import Callable, Sequence

from pos_gateway.domain.http_limits import PAGE
from pos_gateway.server.access import Access
from pos_gateway.server.body import Receive, Scope, Send, disconnected, header
from pos_gateway.server.following import AGAIN, Event, Following, end
from pos_gateway.server.orders import shown_to
from pos_gateway.server.problems import Problem
from pos_gateway.server.query import LAST_POSITION, require_parameters, whole
from pos_gateway.telemetry import metrics
from pos_gateway.tokens.token import Capability

_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would collect events
]
#: Bytes of events that are sent at once, and that are read ahead of a client; events to begin with.
_PART, _AHEAD, _FIRST = 64 * 1024, 256 * 1024, 50
#: Milliseconds after which a client reconnects.
_RETRY = b"retry: 1000\n\n"
_ALIVE, _STOPS = b": still here\n\n", b": this server stops; reconnect\n\n"


class Streaming:
    """The route. For the event loop."""

    def __init__(self, access: Access, following: Following) -> None:
        self._access = access
        self._following = following

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the client goes, or this process stops. Raises Problem before."""
        token = self._access.require(scope, Capability.READ)
        after = _position(scope)
        if after is None:
            after = await self._following.last()
        self._access.revealed(token, scope, "events.reveal")
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        gone = asyncio.ensure_future(disconnected(receive))
        metrics.http_streams.inc()
        try:
            with self._following.listening():
                await self._send_events(after, shown_to(token), send, gone)
        finally:
            metrics.http_streams.dec()
            gone.cancel()

    async def _send_events(
        self,
        after: int,
        shown: Callable[[bytes], bytes],
        send: Send,
        gone: "asyncio.Future[None]",
    ) -> None:
        """A slow client delays no other: the next are read for it when it has taken these."""
        following = self._following
        await _send(send, _RETRY)
        beats, most = following.beats, _FIRST
        while not (gone.done() or following.is_stopping):
            with following.waiter() as waiter:
                try:
                    events = await following.behind(after, most)
                except Problem:
                    await asyncio.sleep(AGAIN)
                    continue
                if events:
                    after, beats = events[-1].position, following.beats
                    most = _next_page(events)
                    await _send_all(send, events, shown)
                    continue
                if beats != following.beats:
                    beats = following.beats
                    await _send(send, _ALIVE)
                gone.add_done_callback(wake := lambda _: end(waiter))
                await waiter
                gone.remove_done_callback(wake)
        if not gone.done():
            await send({"type": "http.response.body", "body": _STOPS})


def _next_page(events: Sequence[Event]) -> int:
    """How many events to read, if they are as long as these: a client may take none of them."""
    size = sum(len(each.body) for each in events)
    return max(1, min(PAGE, len(events) * _AHEAD // max(1, size)))


async def _send_all(send: Send, events: Sequence[Event], shown: Callable[[bytes], bytes]) -> None:
    """In parts: the next waits until the client has taken most of this one."""
    part = bytearray()
    for event in events:
        part += _written(event, shown(event.body))
        if len(part) >= _PART:
            await _send(send, bytes(part))
            part.clear()
    if part:
        await _send(send, bytes(part))


async def _send(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


def _position(scope: Scope) -> int | None:
    """The position that the client has; None: it wants what comes from now on. Raises Problem."""
    after = require_parameters(scope["query_string"], ("after",)).get("after")
    last = header(scope["headers"], b"last-event-id")
    if last is not None:
        return _number("Last-Event-ID", last.decode("latin-1"))
    return None if after is None else _number("after", after)


def _number(name: str, text: str) -> int:
    try:
        number = whole(text)
    except ValueError as error:
        raise Problem(422, "invalid_request", f"{name}: {error}") from None
    if number > LAST_POSITION:
        raise Problem(422, "invalid_request", f"{name}: should be a position")
    return number


def _written(event: Event, body: bytes) -> bytes:
    # JSON has line breaks between its parts only: a backend's order may be laid out on many lines.
    line = body.replace(b"\r", b" ").replace(b"\n", b" ")
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.position, event.type.encode(), line)
