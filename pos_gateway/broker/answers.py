"""Connections on which no answer of the broker's is waited for without end.

The library bounds its handshake and no question after it. A broker whose packets stop coming then
(a failover, a firewall that forgets) is waited for until somebody kills the process: heartbeats do
not help whoever waits, since it is he who would look after them.
"""

from functools import cache, partial
from typing import Any

from amqp.transport import TCPTransport
from kombu import Connection
from kombu.transport import pyamqp

from pos_gateway.sockets import ReadAhead, send_all

#: Seconds for the broker's answer to whatever is asked of it (a queue to be declared, say). It may
#: have much to do, and is asked again on a new connection.
ANSWER = 10.0


class AnsweredConnection(Connection):
    """kombu's, on which a question that stays without an answer raises TimeoutError.

    The connection is given up with it, so that closing it asks nothing more.
    """

    def get_transport_cls(self) -> Any:
        found = super().get_transport_cls()
        return _answered(found) if issubclass(found, pyamqp.Transport) else found


@cache
def _answered(transport: type) -> type:
    return type(transport.__name__, (transport,), {"Connection": _Answered})


class _Channel(pyamqp.Channel):
    """Messages' bodies as they came: the library makes text of them, of whatever kind they say."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, auto_decode=False, **options)


class _Answered(pyamqp.Connection):
    Channel = _Channel

    def connect(self, callback: Any = None) -> Any:
        """Connect, and read and write from then on with fewer system calls.

        The library asks for a frame's head, its payload and its last byte one by one, and a message
        has three frames.
        """
        result = super().connect(callback)
        transport = self.transport
        if not isinstance(transport._quick_recv, ReadAhead):
            transport._quick_recv = ReadAhead(transport._quick_recv)
            if isinstance(transport, TCPTransport):
                transport._write = partial(send_all, transport.sock)
        return result

    def drain_events(self, timeout: float | None = None) -> None:
        """Read until something was dealt with; without a time limit, somebody has a question."""
        try:
            super().drain_events(ANSWER if timeout is None else timeout)
        except TimeoutError:
            if timeout is None:
                self.collect()
                raise TimeoutError(f"the broker has not answered for {ANSWER:g} s") from None
            raise
