"""What the server uses of uvicorn beyond its documentation; used nowhere else.

``HttpToolsProtocol`` has no limit on a request's time, on its head's size and on what a client leaves
unread, and these faults, which a client can use:

- ``data_received``: a malformed request is answered at once, before the requests ahead of it, which
  are then not answered at all; what follows an ``Upgrade`` in one packet is dropped, and its rest read
  as a request.
- ``data_received``, too: all requests of a packet are parsed, and wait behind the one that is being
  answered: thousands in a packet of a quarter of a megabyte, at five kilobytes each. And nothing bounds the
  bytes that wait on all connections together.
- ``on_headers_complete``: trailers become headers of a request that was checked without them.
- ``connection_made``: above its limit it refuses new clients, even if all others say nothing.
- ``on_headers_complete``, too: a reply without a length has chunks, which HTTP/1.0 does not know.
- ``eof_received``: a client that has ended its side gets no reply to an order that was published, and
  half of a long reply.
- ``connection_lost``: the timer of a connection that was reset keeps it in memory; a request with others
  after it does not hear of it, and its reply fails with a trace in the log.
- ``transport.close`` as its cycles call it: a reply to a request that is still being sent is lost, as
  the client's system drops it on the reset that follows.

- the parser, as httptools builds it: it takes the body of a request with ``Upgrade`` for what follows, where
  RFC 9110, 7.8, has a server ignore an upgrade.

``uvloop.Loop``: its servers say nothing of a connection before its TLS handshake is done, and uvicorn gives them
no time limit.

``HttpServer.capture_signals``, ``main_loop`` and ``shutdown``: a stop ends the streams first, so that their clients
reconnect elsewhere: uvicorn would wait for them. And uvicorn's process dies of its signal; this one exits
with 0.
"""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, ClassVar

import httptools
import uvicorn
import uvloop
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from pos_gateway.server.held import FREE, Held
from pos_gateway.server.problems import Problem
from pos_gateway.server.tls_listener import TlsListener
from pos_gateway.telemetry import metrics

#: Seconds for a request to arrive, from its first byte to its last, and for a new connection's first byte.
REQUEST_TIMEOUT = 10.0
#: Seconds within which a client has to read something of what is sent to it.
WRITE_TIMEOUT = 30.0
#: Unread bytes above which nothing more is written to a client.
WRITE_AHEAD = 16 * 1024
#: Seconds for which the rest of a request is read, and dropped, after the last reply.
LINGER = 2.0
#: Maximum bytes of a request's line and headers together, and maximum headers.
HEAD_BYTES, HEADERS = 16 * 1024, 100
#: Maximum bytes around each byte of a chunked body: a chunk of one byte has five.
_AROUND = 16
#: Requests of a connection that may wait for the one before: above it nothing more is parsed.
PIPELINED = 2
#: The end of a head, or of a body in chunks. No more is parsed at once: the next request may have to wait.
_BLANK_LINE = b"\r\n\r\n"
#: But bytes of a body in chunks that are, or one of blank lines would take a hundred times as long as another;
#: three more requests may begin in them.
LEAST = 64
#: Seconds between two searches for clients that are too slow.
_SWEEP = 1.0


