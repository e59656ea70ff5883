"""Connections that know whether a byte of the request left, and only go where they may.

The address that is checked is the address that is connected to: the name is resolved once.
"""

import select
import socket
import sys
import time
from collections.abc import Iterable
from contextvars import ContextVar
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from pos_gateway.transport.errors import Misconfigured, NotSent
from pos_gateway.transport.idle import Idle

#: Seconds for resolving and connecting, over all of a name's addresses, within the exchange's own.
CONNECT_BUDGET = 5.0


def _poll() -> Any:
    """``select.poll`` as it was before gevent patched it away."""
    monkey = sys.modules.get("gevent.monkey")
    kind = monkey.get_original("select", "poll") if monkey else select.poll
    return kind()


class Progress:
    """How far the present exchange has come. One for each green thread, through a context variable."""

    __slots__ = ("sent",)

    def __init__(self) -> None:
        #: Whether a byte of the request may have left this process.
        self.sent = False


progress: ContextVar[Progress] = ContextVar("progress")


def may_connect(address: IPv4Address | IPv6Address) -> bool:
    """Whether a merchant's POS may be at this address: a public one, not a way into our network."""
    mapped = getattr(address, "ipv4_mapped", None)
    if mapped is not None:
        return may_connect(mapped)
    return address.is_global and not address.is_multicast


def connect(host: str, port: int, *, private: bool, timeout: float | None) -> socket.socket:
    """A TCP connection to the first of the host's addresses that answers.

    Raises:
        NotSent: no address answers within the budget, or the name does not resolve.
        Misconfigured: one of its addresses is not public and ``private`` is not allowed.
    """
    until = time.monotonic() + min(CONNECT_BUDGET, timeout or CONNECT_BUDGET)
    found = _resolve(host, port)
    if not private:
        _refuse_private(host, (str(address[0]) for _, address in found))
    problem: OSError | None = None
    for position, (family, address) in enumerate(found):
        share = (until - time.monotonic()) / (len(found) - position)
        if share <= 0:
            break
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            connection.settimeout(share)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.connect(address)
        except OSError as error:
            connection.close()
            problem = error
        except BaseException:
            connection.close()
            raise
        else:
            return connection
    raise NotSent("connect", f"cannot connect to {host}:{port}: {problem or 'time is up'}")


def _resolve(host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[Any, ...]]]:
    try:
        literal = ip_address(host)
    except ValueError:
        pass
    else:
        # Under gevent a look-up goes through a handful of native threads; an address needs none.
        family = socket.AF_INET if literal.version == 4 else socket.AF_INET6
        return [(family, (host, port))]
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise NotSent("dns", f"cannot resolve {host}: {error}") from error
    return [(family, address) for family, _, _, _, address in found]


def _refuse_private(host: str, addresses: Iterable[str]) -> None:
    for address in addresses:
        if not may_connect(ip_address(address.partition("%")[0])):
            raise Misconfigured(
                "security", f"{host} is at {address}, which is not a public address"
            )


class _Tracked:
    """What both kinds of connection share, laid over urllib3's."""

    private = False
    sock: socket.socket | None
    timeout: Any
    port: int
    _dns_host: str

    def _new_conn(self) -> socket.socket:
        timeout = self.timeout if isinstance(self.timeout, int | float) else None
        return connect(self._dns_host, self.port, private=self.private, timeout=timeout)

    @property
    def is_connected(self) -> bool:
        """Whether an idle connection may be used again: nothing has come, not even its end.

        urllib3 asks through ``select``, which gevent turns into a wait on its loop; this is a
        system call. Bytes that nobody asked for count as broken.
        """
        if self.sock is None:
            return False
        poller = _poll()
        poller.register(self.sock.fileno(), select.POLLIN)
        return not poller.poll(0)

    def send(self, data: Any) -> None:
        if self.sock is None:
            self.connect()
        progress.get().sent = True
        super().send(data)  # type: ignore[misc]

    def connect(self) -> None:
        super().connect()  # type: ignore[misc]


class TrackedHTTPConnection(_Tracked, HTTPConnection):
    """Plain HTTP."""


class TrackedHTTPSConnection(_Tracked, HTTPSConnection):
    """HTTP over TLS."""


class PrivateHTTPConnection(TrackedHTTPConnection):
    """Plain HTTP that may go to private addresses."""

    private = True


class PrivateHTTPSConnection(TrackedHTTPSConnection):
    """HTTP over TLS that may go to private addresses."""

    private = True


class HTTPPool(HTTPConnectionPool):
    """A merchant's plain connections."""

    QueueCls = Idle  # type: ignore[assignment]
    ConnectionCls = TrackedHTTPConnection


class HTTPSPool(HTTPSConnectionPool):
    """A merchant's TLS connections."""

    QueueCls = Idle  # type: ignore[assignment]
    ConnectionCls = TrackedHTTPSConnection
