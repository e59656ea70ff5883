"""Connections that know whether a byte of the request left, and dial only where the guard allows.

A name is resolved once, and the checked addresses are the ones connected to: DNS rebinding gains
nothing.
"""

import errno
import select
import socket
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from functools import cache
from http.client import HTTPException, RemoteDisconnected
from typing import Any, Protocol

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from pos_gateway.runtime import failpoints
from pos_gateway.runtime.sockets import send_all
from pos_gateway.telemetry import stages
from pos_gateway.transport.errors import NotSent
from pos_gateway.transport.guard import Guard
from pos_gateway.transport.idle import Idle
from pos_gateway.transport.resolver import Resolver
from pos_gateway.transport.response import StrictResponse

#: Seconds for resolving and connecting, over all of a name's addresses; part of the exchange's
#: deadline.
CONNECT_BUDGET = 5.0
#: Minimum seconds that ``try_out`` listens on a new connection.
LISTEN = 0.25
#: Seconds that an idle connection may be reused: the default, and the most if its peer states a
#: keep-alive. The default is less than the 5 s of Apache, Node and uvicorn: a request that meets a
#: close is in doubt.
IDLE, LONGEST_IDLE = 4.0, 60.0
#: Errors of this machine, not of the peer: out of descriptors, ports or memory.
OURS = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM, errno.EAGAIN}
)


