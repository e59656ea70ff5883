"""A connection to a POS, plain or over TLS. All operations end at the same deadline.

The socket is the system's, without gevent's class around it. TLS runs above the socket in memory
(``ssl.SSLObject``): every byte sent or received passes here, once. A green thread waits for the
socket on the loop, a native thread by poll.
"""

import select
import socket
import ssl
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from math import ceil
from typing import Any, TypeVar

from pos_gateway.runtime.green import green, native
from pos_gateway.transport.deadline import TimeIsUp

#: Seconds after which even a busy connection is replaced: the host's name may have moved.
LONGEST_LIFE = 300.0
#: Maximum bytes of a receive. A reply about an order is a tenth as long.
_AT_ONCE = 16 * 1024
#: Events to wait for, as numbered by gevent's loop.
READ, WRITE = 1, 2
_EVENTS = {READ: select.POLLIN, WRITE: select.POLLOUT}

T = TypeVar("T")


class Connection:
    """A plain TCP connection. For a single exchange at a time.

    Args:
        sock: connected, and non-blocking.
    """

    __slots__ = ("_old_at", "_sock", "_wait", "idle_until", "until")

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._wait = SocketWait(sock.fileno())
        self._old_at = time.monotonic() + LONGEST_LIFE
        #: When operations end, with TimeIsUp (``time.monotonic``).
        self.until = 0.0
        #: When reuse ends (``time.monotonic``); 0: not idle after a complete exchange.
        self.idle_until = 0.0

    def send(self, data: bytes) -> None:
        """Send all data. Raises OSError."""
        try:
            sent = self._sock.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            rest = memoryview(data)[sent:]
            while rest:
                if not self._wait(WRITE, self.until):
                    raise TimeIsUp
                with suppress(BlockingIOError):
                    rest = rest[self._sock.send(rest) :]

    def receive(self) -> bytes:
        """The next bytes; empty at the peer's end. Raises OSError."""
        while True:
            if not self._wait(READ, self.until):
                raise TimeIsUp
            with suppress(BlockingIOError):
                received: bytes = self._sock.recv(_AT_ONCE)
                return received

    def mark_idle(self, seconds: float) -> None:
        """Keep the connection for reuse within ``seconds``."""
        self.idle_until = min(time.monotonic() + seconds, self._old_at)

    def is_reusable(self) -> bool:
        """Whether an idle connection may be reused: nothing was received, not even an end.

        Unsolicited bytes count as broken.
        """
        if time.monotonic() > self.idle_until:
            return False
        return not is_ready(self._sock.fileno(), READ)

    def reset_on_close(self, *, enabled: bool = True) -> None:
        """Have a close reset the connection, and drop unsent bytes; also when the process is killed.

        Without a reset the kernel delivers the request for as long as the peer is there: a POS may
        read nothing for minutes, then create the order after a look-up had not found the order.
        """
        with suppress(OSError):
            linger = struct.pack("ii", enabled, 0)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    def close(self, *, is_complete: bool = False) -> None:
        """Close the connection: by a reset, unless the last exchange is complete. Idempotent."""
        if is_complete or self.idle_until:
            self.reset_on_close(enabled=False)
        self._wait.close()
        self._sock.close()


