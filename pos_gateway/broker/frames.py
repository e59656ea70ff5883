"""AMQP frames in fewer system calls: a message has three frames, an acknowledgement is one."""

import threading
from collections.abc import Callable
from errno import EPIPE
from struct import Struct
from typing import Any

from pos_gateway.runtime.sockets import ReadAhead

#: A frame's type, channel and payload size; and the byte after the payload.
_HEAD, _END = Struct(">BHI"), 0xCE
#: A whole acknowledgement frame: the head, the method (basic.ack), the tag, and "multiple".
_ACK, _METHOD, _SIZE, _BASIC_ACK = Struct(">BHIHHQBB"), 1, 13, (60, 80)
#: The delivery tag, and the redelivered flag.
_DELIVERED = Struct(">QB")
#: Bytes that are buffered before they are written.
MAX_BUFFERED = 32 * 1024


def acknowledgement(channel: int, tag: int, *, multiple: bool) -> bytes:
    """A frame that acknowledges a message. The library takes ten times as long to build it."""
    return _ACK.pack(_METHOD, channel, _SIZE, *_BASIC_ACK, tag, multiple, _END)


def delivery(method: bytes) -> tuple[str, int, bool, str, str]:
    """Parse basic.deliver (from the method's ids on).

    The consumer tag, the delivery tag, the redelivered flag, exchange and routing key. The library
    takes five times as long to parse it.
    """
    at = 5 + method[4]
    consumer, (tag, redelivered) = method[5:at], _DELIVERED.unpack_from(method, at)
    at += _DELIVERED.size
    end = at + 1 + method[at]
    exchange, key = method[at + 1 : end], method[end + 1 : end + 1 + method[end]]
    return _text(consumer), tag, bool(redelivered), _text(exchange), _text(key)


def _text(short: bytes) -> str:
    return short.decode("utf-8", "surrogatepass")  # as the library does


class Incoming(ReadAhead):
    """Reads ahead, and finds where a frame ends."""

    def frame(self) -> tuple[int, int, bytes] | None:
        """The next frame if it is complete; None too for an invalid one: the library raises."""
        kept, start = self._kept, self._at + _HEAD.size
        if len(kept) < start:
            return None
        kind, channel, size = _HEAD.unpack_from(kept, self._at)
        end = start + size
        if len(kept) <= end or kept[end] != _END:
            return None
        self._at = end + 1
        return kind, channel, kept[start:end]


class Outgoing:
    """Writes whole frames in order; some are buffered, to go with the next ones.

    Safe from threads and green threads.

    Args:
        write: writes all of its argument. After it raises, nothing more is written: half a frame
            may have left, and the peer would read what follows as its rest.
    """

    __slots__ = ("_kept", "_lock", "_size", "_write", "gathers", "is_broken")

    def __init__(self, write: Callable[[bytes | memoryview], Any]) -> None:
        self._write = write
        self._lock = threading.Lock()
        self._kept: list[bytes] = []
        self._size = 0
        #: Whether frames are buffered until there are many.
        self.gathers = False
        self.is_broken = False

    def keep(self, frame: bytes) -> bool:
        """Buffer a frame for the next write; returns whether it is the only one."""
        self._kept.append(frame)
        self._size += len(frame)
        return len(self._kept) == 1

    def __call__(self, data: bytes | memoryview) -> None:
        """Write the buffered frames, then this data. While ``gathers``, it is buffered, too."""
        if self.gathers:
            self.keep(bytes(data))  # the library reuses its buffer
            if self._size < MAX_BUFFERED:
                return
            data = b""
        with self._lock:
            kept, self._kept, self._size = self._kept, [], 0
            if kept:
                data = b"".join((*kept, data))
            if data:
                if self.is_broken:
                    raise BrokenPipeError(EPIPE, "an earlier write has failed")
                self.is_broken = True
                self._write(data)
                self.is_broken = False
