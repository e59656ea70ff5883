"""A merchant's POS: connections, each used by a single exchange at a time."""

import ssl
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pos_gateway import __version__
from pos_gateway.runtime import failpoints
from pos_gateway.transport import dial
from pos_gateway.transport.connection import Connection, TLSConnection
from pos_gateway.transport.deadline import CallContext, TimeIsUp
from pos_gateway.transport.errors import Misconfigured, NotSent, NoValidReply
from pos_gateway.transport.head import Head, host
from pos_gateway.transport.parser import ParsedReply, read_reply

if TYPE_CHECKING:
    from pos_gateway.transport.exchange import Request

#: Minimum seconds that ``try_out`` listens on a new connection.
LISTEN = 0.25
#: Seconds for which a TLS session is resumed without verifying the peer's certificate again.
RESUMED = 3600.0
#: Maximum kinds of heads remembered. An adapter has three or four.
_HEADS = 16
#: A kind of heads: method, names of the headers, and whether the request has no body.
_Kind = tuple[str, tuple[str, ...], bool]
#: Default headers of every request.
_FIELDS = {
    "User-Agent": f"pos-gateway/{__version__}",
    "Accept": "application/json",
    "Accept-Encoding": "identity",
}


class IdleConnections(OrderedDict[Connection, "Endpoint"]):
    """All merchants' idle connections by endpoint, the longest idle first.

    Args:
        most: how many to keep open.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def close_oldest(self) -> None:
        """Close the longest idle connection."""
        connection, endpoint = self.popitem(last=False)
        endpoint.drop(connection)

    def close_expired(self) -> None:
        """Close connections past their time: the peers have closed theirs, or soon will."""
        now = time.monotonic()
        for connection, endpoint in list(self.items()):
            if now > connection.idle_until and self.pop(connection, None) is not None:
                endpoint.drop(connection)


class Endpoint:
    """Connections to one host, for one merchant's requests alone.

    The concurrency limit bounds a merchant's exchanges: no exchange waits for a connection.

    Args:
        scheme: ``http`` or ``https``.
        name: the host's name or address.
        port: the host's port.
        connections: maximum idle connections.
        context: for TLS.
        connect: opens TCP connections.
        every_idle: all merchants' idle connections.
    """

    __slots__ = (
        *("_connect", "_connections", "_context", "_every_idle", "_fields", "_heads"),
        *("_idle", "_is_closed"),
        *("_name", "_port", "_session", "_session_until", "serves"),
    )

    def __init__(
        self,
        scheme: str,
        name: str,
        port: int,
        connections: int,
        context: ssl.SSLContext,
        connect: dial.Dial,
        every_idle: IdleConnections,
    ) -> None:
        self._name, self._port, self._connect = name, port, connect
        self._context = context if scheme == "https" else None
        self._connections = connections
        self._fields = {"Host": host(name, port, scheme), **_FIELDS}
        self._heads: dict[_Kind, Head] = {}
        self._every_idle = every_idle
        #: Last used last.
        self._idle: list[Connection] = []
        self._is_closed = False
        self._session: ssl.SSLSession | None = None
        self._session_until = 0.0
        #: Scheme, host and port as written, and connections, as ordered by the owner.
        self.serves = ("", "", 0)

    def exchange(
        self,
        request: "Request",
        target: str,
        context: CallContext,
        fence: Callable[[], None] | None,
    ) -> ParsedReply:
        """Send a request, and read the reply.

        Head and body leave in a single write: each write is a system call, and wakes the peer up.

        Raises:
            TransportError, OSError, DeadlineExceeded: ``context`` has the exchange's progress.
        """
        body = request.body or b""
        kind = request.method, (*request.headers,), request.body is None
        head = self._heads.get(kind) or self._new_head(kind)
        data = head.filled(target, (*request.headers.values(),), len(body)) + body
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
            received = read_reply(first, connection.receive, request.method, request.expects)
        except BaseException:  # also when a green thread is killed
            connection.close()  # unread bytes must reach no later exchange
            raise
        if is_new and isinstance(connection, TLSConnection):
            self._keep_session(connection)
        if received.is_kept and len(self._idle) < self._connections and not self._is_closed:
            connection.mark_idle(received.seconds)
            self._idle.append(connection)
            self._every_idle[connection] = self
            if len(self._every_idle) > self._every_idle.most:
                self._every_idle.close_oldest()
        else:
            connection.close(is_complete=True)
        return received

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
        self._is_closed = True
        while self._idle:
            connection = self._idle.pop()
            self._every_idle.pop(connection, None)
            connection.close()

    def drop(self, connection: Connection) -> None:
        """Close an idle connection, unless an exchange has taken it."""
        with suppress(ValueError):
            self._idle.remove(connection)
            connection.close()

    def _new_head(self, kind: _Kind) -> Head:
        method, names, is_bare = kind
        head = Head.of(method, self._fields, names, has_body=not is_bare)
        if len(self._heads) >= _HEADS:
            self._heads.clear()
        self._heads[kind] = head
        return head

    def _reusable(self) -> Connection | None:
        """An idle connection, open as far as is known: the peer may be closing."""
        while self._idle:
            connection = self._idle.pop()
            self._every_idle.pop(connection, None)
            if connection.is_reusable():
                connection.idle_until = 0.0
                return connection
            connection.close()
        return None

    def _connected(self, context: CallContext) -> Connection:
        began = time.perf_counter()
        context.begun = context.connecting = True
        try:
            sock = self._connect(
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
