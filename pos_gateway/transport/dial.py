"""TCP connections to hosts, only where the guard allows.

A name is resolved once, and connections go to the checked addresses: DNS rebinding gains nothing.
"""

import errno
import os
import socket
import time
from typing import Any

from pos_gateway.runtime.green import native
from pos_gateway.transport.connection import WRITE, SocketWait
from pos_gateway.transport.errors import NotSent
from pos_gateway.transport.guard import Guard
from pos_gateway.transport.resolver import Resolver

#: Seconds for resolving and connecting, over all of a name's addresses, and once more for TLS; part
#: of the exchange's deadline.
CONNECT_BUDGET = 5.0
#: Errors of this machine, not of the peer: out of descriptors, ports or memory.
OURS = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM, errno.EAGAIN}
)


class Dialer:
    """TCP connections to the hosts that the guard allows. Safe from green threads."""

    def __init__(self, guard: Guard, resolver: Resolver) -> None:
        self._guard = guard
        self._resolver = resolver

    def dial(self, host: str, port: int, *, plain: bool, until: float) -> Any:
        """A non-blocking socket, connected to the host's first address to answer.

        All addresses share a budget, each with an equal part of the rest: a dead IPv6 address
        leaves time for a live IPv4 address.

        Args:
            host: name or address.
            port: the host's port.
            plain: without TLS.
            until: when the budget ends at the latest (``time.monotonic``).

        Raises:
            NotSent: no address answers within the budget, or the name does not resolve; code
                ``local``: this machine is out of a resource.
            Misconfigured: the guard forbids an address.
        """
        until = min(time.monotonic() + CONNECT_BUDGET, until)
        found = self._resolver.resolve(host, until - time.monotonic())
        self._guard.check(host, (address for _, address in found), plain=plain)
        problem: OSError | None = None
        for position, (family, address) in enumerate(found):
            now = time.monotonic()
            share = (until - now) / (len(found) - position)
            if share <= 0:
                break
            try:
                return _connected(family, (address, port), now + share)
            except OSError as error:
                if error.errno in OURS:
                    raise NotSent("local", f"cannot connect to any address: {error}") from error
                problem = error
        raise NotSent("connect", f"cannot connect to {host}:{port}: {problem or 'time is up'}")


def _connected(family: socket.AddressFamily, address: Any, until: float) -> Any:
    # Not gevent's class: gevent's sockets wait by themselves.
    made = native("socket", "socket")(family, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = made.connect_ex(address)
        if code == errno.EINPROGRESS:
            wait = SocketWait(made.fileno())
            try:
                if not wait(WRITE, until):
                    raise TimeoutError("timed out")
            finally:
                wait.close()
            code = made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
    except BaseException:
        made.close()
        raise
    return made