class TLSConnection(Connection):
    """A TLS connection. A reply that ends with the connection needs the peer's close_notify.

    Args:
        sock: connected, and non-blocking.
        context: the trusted authorities.
        name: the host's name, required in the certificate.
        session: an earlier connection's, to save a part of the handshake.
    """

    __slots__ = ("_incoming", "_outgoing", "_tls")

    def __init__(
        self, sock: Any, context: ssl.SSLContext, name: str, session: ssl.SSLSession | None
    ) -> None:
        super().__init__(sock)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_hostname=name, session=session
        )

    @property
    def session(self) -> ssl.SSLSession | None:
        """The session for the next connection to resume; with TLS 1.3 known only after a reply."""
        return self._tls.session

    @property
    def is_resumed(self) -> bool:
        """Whether the session is an earlier connection's, with the peer verified then."""
        return bool(self._tls.session_reused)

    def handshake(self) -> None:
        """Agree with the peer, and verify the certificate. Raises OSError."""
        try:
            self._run(self._tls.do_handshake)
        except ssl.SSLError:
            with suppress(OSError):  # the alert with the reason
                self._sock.send(self._outgoing.read())
            raise
        self._flush()

    def send(self, data: bytes) -> None:
        self._run(self._tls.write, data)
        self._flush()

    def receive(self) -> bytes:
        try:
            return self._run(self._tls.read, _AT_ONCE)
        except ssl.SSLZeroReturnError:
            return b""

    def is_reusable(self) -> bool:
        """As over TCP; session tickets may have arrived since the last exchange.

        A record received together with the last reply is no longer in the socket.
        """
        if time.monotonic() > self.idle_until:
            return False
        try:
            if is_ready(self._sock.fileno(), READ):
                self._incoming.write(self._sock.recv(_AT_ONCE))
            elif not self._incoming.pending and not self._tls.pending():
                return True
            self._tls.read(1)
        except ssl.SSLWantReadError:
            return not self._outgoing.pending and not is_ready(self._sock.fileno(), READ)
        except OSError:
            return False
        return False

    def _run(self, operation: Callable[..., T], *arguments: Any) -> T:
        """The operation's result, exchanging with the peer as needed; TLS 1.2 may agree again."""
        while True:
            try:
                return operation(*arguments)
            except ssl.SSLWantReadError:
                self._flush()
                self._feed()

    def _flush(self) -> None:
        if self._outgoing.pending:
            super().send(self._outgoing.read())

    def _feed(self) -> None:
        received = super().receive()
        if received:
            self._incoming.write(received)
        else:
            self._incoming.write_eof()


class SocketWait:
    """A way to wait for a socket: green threads on the loop, native threads by poll.

    gevent's sockets read in vain before each wait, and make a second timer. Here the loop's watcher
    is made once, and serves only the loop of the thread that made the wait.
    """

    __slots__ = ("_fileno", "_hub", "_new_waiter", "_reading")

    def __init__(self, fileno: int) -> None:
        self._fileno = fileno
        self._hub: Any = None
        if green():
            import gevent  # noqa: PLC0415  (only where gevent is in use)
            from gevent.hub import Waiter  # noqa: PLC0415

            self._hub, self._new_waiter = gevent.get_hub(), Waiter
            self._reading = self._hub.loop.io(fileno, READ)

    def __call__(self, events: int, until: float) -> bool:
        """Whether the socket is ready, or has failed, before ``until`` (``time.monotonic``)."""
        if self._hub is None:
            left = until - time.monotonic()
            return left > 0 and is_ready(self._fileno, events, ceil(left * 1000))
        loop = self._hub.loop
        # The timer goes by the loop's time. If the loop is behind, the timer ends early: make another.
        while (left := until - time.monotonic()) > 0:
            waiter = self._new_waiter(self._hub)
            watcher = self._reading if events == READ else loop.io(self._fileno, events)
            timer = loop.timer(left)
            watcher.start(waiter.switch, True)
            timer.start(waiter.switch, False)
            try:
                # If the loop came late, the socket became ready before the time was up.
                if waiter.get() or is_ready(self._fileno, events):
                    return True
            finally:  # also when the green thread is killed
                watcher.stop()
                timer.close()
                if watcher is not self._reading:
                    watcher.close()
        return False

    def close(self) -> None:
        """Called before the socket is closed."""
        if self._hub is not None:
            self._reading.close()


@cache
def _poll() -> Any:
    return native("select", "poll")


def is_ready(fileno: int, events: int, milliseconds: int = 0) -> bool:
    """Whether the socket is ready, or has failed, within ``milliseconds``. Blocks the thread.

    The system's poll, removed from ``select`` by gevent, takes a system call, and no turn of the loop.
    """
    poller = _poll()()
    poller.register(fileno, _EVENTS[events])
    return bool(poller.poll(milliseconds))
