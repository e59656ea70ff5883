"""HTTP on one connection: requests out of bytes, replies in the order of the requests."""

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable

import httptools

from pos_gateway.simulated_merchants.replies import CountedReply, error_reply

#: Closing a socket that lingers for 0 seconds resets the connection.
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_BAD_REQUEST = error_reply(400, "bad_request", "that is not HTTP", "Connection: close")


class Exchange:
    """One request, to be answered once, now or later."""

    __slots__ = (
        "_connection",
        "body",
        "keep_alive",
        "key",
        "method",
        "on_gone",
        "target",
        "traceparent",
    )

    def __init__(
        self,
        connection: "ClientConnection",
        method: bytes,
        target: bytes,
        key: bytes,
        traceparent: bytes,
        body: bytes,
        keep_alive: bool,
    ) -> None:
        self._connection = connection
        self.method = method
        self.target = target
        self.key = key
        self.traceparent = traceparent
        self.body = body
        self.keep_alive = keep_alive
        #: Called when the client leaves before the answer.
        self.on_gone: Callable[[], None] | None = None

    def send(self, data: bytes) -> None:
        """Write the beginning of the reply; ``answer`` writes the rest."""
        self._connection.send(self, data)

    def answer(self, reply: CountedReply) -> None:
        """Write the reply; the connection goes on to its next request."""
        self._connection.finish(self, reply.data)

    def reset(self) -> None:
        """Reset the connection in place of a reply."""
        self._connection.reset()


class ClientConnection(asyncio.Protocol):
    """A client's connection. Requests that come before their turn wait for the reply before."""

    def __init__(
        self, handler: Callable[[Exchange], None], connections: "ClientConnections"
    ) -> None:
        self._handler = handler
        self._connections = connections
        self._parser = httptools.HttpRequestParser(self)
        self._current: Exchange | None = None
        self._behind: deque[Exchange] = deque()
        self._transport: asyncio.Transport
        self._target = self._key = self._traceparent = self._body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._connections.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.closed(self)
        self._behind.clear()
        self._parser = None  # it holds this object: without the cycle, both go at once
        left, self._current = self._current, None
        if left is not None and left.on_gone is not None:
            left.on_gone()
            left.on_gone = None

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            raise  # a mistake in here, not the client's
        except httptools.HttpParserError:
            self._transport.write(_BAD_REQUEST.data)
            self._transport.close()

    def on_message_begin(self) -> None:
        self._target = self._key = self._traceparent = self._body = b""

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(name) == 15 and name.lower() == b"idempotency-key":
            self._key = value
        elif len(name) == 11 and name.lower() == b"traceparent":
            self._traceparent = value

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if self._transport.is_closing():
            return  # pipelined behind a request that ended the connection
        parser = self._parser
        exchange = Exchange(
            self,
            parser.get_method(),
            self._target,
            self._key,
            self._traceparent,
            self._body,
            parser.should_keep_alive(),
        )
        if self._current is None and not self._behind:
            self._current = exchange
            self._handler(exchange)
        else:
            self._behind.append(exchange)

    def send(self, exchange: Exchange, data: bytes) -> None:
        """Write a part of the reply to the request whose turn it is."""
        assert exchange is self._current
        self._transport.write(data)

    def finish(self, exchange: Exchange, data: bytes) -> None:
        """Write the reply to the request whose turn it is."""
        assert exchange is self._current
        self._current = None
        exchange.on_gone = (
            None  # with it the cycle of exchange and call; nothing is left to collect
        )
        self._transport.write(data)
        if not exchange.keep_alive:
            self._transport.close()
        elif self._behind:
            # Not at once: a thousand pipelined requests would be a thousand calls deep.
            asyncio.get_running_loop().call_soon(self._begin_next)

    def _begin_next(self) -> None:
        if self._behind:
            self._current = self._behind.popleft()
            self._handler(self._current)

    def reset(self) -> None:
        """Reset the connection; what was not answered is lost."""
        if self._current is not None:
            self._current.on_gone = None
        self._current = None
        sock = self._transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._transport.abort()

    def drop(self) -> None:
        """Close the connection as a server that stops does."""
        self._transport.abort()

    def is_waiting_for_another_than(self, exchange: Exchange) -> bool:
        """Whether some other request on this connection has no reply yet."""
        return self._current is not None and self._current is not exchange


class ClientConnections:
    """The open connections, and how many there have been."""

    def __init__(self) -> None:
        self._open: set[ClientConnection] = set()
        self._max_open = 0
        self._accepted = 0

    def opened(self, connection: ClientConnection) -> None:
        """A client has connected."""
        self._open.add(connection)
        self._accepted += 1
        self._max_open = max(self._max_open, len(self._open))

    def closed(self, connection: ClientConnection) -> None:
        """A connection has ended."""
        self._open.discard(connection)

    def reset(self, spare: Exchange) -> None:
        """Drop the connections that wait for a reply, but for that of ``spare``; count afresh."""
        for connection in list(self._open):
            if connection.is_waiting_for_another_than(spare):
                connection.drop()
        self._max_open = self._accepted = len(self._open)

    def drop(self) -> None:
        """Drop all of them."""
        for connection in list(self._open):
            connection.drop()

    def as_json(self) -> dict[str, int]:
        """The figures by name."""
        return {"open": len(self._open), "max_open": self._max_open, "accepted": self._accepted}
