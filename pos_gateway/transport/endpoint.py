"""A merchant's POS: connections, each used by a single exchange at a time."""

import ssl
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pos_gateway.runtime import failpoints
from pos_gateway.transport import dial
from pos_gateway.transport.connection import Connection, TLSConnection
from pos_gateway.transport.deadline import CallContext, TimeIsUp
from pos_gateway.transport.errors import Misconfigured, NotSent, NoValidReply
from pos_gateway.transport.head import head
from pos_gateway.transport.messages import Reply, Request
from pos_gateway.transport.parser import read_reply

#: Minimum seconds that ``try_out`` listens on a new connection.
LISTEN = 0.25
#: Seconds for which a TLS session is resumed without verifying the peer's certificate again.
RESUMED = 3600.0


class IdleConnections:
    """All merchants' idle connections, also listed by each endpoint, last used last.

    Args:
        most: how many to keep open. The longest idle is closed first.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        #: The endpoint's list for each connection, the longest idle first.
        self._lists: OrderedDict[Connection, list[Connection]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._lists)

    def put(self, connection: Connection, idle: list[Connection]) -> None:
        """Keep a connection of the endpoint with the list ``idle``."""
        idle.append(connection)
        self._lists[connection] = idle
        if len(self._lists) > self._most:
            self._close(next(iter(self._lists)))

    def take(self, idle: list[Connection]) -> Connection:
        """The last used connection of the endpoint with the list ``idle``."""
        connection = idle.pop()
        self._lists.pop(connection, None)
        return connection

    def close_expired(self) -> None:
        """Close connections past their time: the peers have closed theirs, or soon will."""
        now = time.monotonic()
        for connection in list(self._lists):
            if now > connection.idle_until:
                self._close(connection)

    def _close(self, connection: Connection) -> None:
        with suppress(KeyError, ValueError):  # an exchange has taken the connection
            self._lists.pop(connection).remove(connection)
            connection.close()


class Endpoint:
    """Connections to one host, for one merchant's requests alone.

    The concurrency limit bounds a merchant's exchanges: no exchange waits for a connection.

    Args:
        name: the host's name or address.
        port: the host's port.
        host: the value of the Host header.
        connections: maximum idle connections.
        context: for TLS; None: plain HTTP.
        dialer: opens TCP connections.
        every_idle: all merchants' idle connections.
    """

    __slots__ = (
        *("_connections", "_context", "_dialer", "_every_idle", "_host", "_idle"),
        *("_name", "_port", "_session", "_session_until"),
    )

    def __init__(
        self,
        name: str,
        port: int,
        host: str,
        connections: int,
        context: ssl.SSLContext | None,
        dialer: dial.Dialer,
        every_idle: IdleConnections,
    ) -> None:
        self._name, self._port, self._host = name, port, host
        self._context, self._dialer = context, dialer
        #: 0: closed.
        self._connections = connections
        self._every_idle = every_idle
        self._idle: list[Connection] = []
        self._session: ssl.SSLSession | None = None
        self._session_until = 0.0

    def exchange(
        self,
        request: Request,
        target: str,
        context: CallContext,
        fence: Callable[[], None] | None,
    ) -> Reply:
        """Send a request, and read the reply.

        Head and body leave in a single write: each write is a system call, and wakes the peer up.

        Raises:
            TransportError, OSError, DeadlineExceeded: ``context`` has the exchange's progress.
        """
        data = head(request.method, target, self._host, request.headers, request.body)
        data += request.body or b""
        connection = self._reusable()
        is_new = connection is None
        if connection is None:
            connection = self._connected(context)
            connection.reset_on_close()
        try:
            connection.until = context.until
            if fence is not None:
                fence()
            if time.monotonic() >= context.until:  # this machine was held up
                raise TimeIsUp
            context.begun = context.sent = True
            try:  # noqa: SIM105  (an exchange does without a context manager)
                connection.send(data)
            except (BrokenPipeError, ConnectionResetError):
                pass  # the peer may have replied early
            failpoints.reach("byte.last")
            first = connection.receive()
            if not first:
                raise NoValidReply("broken_off", "closed without a reply")
            context.replied = time.perf_counter()
            reply, seconds = read_reply(first, connection.receive, request.method, request.expects)
        except BaseException:  # also when a green thread is killed
            connection.close()  # unread bytes must reach no later exchange
            raise
        if is_new and isinstance(connection, TLSConnection):
            self._keep_session(connection)
        if seconds and len(self._idle) < self._connections:
            connection.mark_idle(seconds)
            self._every_idle.put(connection, self._idle)
        else:
            connection.close(is_complete=True)
        return reply

    def try_out(self, context: CallContext) -> None:
        """Connect, then listen equally long: does the peer keep the connection open?

        With TLS 1.3 a peer rejects our certificate after our side of the handshake has ended. Other
        peers accept every connection and close it.

        Raises:
            NotSent: the peer closes the connection, or speaks first.
        """
        began = time.monotonic()
        connection = self._connected(context)
        try:
            now = time.monotonic()
            connection.until = now + max(LISTEN, now - began)
            said = connection.receive()
        except TimeIsUp:
            return  # the peer waits for a request
        finally:
            connection.close(is_complete=True)
        if said:
            raise NotSent("invalid_reply", "it speaks before it is asked: that is not HTTP")
        raise NotSent("broken_off", "it closes the connection before it is asked")

    def close(self) -> None:
        """Close idle connections now, and connections in use after their exchange."""
        self._connections = 0
        while self._idle:
            self._every_idle.take(self._idle).close()

    def _reusable(self) -> Connection | None:
        """An idle connection, open as far as is known: the peer may be closing."""
        while self._idle:
            connection = self._every_idle.take(self._idle)
            if connection.is_reusable():
                connection.idle_until = 0.0
                return connection
            connection.close()
        return None

    def _connected(self, context: CallContext) -> Connection:
        began = time.perf_counter()
        context.begun = context.connecting = True
        try:
            sock = self._dialer.dial(
                self._name, self._port, plain=self._context is None, until=context.until
            )
            if self._context is None:
                return Connection(sock)
            return self._secured(sock, self._context, context)
        finally:
            context.connecting = False
            context.connect_seconds += time.perf_counter() - began

    def _secured(self, sock: Any, tls: ssl.SSLContext, context: CallContext) -> TLSConnection:
        now = time.monotonic()
        session = self._session if now < self._session_until else None
        # A zone of an IPv6 address, and the dot of the root, are not part of the certificate's name.
        name = self._name.partition("%")[0].rstrip(".")
        try:
            connection = TLSConnection(sock, tls, name, session)
        except ValueError as error:  # no certificate can have the name
            sock.close()
            raise Misconfigured("url", error) from None
        try:
            connection.until = min(context.until, now + dial.CONNECT_BUDGET)
            connection.handshake()
        except BaseException as error:
            connection.close()
            self._session = None
            if isinstance(error, TimeIsUp) and connection.until < context.until:
                problem = "the peer has not ended the TLS handshake in time"
                raise NotSent("timeout", problem) from None
            raise
        return connection

    def _keep_session(self, connection: TLSConnection) -> None:
        if not connection.is_resumed:
            self._session_until = time.monotonic() + RESUMED
        self._session = connection.session
