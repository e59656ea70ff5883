"""What the server uses of uvicorn beyond its documentation; used nowhere else.

- ``HttpToolsProtocol``'s callbacks, and its state: uvicorn has no time limit for a request's head and
  body, none for a connection that says nothing, and no limit on a head's size (promise 5: a client
  that sends a byte a second would keep a connection for ever). It goes on behind a request to
  upgrade, whose body its parser does not read.
- ``Server.capture_signals`` and ``handle_exit``: streams are told to reconnect when the process is
  told to stop, which uvicorn does only once they have ended; and it then dies of its signal, where
  this process has ended as it should.
"""

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pos_gateway.server.problems import Problem

#: Seconds for a request to come, from its first byte to its last, and for a new connection's first.
REQUEST_TIMEOUT = 10.0
#: Most bytes of a request's line and headers together, and most headers.
HEAD_BYTES, HEADERS = 32 * 1024, 100
#: Seconds between two searches for clients that are too slow.
_SWEEP = 1.0


class Protocol(HttpToolsProtocol):
    """uvicorn's, with limits on a request's time and head, and on the number of connections.

    ``Server`` closes slow clients; class attributes may be set in a subclass.
    """

    #: Most connections at once, and seconds for a request.
    max_connections, request_timeout = 4096, REQUEST_TIMEOUT

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        #: When the request that has not come completely began; None: there is none.
        self._since: float | None = None
        self._head = 0
        self._is_in_head = True
        self._is_refused = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._since = self.loop.time()
        if len(self.connections) > self.max_connections:
            why = f"this server has its {self.max_connections} connections"
            self.refuse(Problem(503, "too_many_connections", why, retry_after=1, close=True))
            transport.close()

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if self._since is None:
            self._since = self.loop.time()
        if self._is_in_head:
            self._head += len(data)
        super().data_received(data)
        # Judged behind the parser: a body that came with its head does not count.
        if self._is_in_head and self._head > HEAD_BYTES:
            self.refuse(_HEAD_TOO_LARGE)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = True
        if self._since is None:  # it came in the packet of the one before
            self._since = self.loop.time()

    def on_headers_complete(self) -> None:
        if len(self.headers) > HEADERS or sum(map(_size, self.headers)) > HEAD_BYTES:
            self.refuse(_HEAD_TOO_LARGE)
        elif self.parser.should_upgrade():
            # The parser takes what follows for the other protocol: a body would be lost.
            self.refuse(_NO_UPGRADE)
        else:
            super().on_headers_complete()  # raises if the URL is none
            self._is_in_head, self._head = False, 0

    def on_body(self, body: bytes) -> None:
        if not self._is_in_head:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._is_in_head:
            super().on_message_complete()
        self._since, self._is_in_head, self._head = None, True, 0

    def send_400_response(self, msg: str) -> None:
        """As a problem: ``msg`` says only that it is no HTTP."""
        self.refuse(_NO_HTTP)

    def is_slow(self, now: float) -> bool:
        """Whether the present request should have come completely by now."""
        return self._since is not None and now - self._since > self.request_timeout

    def refuse(self, problem: Problem) -> None:
        """Reply, if the present request may be replied to, and close.

        What the client still sends is dropped until it has seen that, or its time is over: closed
        at once, the connection would be reset, and the reply lost with it.
        """
        if self._is_refused or self.transport is None or self.transport.is_closing():
            return
        self._is_refused = True
        if self._can_reply():
            body = problem.body()
            lines = [b"HTTP/1.1 %d %s" % (problem.status, problem.content()["title"].encode())]
            lines += [b"%s: %s" % each for each in problem.headers()]
            lines += [b"content-length: %d" % len(body), b"", body]
            self.transport.write(b"\r\n".join(lines))
            if self.transport.can_write_eof():
                self.transport.write_eof()
                return
        self.transport.close()

    def _can_reply(self) -> bool:
        """Whether a reply now would be taken for the present request's, and no other's."""
        if self.pipeline:
            return False
        if self._is_in_head:  # the last request is the one before
            return self.cycle is None or self.cycle.response_complete
        return not self.cycle.response_started

    def end(self) -> None:
        """Close a slow client's connection."""
        if self._is_refused:
            self.transport.close()
        else:
            self.refuse(_SLOW)


def _size(header: tuple[bytes, bytes]) -> int:
    return len(header[0]) + len(header[1])


_HEAD_TOO_LARGE = Problem(
    431,
    "head_too_large",
    f"the request's line and headers have more than {HEAD_BYTES} bytes, or more than {HEADERS} headers",
    close=True,
)
_SLOW = Problem(
    408, "slow_request", f"the request did not come within {REQUEST_TIMEOUT:g} s", close=True
)


_NO_UPGRADE = Problem(
    400, "upgrade_refused", "this server speaks HTTP/1.1 only: send no Upgrade", close=True
)
_NO_HTTP = Problem(400, "no_http", "the request is not valid HTTP/1.1", close=True)


class HttpServer(uvicorn.Server):
    """uvicorn's, which closes slow clients, and says first that it stops.

    Args:
        config: its ``http`` is ``Protocol``.
        on_stop: called once, in the loop, when the process is told to stop.
    """

    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_stop = on_stop

    async def main_loop(self) -> None:
        """Sweep until told to stop."""
        sweeping = asyncio.create_task(self._sweep())
        try:
            await super().main_loop()
        finally:
            sweeping.cancel()
            self._on_stop()

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SWEEP)
            now = loop.time()
            for connection in list(self.server_state.connections):
                if isinstance(connection, Protocol) and connection.is_slow(now):
                    connection.end()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT stop it; a second one has its default effect."""
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread may set handlers
            return
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