@cache
def _poll() -> Any:
    """``select.poll`` from before gevent removed it, which it has by the first exchange."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey.get_original("select", "poll") if monkey else select.poll


class Progress:
    """How far the current exchange has come. One per green thread, through a context variable."""

    __slots__ = ("begun", "connecting", "fence", "sent")

    def __init__(self, fence: Callable[[], None] | None = None) -> None:
        #: Called before the first byte; raises to stop the request.
        self.fence = fence
        #: Whether it has begun to connect, or to send.
        self.begun = False
        #: Whether a byte of the request may have left this process.
        self.sent = False
        #: Whether it is connecting: DNS, TCP, TLS.
        self.connecting = False


progress: ContextVar[Progress] = ContextVar("progress")


class Dial(Protocol):
    """Connects to a host."""

    def __call__(
        self, host: str, port: int, *, plain: bool, timeout: float | None
    ) -> socket.socket: ...


class Dialer:
    """TCP connections to the hosts that the guard allows. Safe from green threads."""

    def __init__(self, guard: Guard, resolver: Resolver) -> None:
        self._guard = guard
        self._resolver = resolver

    def dial(self, host: str, port: int, *, plain: bool, timeout: float | None) -> socket.socket:
        """A connection to the first of the host's addresses that answers.

        All addresses share a budget: each has an equal part of what is left, so that a dead IPv6
        address leaves time for a live IPv4 one.

        Raises:
            NotSent: no address answers within the budget, or the name does not resolve; code
                ``local``: this machine is out of a resource.
            Misconfigured: the guard forbids it.
        """
        until = time.monotonic() + min(CONNECT_BUDGET, timeout or CONNECT_BUDGET)
        found = self._resolver.resolve(host, until - time.monotonic())
        self._guard.check(host, (address for _, address in found), plain=plain)
        problem: OSError | None = None
        for position, (family, address) in enumerate(found):
            share = (until - time.monotonic()) / (len(found) - position)
            if share <= 0:
                break
            try:
                return _connect(family, (address, port), share)
            except OSError as error:
                if error.errno in OURS:
                    raise NotSent("local", f"cannot connect to any address: {error}") from error
                problem = error
        raise NotSent("connect", f"cannot connect to {host}:{port}: {problem or 'time is up'}")


def _connect(family: socket.AddressFamily, address: Any, timeout: float) -> socket.socket:
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection


def discard_unsent(sock: socket.socket, *, discard: bool = True) -> None:
    """Have the socket's close reset the connection, also when this process is killed; or undo that.

    Without it the kernel delivers the request for as long as the peer is there: a POS that reads
    nothing for minutes would create the order after a look-up had not found it.
    """
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", discard, 0))


class _Tracked:
    """What both kinds of connection add to urllib3's."""

    sock: Any
    timeout: Any
    port: int
    _dns_host: str
    _is_plain = True

    def __init__(self, *arguments: Any, dial: Dial, **options: Any) -> None:
        self._dial = dial
        self._idle_until = 0.0
        super().__init__(*arguments, **options)

    def _new_conn(self) -> socket.socket:
        timeout = self.timeout if isinstance(self.timeout, int | float) else None
        return self._dial(self._dns_host, self.port, plain=self._is_plain, timeout=timeout)

    def rest(self, kept: float | None) -> None:
        """Mark it idle. ``kept``: seconds that its peer keeps it; None: not stated."""
        seconds = IDLE if kept is None else min(kept, LONGEST_IDLE) - 1
        self._idle_until = time.monotonic() + seconds

    @property
    def is_connected(self) -> bool:
        """Whether an idle connection may be reused: nothing was received, not even its end.

        urllib3 asks through ``select``, which gevent turns into a wait on its loop; this is a
        system call. Unsolicited bytes count as broken.
        """
        if self.sock is None or time.monotonic() > self._idle_until:
            return False
        poller = _poll()()
        poller.register(self.sock.fileno(), select.POLLIN)
        return not poller.poll(0)

    @property
    def rests(self) -> bool:
        """Whether it was left idle after its last exchange."""
        return self._idle_until > 0

    def ask(self, method: str, request: bytes) -> StrictResponse:
        """Send a whole request, and return the head of the reply; the body is read from it.

        Head and body leave in one write: each write is a system call, and wakes the peer up.
        """
        self._idle_until = 0.0
        if self.sock is None:
            self.connect()
            used: Any = self.sock
            discard_unsent(used)
        self.sock.settimeout(self.timeout)  # connecting had a shorter one
        with suppress(BrokenPipeError, ConnectionResetError):  # the peer may have replied early
            self.send(request)
        failpoints.reach("byte.last")
        response = StrictResponse(self.sock, method=method)
        try:
            response.begin()
        except BaseException:
            response.close()
            raise
        if response.will_close:
            discard_unsent(response.socket, discard=False)
            self.close()  # the reply owns the socket up to its end
        return response

    def close(self) -> None:
        if self.sock is not None and self.rests:  # all was sent
            discard_unsent(self.sock, discard=False)
        super().close()  # type: ignore[misc]

    def send(self, data: Any) -> None:
        exchange = progress.get()
        if not exchange.sent and exchange.fence is not None:
            exchange.fence()
        exchange.begun = exchange.sent = True
        send_all(self.sock, data)

    def connect(self) -> None:
        exchange, began = progress.get(), time.perf_counter()
        exchange.begun = exchange.connecting = True
        try:
            super().connect()  # type: ignore[misc]
        finally:
            exchange.connecting = False
            stages.connecting(time.perf_counter() - began)

    def try_out(self) -> None:
        """Connect, then listen for as long as that took: does the peer keep the connection open?

        With TLS 1.3 a peer rejects our certificate after our side of the handshake has ended. Other
        peers accept every connection and close it.
        """
        began = time.monotonic()
        self.connect()
        self.sock.settimeout(max(LISTEN, time.monotonic() - began))
        try:
            said = self.sock.recv(1)
        except TimeoutError:
            return  # it waits for a request
        if said:
            raise HTTPException("it speaks before it is asked: that is not HTTP")
        raise RemoteDisconnected("it closes the connection before it is asked")


class TrackedHTTPConnection(_Tracked, HTTPConnection):
    """Plain HTTP."""


class TrackedHTTPSConnection(_Tracked, HTTPSConnection):
    """HTTP over TLS."""

    _is_plain = False

    def connect(self) -> None:
        super().connect()
        # A reply delimited by the connection's end is complete only with a TLS close_notify.
        self.sock.suppress_ragged_eofs = False


class HTTPPool(HTTPConnectionPool):
    """A merchant's plain connections."""

    QueueCls = Idle  # type: ignore[assignment]
    ConnectionCls = TrackedHTTPConnection


class HTTPSPool(HTTPSConnectionPool):
    """A merchant's TLS connections."""

    QueueCls = Idle  # type: ignore[assignment]
    ConnectionCls = TrackedHTTPSConnection
