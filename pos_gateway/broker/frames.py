"""AMQP frames in fewer system calls: a message has three frames, an acknowledgement is one."""

import struct
import threading
from collections.abc import Callable, Mapping
from errno import EPIPE
from functools import lru_cache
from struct import Struct
from typing import Any

#: A frame's type, channel and payload size; and the byte after the payload.
_HEAD, _END = Struct(">BHI"), 0xCE
_ENDS, _AROUND = bytes((_END,)), _HEAD.size + 1
#: A whole acknowledgement frame: the head, the method (basic.ack), the tag, and "multiple".
_ACK, _METHOD, _SIZE, _BASIC_ACK = Struct(">BHIHHQBB"), 1, 13, (60, 80)
#: A method frame's head with the ids of the method, and basic.deliver's; a body's size in its header frame.
_METHOD_HEAD, _DELIVER, _BODY_SIZE = Struct(">BHIHH"), (60, 60), Struct(">Q")
#: The delivery tag, and the redelivered flag.
_DELIVERED = Struct(">QB")
#: The head of a frame with a message's properties: the frame's, the class (basic), no weight, the body's
#: size, and which properties follow: content type and encoding, headers, persistence, id and timestamp.
_CONTENT, _HEADER, _BASIC, _GIVEN = Struct(">BHIHHQH"), 2, 60, 0xF0C0
#: A frame with a part of a body; the class, the body's size and the flags count as properties.
_BODY, _CONTENT_SIZE = 3, 14
#: How a text's length is written in a table, and a method's ids.
_LONG, _IDS = Struct(">I"), Struct(">HH")
_JSON, _PERSISTENT = b"\x10application/json\x05utf-8", b"\x02"
_TIME = Struct(">Q")
#: How properties begin that ``content`` has written; a field's type and size.
_PLAIN, _FIELD, _TEXT = _GIVEN.to_bytes(2) + _JSON, Struct(">BI"), ord("S")
#: How the library reads a text.
_TEXT_AS = ("utf-8", "surrogatepass")
#: Bytes read at once, and bytes that are buffered before they are written.
AHEAD = 64 * 1024
MAX_BUFFERED = 128 * 1024


def acknowledgement(channel: int, tag: int, *, multiple: bool) -> bytes:
    """A frame that acknowledges a message. The library takes ten times as long to build it."""
    return _ACK.pack(_METHOD, channel, _SIZE, *_BASIC_ACK, tag, multiple, _END)


def method(channel: int, ids: tuple[int, int], arguments: bytes) -> bytes:
    """A frame with a method."""
    payload = _IDS.pack(*ids) + arguments
    return _HEAD.pack(_METHOD, channel, len(payload)) + payload + _ENDS


def content(
    channel: int, message_id: str, headers: Mapping[str, str], body: bytes, time: int, size: int
) -> bytes:
    """The frames with a persistent JSON message's properties and body.

    The library takes five times as long to build them.

    Args:
        time: the message's timestamp.
        size: maximum bytes of a frame.
    """
    table = b"".join([_name(name) + _long(value) for name, value in headers.items()])
    short = message_id.encode("utf-8", "surrogatepass")
    properties = b"".join(
        (
            _JSON,
            _LONG.pack(len(table)),
            table,
            _PERSISTENT,
            bytes((len(short),)),
            short,
            _TIME.pack(time),
        )
    )
    parts = [
        _CONTENT.pack(
            _HEADER, channel, _CONTENT_SIZE + len(properties), _BASIC, 0, len(body), _GIVEN
        ),
        properties,
        _ENDS,
    ]
    most = size - _AROUND
    for at in range(0, len(body), most):
        part = body if len(body) <= most else body[at : at + most]
        parts += (_HEAD.pack(_BODY, channel, len(part)), part, _ENDS)
    return b"".join(parts)


def _long(text: str) -> bytes:
    value = text.encode("utf-8", "surrogatepass")
    return _LONG.pack(len(value)) + value


