"""``GET /v1/events/stream``: server-sent events. Plain ASGI, since an idle stream is to weigh little.

https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

import asyncio
from collections.abc import Sequence

from pos_gateway.domain.http_limits import PAGE
from pos_gateway.server.access import Access
from pos_gateway.server.body import Receive, Scope, Send, disconnected, header
from pos_gateway.server.following import RETRY_AFTER, Event, Feeds, Following, end
from pos_gateway.server.problems import Problem
from pos_gateway.server.query import LAST_POSITION, require_parameters, whole
from pos_gateway.server.unread import PART, Unread
from pos_gateway.telemetry import metrics
from pos_gateway.tokens.token import Capability, Token

_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would collect events
]
#: Bytes of events that are read ahead of a client: it may take none of them.
_AHEAD = 64 * 1024
#: Milliseconds after which a client reconnects.
_RETRY = b"retry: 1000\n"
_ALIVE, _STOPS = b": still here\n\n", b": this server stops; reconnect\n\n"
_INVALID = b": the token is not valid any more\n\n"
#: Characters of JSON texts at which clients end a line that read the stream as text, and their escapes.
_LINE_ENDS = [(each.encode(), b"\\u%04x" % ord(each)) for each in ("\u0085", "\u2028", "\u2029")]


class Streaming:
    """The route. For the event loop."""

    def __init__(self, access: Access, feeds: Feeds, unread: Unread) -> None:
        self._access = access
        self._feeds = feeds
        self._unread = unread

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the client goes, its token is invalid, or this process stops.

        Raises Problem before it begins.
        """
        token = self._access.require(scope, Capability.READ)
        following = self._feeds.of(token)
        after = _position(scope)
        if after is None:
            after = await following.last()
        self._access.revealed(token, scope, "events.reveal")
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        gone = asyncio.ensure_future(disconnected(receive))
        metrics.http_streams.inc()
        try:
            with following.listening():
                await self._send_events(following, after, token, send, gone)
        finally:
            metrics.http_streams.dec()
            gone.cancel()

    async def _send_events(
        self,
        following: Following,
        after: int,
        token: Token,
        send: Send,
        gone: "asyncio.Future[None]",
    ) -> None:
        """A slow client delays no other: the next are read for it when it has taken these."""
        # An id without data is no event, and the client's position from here on.
        await _send(send, _RETRY + b"id: %d\n\n" % after)
        beats = following.beats
        while not (gone.done() or following.is_stopping) and self._access.is_valid(token):
            with following.waiter() as waiter:
                try:
                    room = self._unread.room(_AHEAD, token.digest)
                    events = await following.events_after(after, PAGE, room)
                    with self._unread.holding(sum(len(each.body) for each in events), token.digest):
                        await self._send_all(send, events, token)
                except Problem:
                    await asyncio.sleep(RETRY_AFTER)
                    continue
                if events:
                    after, beats = events[-1].position, following.beats
                    continue
                if beats != following.beats:
                    beats = following.beats
                    await _send(send, _ALIVE)
                gone.add_done_callback(wake := lambda _: end(waiter))
                await waiter
                gone.remove_done_callback(wake)
        if not gone.done():
            last = _STOPS if following.is_stopping else _INVALID
            await send({"type": "http.response.body", "body": last})

    async def _send_all(self, send: Send, events: Sequence[Event], token: Token) -> None:
        """In parts: the next waits until the client has taken most of this one."""
        part: list[bytes] = []
        for event in events:
            part.append(_written(event))
            if sum(map(len, part)) >= PART or event is events[-1]:
                if not self._access.is_valid(token):  # it may have been revoked while they waited
                    return
                await _send(send, b"".join(part))
                part.clear()


async def _send(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


def _position(scope: Scope) -> int | None:
    """The position that the client has; None: it wants what comes from now on. Raises Problem."""
    after = require_parameters(scope["query_string"], ("after",)).get("after")
    last = header(scope["headers"], b"last-event-id")
    if last is not None and last.strip():  # some clients send it empty before they have one
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


def _written(event: Event) -> bytes:
    # JSON has line breaks between its parts only: a backend's order may be laid out on many lines.
    line = event.body.replace(b"\r", b" ").replace(b"\n", b" ")
    for character, escaped in _LINE_ENDS:
        line = line.replace(character, escaped)
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.position, event.type.encode(), line)
