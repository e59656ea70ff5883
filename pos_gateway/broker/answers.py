"""Connections on which no answer of the broker's is waited for without end.

The library bounds its handshake and no question after it. A broker whose packets stop coming then
(a failover, a firewall that forgets) is waited for until somebody kills the process: heartbeats do
not help whoever waits, since it is he who would look after them.
"""

from functools import cache, partial
from struct import Struct
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


#: A frame's kind, its channel and its payload's size; and the byte behind the payload.
_HEAD, _END = Struct(">BHI"), 0xCE


class _Frames(ReadAhead):
    """Reads ahead, and knows where a frame ends."""

    def whole(self) -> tuple[int, int, bytes] | None:
        """The next frame, if all of it has come; None too if it is none: the library says why."""
        kept, start = self._kept, self._at + _HEAD.size
        if len(kept) < start:
            return None
        kind, channel, size = _HEAD.unpack_from(kept, self._at)
        end = start + size
        if len(kept) <= end or kept[end] != _END:
            return None
        self._at = end + 1
        return kind, channel, kept[start:end]


class _Answered(pyamqp.Connection):
    Channel = _Channel
    _frames: _Frames | None = None

    def connect(self, callback: Any = None) -> Any:
        """Connect, and read and write from then on with fewer system calls.

        The library asks for a frame's head, its payload and its last byte one by one, and a message
        has three frames.
        """
        result = super().connect(callback)
        transport = self.transport
        if not isinstance(transport._quick_recv, _Frames):
            self._frames = transport._quick_recv = _Frames(transport._quick_recv)
            if isinstance(transport, TCPTransport):
                transport._write = partial(send_all, transport.sock)
        return result

    def blocking_read(self, timeout: float | None = None) -> Any:
        """Read a frame. One that has come already is taken as it is, with no time limit to set."""
        if self._frames is not None and self._transport is not None:  # it may be closed meanwhile
            frame = self._frames.whole()
            if frame is not None:
                return self.on_inbound_frame(frame)
        return super().blocking_read(timeout)

    def drain_events(self, timeout: float | None = None) -> None:
        """Read until something was dealt with; without a time limit, somebody has a question."""
        try:
            super().drain_events(ANSWER if timeout is None else timeout)
        except TimeoutError:
            if timeout is None:
                self.collect()
                raise TimeoutError(f"the broker has not answered for {ANSWER:g} s") from None
            raise