@lru_cache(maxsize=64)
def _name(name: str) -> bytes:
    """A field's name in a table, and the type of its value: a long text."""
    said = name.encode("utf-8", "surrogatepass")
    return bytes((len(said),)) + said + b"S"


def delivery(method: bytes) -> tuple[str, int, bool, str, str]:
    """Parse basic.deliver (from the method's ids on).

    The consumer tag, the delivery tag, the redelivered flag, exchange and routing key. The library
    takes five times as long to parse it.
    """
    at = 5 + method[4]
    consumer, (tag, redelivered) = method[5:at], _DELIVERED.unpack_from(method, at)
    at += _DELIVERED.size
    end = at + 1 + method[at]
    exchange = method[at + 1 : end].decode(*_TEXT_AS)
    key = method[end + 1 : end + 1 + method[end]].decode(*_TEXT_AS)
    return consumer.decode(*_TEXT_AS), tag, bool(redelivered), exchange, key


def properties(header: bytes, at: int) -> dict[str, Any] | None:
    """Parse properties as ``content`` writes them, as the library does; None: they are others.

    The library takes six times as long.
    """
    if not header.startswith(_PLAIN, at):
        return None
    at += len(_PLAIN) + _LONG.size
    headers: dict[str, str] = {}
    try:
        (size,) = _LONG.unpack_from(header, at - _LONG.size)
        end = at + size
        while at < end:
            name_ends = at + 1 + header[at]
            kind, size = _FIELD.unpack_from(header, name_ends)
            if kind != _TEXT:
                return None
            value = name_ends + _FIELD.size
            headers[header[at + 1 : name_ends].decode()] = header[value : value + size].decode()
            at = value + size
        id_ends = at + 2 + header[at + 1]
        (time,) = _TIME.unpack_from(header, id_ends)
        message_id = header[at + 2 : id_ends].decode()
    except (ValueError, LookupError, struct.error):
        return None
    if id_ends + _TIME.size != len(header):
        return None
    return {
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "application_headers": headers,
        "delivery_mode": header[at],
        "message_id": message_id,
        "timestamp": time,
    }


def send_all(socket: Any, data: bytes | memoryview) -> None:
    """Write all data. gevent's ``sendall`` first asks the socket for the buffer's size, each time."""
    sent = socket.send(data)
    if sent < len(data):
        socket.sendall(memoryview(data)[sent:])


class Incoming:
    """Reads ahead, and finds where a frame ends; ``recv`` for a reader of few bytes at a time.

    Args:
        recv: the socket's. Its errors are raised, and lose no buffered bytes.
    """

    __slots__ = ("_at", "_kept", "_recv")

    def __init__(self, recv: Callable[[int], bytes]) -> None:
        self._recv = recv
        self._kept, self._at = b"", 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing is buffered."""
        return self._at >= len(self._kept)

    def fill(self) -> None:
        """Wait for bytes, and buffer them; for an empty one."""
        self._kept, self._at = self._recv(AHEAD), 0

    def __call__(self, most: int) -> bytes:
        """Up to ``most`` bytes; none at the end."""
        if self.is_empty:
            self._kept, self._at = self._recv(max(most, AHEAD)), 0
        start = self._at
        self._at = start + most
        return self._kept[start : self._at]

    def message(self) -> tuple[int, bytes, bytes, bytes] | None:
        """The next delivery, if its three frames are complete: channel, method, header and body.

        None: what comes next is to be read frame by frame.
        """
        start = self._at
        if len(self._kept) < start + _METHOD_HEAD.size:
            return None
        kind, channel, _, *ids = _METHOD_HEAD.unpack_from(self._kept, start)
        if kind != _METHOD or (*ids,) != _DELIVER:
            return None
        method, header, body = self.frame(), self.frame(), self.frame()
        if method is not None and header is not None and body is not None:
            are_of_one = header[:2] == (_HEADER, channel) and body[:2] == (_BODY, channel)
            if are_of_one and _BODY_SIZE.unpack_from(header[2], 4) == (len(body[2]),):
                return channel, method[2], header[2], body[2]
        self._at = start
        return None

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
