"""AMQP's frames in fewer system calls: a message has three of them, an acknowledgement is one."""

import threading
from collections.abc import Callable
from errno import EPIPE
from struct import Struct
from typing import Any

from pos_gateway.runtime.sockets import ReadAhead

#: A frame's kind, its channel and its payload's size; and the byte behind the payload.
_HEAD, _END = Struct(">BHI"), 0xCE
#: A whole frame that acknowledges: the head, the method (basic.ack), the tag, and whether all
#: before it are meant, too.
_ACK, _METHOD, _SIZE, _BASIC_ACK = Struct(">BHIHHQBB"), 1, 13, (60, 80)
#: The message's tag, and whether it came before.
_DELIVERED = Struct(">QB")
#: Bytes that are gathered before they are written.
MOST = 32 * 1024


def acknowledgement(channel: int, tag: int, *, multiple: bool) -> bytes:
    """The frame that acknowledges a message. The library takes ten times as long to make it."""
    return _ACK.pack(_METHOD, channel, _SIZE, *_BASIC_ACK, tag, multiple, _END)


def delivery(method: bytes) -> tuple[str, int, bool, str, str]:
    """What a broker says of a message that it delivers (basic.deliver, from the method's ids on).

    The consumer's tag, the message's, whether it came before, its exchange and routing key. The
    library takes five times as long to read it.
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
    """Reads ahead, and knows where a frame ends."""

    def frame(self) -> tuple[int, int, bytes] | None:
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


class Outgoing:
    """Writes frames whole and in their order; some are kept, to go with the next ones.

    Safe from threads and green threads.

    Args:
        write: writes all that it is given. What it raises is raised, and nothing is written any
            more: half a frame may have left, and what follows it would be read as its rest.
    """

    __slots__ = ("_kept", "_lock", "_size", "_write", "gathers", "is_broken")

    def __init__(self, write: Callable[[bytes | memoryview], Any]) -> None:
        self._write = write
        self._lock = threading.Lock()
        self._kept: list[bytes] = []
        self._size = 0
        #: Whether all are kept until there are many.
        self.gathers = False
        self.is_broken = False

    def keep(self, frame: bytes) -> bool:
        """Keep a frame for the next write; whether it is the only one."""
        self._kept.append(frame)
        self._size += len(frame)
        return len(self._kept) == 1

    def __call__(self, data: bytes | memoryview) -> None:
        """Write what was kept, then this. While all are gathered it is kept, too."""
        if self.gathers:
            self.keep(bytes(data))  # the library uses its buffer again
            if self._size < MOST:
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
