"""What the server uses of uvicorn beyond its documentation; used nowhere else.

- ``HttpToolsProtocol``'s ``connection_made``, ``data_received``, ``on_header``, ``on_body`` and
  ``on_message_complete``: uvicorn has no time limit for a request's head and body, none for a
  connection that says nothing, and no limit on a head's size (promise 5: a client that sends a byte
  a second would keep a connection for ever).
- ``Server.capture_signals`` and ``handle_exit``: streams are told to reconnect when the process is
  told to stop, which uvicorn does only once they have ended; and it then dies of its signal, where
  this process has ended as it should.
"""

import asyncio
import contextlib
import signal
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

    Class attributes are set by ``Server``.
    """

    #: Most connections at once.
    max_connections = 4096

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        #: When the request that has not come completely began; None: there is none.
        self.since: float | None = None
        self._head = 0
        self._in_head = True

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.since = self.loop.time()
        if len(self.connections) > self.max_connections:
            self.refuse(
                Problem(
                    503,
                    "too_many_connections",
                    f"this server has its {self.max_connections} connections",
                    retry_after=1,
                    close=True,
                )
            )

    def data_received(self, data: bytes) -> None:
        if self.since is None:
            self.since = self.loop.time()
        if self._in_head:
            self._head += len(data)
        super().data_received(data)
        # Judged behind the parser: a body that came with its head does not count.
        if self._in_head and self._head > HEAD_BYTES:
            self.refuse(_HEAD_TOO_LARGE)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True

    def on_headers_complete(self) -> None:
        self._in_head, self._head = False, 0
        if len(self.headers) > HEADERS:
            self.refuse(_HEAD_TOO_LARGE)
            return
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self.since, self._in_head, self._head = None, True, 0

    def is_slow(self, now: float) -> bool:
        """Whether the present request should have come completely by now."""
        return self.since is not None and now - self.since > REQUEST_TIMEOUT

    def refuse(self, problem: Problem) -> None:
        """Reply, if nothing was replied to the present request, and close."""
        if self.transport is None or self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            body = problem.body()
            head = [b"HTTP/1.1 %d %s\r\n" % (problem.status, problem.content()["title"].encode())]
            head += [b"%s: %s\r\n" % each for each in problem.headers()]
            self.transport.write(b"".join(head) + b"content-length: %d\r\n\r\n" % len(body) + body)
        self.transport.close()


_HEAD_TOO_LARGE = Problem(
    431,
    "head_too_large",
    f"the request's line and headers have more than {HEAD_BYTES} bytes, or more than {HEADERS} headers",
    close=True,
)
_SLOW = Problem(
    408, "slow_request", f"the request did not come within {REQUEST_TIMEOUT:g} s", close=True
)


class Server(uvicorn.Server):
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
                    if connection.cycle is None and connection._head == 0:
                        connection.transport.close()  # it never said anything
                    else:
                        connection.refuse(_SLOW)

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