class Protocol(HttpToolsProtocol):
    """uvicorn's, with limits on a request's time and head, and on the number of connections.

    A server has a subclass of its own, with the class attributes.
    """

    flow: "_Flow"
    #: Maximum connections at once.
    max_connections = 4096
    #: The connections without a request that is being answered, the longest idle first.
    idle: ClassVar[dict["Protocol", None]] = {}
    #: Bounds what waits on all connections.
    held: ClassVar[Held] = Held()

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        #: When the incomplete request began; None: there is none.
        self.since: float | None = None
        #: Whether its first byte arrived, and whether its head is still incomplete.
        self._has_begun = False
        self._in_head = True
        #: Bytes of its head; of its body, and with what is around it.
        self._bytes = self._body = 0
        #: Of its body, as its head says: the rest is parsed at once, since no request begins in it.
        self._length = 0
        #: The request that is being answered.
        self._running: RequestResponseCycle | None = None
        #: The framing of a body behind an ``Upgrade``, until the parser has it; and whether it has, so that
        #: what it says of a head is said again.
        self._framing = b""
        self._is_framed = False
        #: Bytes that came behind ``PIPELINED`` requests, and where those begin that are not parsed yet.
        self._unparsed, self._at = b"", 0
        #: Whether ``held`` counts bytes of this connection.
        self._is_held = False
        #: The refusal after which nothing is read any more.
        self._refusal: Problem | None = None
        self._is_lingering = False
        #: Bytes that the client has read, and when it was last seen to read some, or to have all.
        self._taken = 0
        self._taken_at = 0.0

    # The transport's calls.

    def connection_made(self, transport: Any) -> None:
        transport.set_write_buffer_limits(high=WRITE_AHEAD)
        super().connection_made(_Transport(transport, self._close))  # type: ignore[arg-type]
        self.flow = _Flow(self.transport)
        self.since = self.loop.time()
        if len(self.connections) > self.max_connections and not self._make_room():
            return
        self.idle[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._running is not None and self._running is not self.cycle:  # one waits behind it
            self._running.disconnected = True
            self._running.message_event.set()
        self.idle.pop(self, None)
        self.held.count(self, 0)
        self._unset_keepalive_if_required()
        self.transport.close = _nothing  # type: ignore[method-assign]  # or it is garbage in a cycle

    def data_received(self, data: bytes) -> None:
        if self._is_lingering:
            return
        if self._refusal is not None:  # it waits for its turn
            self.flow.pause_reading()
            return
        self._unset_keepalive_if_required()
        self._parse(self._unparsed[self._at :] + data if self._unparsed else data, 0)
        self._count_held()

    def _parse(self, data: bytes, at: int) -> None:
        """Parse until ``PIPELINED`` requests wait; the rest is kept until they are answered."""
        while at < len(data) and len(self.pipeline) < PIPELINED and self._refusal is None:
            end = self._end_of_part(data, at)
            self._parse_part(memoryview(data)[at:end])
            at = end
        is_left = at < len(data) and self._refusal is None
        self._keep(data if is_left else b"", at)

    def _end_of_part(self, data: bytes, at: int) -> int:
        """The end of the present head or body, so that no request behind it is parsed."""
        if not self._in_head and self._body < self._length:
            return at + self._length - self._body
        end = data.find(_BLANK_LINE, at if self._in_head else at + LEAST)
        return len(data) if end < 0 else end + len(_BLANK_LINE)

    def _keep(self, data: bytes, at: int) -> None:
        self._unparsed, self._at, self.flow.is_full = data, at, bool(data)
        if data:  # the next reply resumes: others wait for theirs
            self.flow.pause_reading()

    def _count_held(self) -> None:
        """Count the bytes that wait: unparsed, of an incomplete head, and of bodies that nothing has taken."""
        size = len(self._unparsed) + (self._bytes if self._in_head else 0)
        if self.cycle is not None:
            size += len(self.cycle.body)
            if self.pipeline:
                assert self._running is not None  # noqa: S101
                size += len(self._running.body) + sum(len(each.body) for each, _ in self.pipeline)
        if size > FREE or self._is_held:
            self._is_held = size > FREE
            self.held.count(self, size)

    def abort(self) -> None:
        """End the connection at once: too much waits in memory."""
        metrics.http_requests("(none)", "499").inc()
        self.transport.abort()

    def _parse_part(self, data: memoryview) -> None:
        if self.since is None:
            self.since = self.loop.time()
        self._bytes += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            cause = error.__context__  # a callback's
            self.refuse(cause if isinstance(cause, Problem) else _malformed())
            return
        # Judged after the parser: a body that came with its head does not count.
        if self._in_head:
            if self._bytes > HEAD_BYTES:
                self.refuse(_head_too_large())
        elif self._bytes - _AROUND * self._body > HEAD_BYTES:
            self.refuse(_malformed())  # extensions of a chunk, or trailers, without end

    def eof_received(self) -> bool:  # type: ignore[override]
        """Answer the POSTs that came completely, and end a reply that has begun; close at once if there are none."""
        running = self._running
        if running is None or self.scheme == "https":  # which has no half of a connection
            return False
        has_begun = running.expected_content_length > 0  # 0, too: it is a stream
        # Others may wait for events: nothing but the end of its side says that the client is gone.
        if not has_begun and (running.more_body or running.scope["method"] != "POST"):
            return False
        if self.since is None or running.more_body:
            self.since, self.cycle.keep_alive = None, False  # nothing more comes
        else:
            self.refuse(_malformed())  # it was cut short
        return True

    # The parser's calls. What they raise, ``data_received`` gets.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._has_begun = self._in_head = True
        if self.since is None:  # it came in one packet with the end of the one before
            self.since = self.loop.time()

    def on_headers_complete(self) -> None:
        if self._is_framed:  # its request has begun
            self._is_framed = self._in_head = False
            self._bytes = 0
            return
        length, self._framing = _require_sound(self.parser, self.url, self.headers)
        super().on_headers_complete()
        if self.parser.get_http_version() == "1.0":  # the end of the connection ends its reply
            self.cycle.chunked_encoding = False
            self.cycle.expected_content_length = _AnyLength()
        self._in_head, self._bytes, self._body = False, 0, 0
        self._length = length
        self.headers = []  # trailers go there
        self.idle.pop(self, None)
        if not self.pipeline:
            self._running = self.cycle

    def on_body(self, body: bytes) -> None:
        self._body += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._framing:  # the parser skips the body
            return
        super().on_message_complete()
        self.since, self._has_begun, self._in_head, self._bytes = None, False, True, 0

    # The cycles' and the server's calls.

    def on_response_complete(self) -> None:
        was_last = not self.pipeline
        self._running = None if was_last else self.pipeline[-1][0]
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if was_last:
            if self._refusal is not None:
                self._reply(self._refusal)
                return
            self.idle[self] = None
        if self._unparsed:
            self._unset_keepalive_if_required()
            self._parse(self._unparsed, self._at)
        if self._is_held:
            self._count_held()

    def shutdown(self) -> None:
        """Close, once the request in flight is answered."""
        if self.cycle is None or self.cycle.response_complete:
            self._is_lingering = True  # no more: the process ends
        super().shutdown()

    def refuse(self, problem: Problem) -> None:
        """Answer the requests that came completely, then the present one with this; then close."""
        if self._refusal is not None or self.transport.is_closing():
            return
        self._refusal = problem.with_traceback(None)  # whose frames have this connection
        cycle = self.cycle
        if self._in_head:
            if cycle is None or cycle.response_complete:
                self._reply(problem)
        elif self.pipeline and self.pipeline[0][0] is cycle:
            self.pipeline.popleft()  # it waits for those before, and would never be complete
        else:
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started:
                self.transport.close()
            else:
                self._reply(problem)

    def sweep(self, now: float) -> None:
        """Close it if its client is too slow in sending, or in reading."""
        if self._is_held:
            self._count_held()
        transport: _Transport = self.transport  # type: ignore[assignment]
        unsent = transport.get_write_buffer_size()
        taken = transport.written - unsent
        if unsent == 0 or taken > self._taken:
            self._taken, self._taken_at = taken, now
        elif now - self._taken_at > WRITE_TIMEOUT:
            transport.abort()
            return
        if self.since is None:
            return
        if now - self.since > (LINGER if self._is_lingering else REQUEST_TIMEOUT):
            if self._has_begun and not self._is_lingering:
                self.refuse(_slow())
            else:
                self._close_now()

    def _feed(self, data: memoryview) -> None:
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:  # it is not taken: HTTP/1.1 goes on
                data = data[upgrade.args[0] :]
                if self._framing:  # the same again, without an upgrade: the parser reads the body
                    framing, self._framing, self._is_framed = self._framing, b"", True
                    self.parser.feed_data(framing)

    @classmethod
    def end_idle(cls) -> bool:
        """Close the connection that is idle for longest; False: none is."""
        oldest = next(iter(cls.idle), None)
        if oldest is None:
            return False
        del cls.idle[oldest]
        oldest._close_now()
        return True

    def _make_room(self) -> bool:
        """Close the connection that is idle for longest; False: none is, and this one is refused."""
        if self.end_idle():
            return True
        self._is_lingering = True  # not for long: there may be many
        detail = f"this server has its {self.max_connections} connections"
        self.refuse(Problem(503, "too_many_connections", detail, retry_after=1, close=True))
        return False

    def _close_now(self) -> None:
        self._is_lingering = True
        if self.scheme == "https":  # ``close`` waits for the client to say goodbye
            self.transport.abort()
        else:
            self.transport.close()

    def _reply(self, problem: Problem) -> None:
        metrics.http_requests("(none)", str(problem.status)).inc()
        body = problem.body()
        head = [b"HTTP/1.1 %d %s\r\n" % (problem.status, problem.content()["title"].encode())]
        head += [b"%s: %s\r\n" % each for each in problem.headers()]
        self.transport.write(b"".join(head) + b"content-length: %d\r\n\r\n" % len(body) + body)
        self.transport.close()

    def _close(self) -> None:
        """Close; while its client sends a request, end our side alone, and close after ``LINGER``."""
        transport: _Transport = self.transport  # type: ignore[assignment]
        if self.since is None or self._is_lingering or not transport.can_write_eof():
            transport.really_close()
            return
        self._is_lingering = transport.is_ending = True
        self.since = self.loop.time()
        self._keep(b"", 0)
        transport.write_eof()
        self.flow.resume_reading()


class _Transport:
    """A transport with another ``close``, and a ``write`` that does not fail."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self._transport = transport
        self.close = close
        self.really_close = transport.close
        self.is_ending = False
        #: Bytes that were written.
        self.written = 0

    def write(self, data: bytes) -> None:
        """Write, unless it is closed: uvloop's raises then, until the request has heard of it."""
        if not self._transport.is_closing():
            self.written += len(data)
            self._transport.write(data)

    def is_closing(self) -> bool:
        return self.is_ending or self._transport.is_closing()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _Flow(FlowControl):
    """uvicorn's, which reads nothing while what came before is not parsed."""

    is_full = False

    def resume_reading(self) -> None:
        if not self.is_full:
            super().resume_reading()


class _AnyLength(int):
    """The length of a body that the end of the connection ends: never too short, and never left."""

    def __lt__(self, _other: int) -> bool:
        return False

    def __sub__(self, _other: int) -> "_AnyLength":
        return self

    def __ne__(self, _other: object) -> bool:
        return False

    __hash__ = int.__hash__


def _nothing() -> None:
    pass


def _require_sound(
    parser: Any, url: bytes, headers: list[tuple[bytes, bytes]]
) -> tuple[int, bytes]:
    """The length of its body, 0 if it has none, or chunks; and a head that frames it, if it follows an upgrade.

    Raises Problem for what a proxy before this server may have understood otherwise.
    """
    size, hosts, length, has_chunks = len(url), 0, 0, False
    is_old = parser.get_http_version() != "1.1"
    for name, value in headers:
        size += len(name) + len(value)
        if name == b"host":
            hosts += 1
        elif name == b"transfer-encoding" and (is_old or value.strip().lower() != b"chunked"):
            raise _unsupported_coding()
        if name == b"transfer-encoding":
            has_chunks = True
        elif name == b"content-length":
            length = int(value)  # the parser has refused what is no number
    if size > HEAD_BYTES or len(headers) > HEADERS:
        raise _head_too_large()
    if hosts > 1 or (hosts == 0 and not is_old):
        raise _bad_host()
    framing = b""
    if (has_chunks or length) and parser.should_upgrade():
        if parser.get_method() == b"CONNECT":
            raise _bad_target()
        coding = b"Transfer-Encoding: chunked" if has_chunks else b"Content-Length: %d" % length
        framing = b"POST / HTTP/1.1\r\n" + coding + _BLANK_LINE
    if not url.startswith((b"/", b"http://", b"https://")) or not url.isascii():
        raise _bad_target()
    return 0 if has_chunks else length, framing


def _refusal(
    status: int, code: str, detail: str, *, retry_after: float | None = None
) -> Callable[[], Problem]:
    """Makes the problem; one that is raised again and again would collect tracebacks."""
    return lambda: Problem(status, code, detail, retry_after=retry_after, close=True)


_malformed = _refusal(400, "malformed_request", "the request is not HTTP/1.1")
_bad_target = _refusal(
    400, "bad_target", "the request's target should be a path, percent-encoded, or an http URL"
)
_bad_host = _refusal(400, "bad_host", "an HTTP/1.1 request has the header Host once")
_unsupported_coding = _refusal(
    501, "unsupported_coding", "the one Transfer-Encoding that is taken is chunked, over HTTP/1.1"
)
_head_too_large = _refusal(
    431,
    "head_too_large",
    f"the request's line and headers have more than {HEAD_BYTES} bytes, or more than {HEADERS} headers",
)
_slow = _refusal(408, "slow_request", f"the request did not come within {REQUEST_TIMEOUT:g} s")


class Loop(uvloop.Loop):  # type: ignore[misc]  # it has no types
    """uvloop's, whose TLS connections count before their handshake, which may take no longer than a request."""

    async def create_server(self, make: Any, *arguments: Any, **named: Any) -> Any:
        """uvloop's, and with ``ssl`` our own."""
        if named.get("ssl") is not None:
            return TlsListener(named["sock"], named["ssl"], make, REQUEST_TIMEOUT)
        return await super().create_server(make, *arguments, **named)


class HttpServer(uvicorn.Server):
    """uvicorn's, which closes slow clients, and says first that it stops.

    Args:
        config: its ``http`` is ``Protocol``.
        on_stop: called once, in the loop, when the process is to stop.
    """

    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_stop = on_stop
        self._sweeping: asyncio.Task[None] | None = None

    async def main_loop(self) -> None:
        """Sweep until the process is to stop."""
        self._sweeping = asyncio.create_task(self._sweep())
        try:
            await super().main_loop()
        finally:
            self._on_stop()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish the requests in flight; clients may be too slow then as well."""
        await super().shutdown(sockets)
        if self._sweeping is not None:
            self._sweeping.cancel()

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SWEEP)
            now = loop.time()
            for connection in list(self.server_state.connections):
                if isinstance(connection, Protocol):
                    connection.sweep(now)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT stop it; a second one has its default effect."""
        before: dict[signal.Signals, Any] = {}

        def stop(_number: int, _frame: FrameType | None) -> None:
            self.should_exit = True
            for each in before:
                signal.signal(each, signal.SIG_DFL)

        for each in (signal.SIGTERM, signal.SIGINT):
            before[each] = signal.signal(each, stop)
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)
