"""AMQP frames in fewer system calls: a message has three frames, an acknowledgement a single frame."""

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
#: The beginning of basic.deliver; a body's size in its header frame.
_DELIVER, _BODY_SIZE = b"\0\x3c\0\x3c", Struct(">Q")
#: The delivery tag, and the redelivered flag.
_DELIVERED = Struct(">QB")
#: The head of a frame with a message's properties: the frame's, the class (basic), no weight, the body's
#: size, and the properties present: content type and encoding, headers, persistence, id and timestamp.
_CONTENT, _HEADER, _BASIC, _GIVEN = Struct(">BHIHHQH"), 2, 60, 0xF0C0
#: Where in a header frame's payload the properties begin.
PROPERTIES_AT = 12
#: A frame with a part of a body; the class, the body's size and the flags count as properties.
_BODY, _CONTENT_SIZE = 3, 14
#: How a text's length is written in a table, and a method's ids.
_LONG, _IDS = Struct(">I"), Struct(">HH")
_JSON, _PERSISTENT = b"\x10application/json\x05utf-8", b"\x02"
_TIME = Struct(">Q")
#: How properties by ``content`` begin; a field's type and size.
_PLAIN, _FIELD, _TEXT = _GIVEN.to_bytes(2) + _JSON, Struct(">BI"), ord("S")
#: How the library reads a text.
_TEXT_AS = ("utf-8", "surrogatepass")
#: Bytes read at once.
AHEAD = 64 * 1024
#: Characters of an id or a name, at most: certain to fit the byte for the length.
_SHORT = 63
#: Maximum bytes of a header frame for ``properties``.
_SMALL = 8192
#: A header on which kombu would inflate the body (``properties.py``).
COMPRESSED = "compression"


def acknowledgement(channel: int, tag: int, *, multiple: bool) -> bytes:
    """Build the frame of an acknowledgement. The library takes ten times as long."""
    return _ACK.pack(_METHOD, channel, _SIZE, *_BASIC_ACK, tag, multiple, _END)


def method(channel: int, ids: tuple[int, int], arguments: bytes) -> bytes:
    """A frame with a method."""
    payload = _IDS.pack(*ids) + arguments
    return _HEAD.pack(_METHOD, channel, len(payload)) + payload + _ENDS


def content(
    channel: int, message_id: str, headers: Mapping[str, Any], body: bytes, time: int, size: int
) -> bytes | None:
    """Build the frames with a persistent JSON message's properties and body.

    The library takes five times as long. None: the library has to build the frames, since a header is no
    text, or a name or the id may be too long.

    Args:
        time: the message's timestamp.
        size: maximum bytes of a frame.
    """
    if len(message_id) > _SHORT:
        return None
    fields: list[bytes] = []
    for name, value in headers.items():  # a foreign message's name may be bytes, and no text
        if type(name) is not str or type(value) is not str or len(name) > _SHORT:
            return None
        text = value.encode(*_TEXT_AS)
        fields += (_name(name), _LONG.pack(len(text)), text)
    table = b"".join(fields)
    short = message_id.encode(*_TEXT_AS)
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


@lru_cache(maxsize=64)
def _name(name: str) -> bytes:
    """A field's name in a table, and the type of the value: a long text."""
    said = name.encode(*_TEXT_AS)
    return bytes((len(said),)) + said + b"S"


def delivery(method: bytes) -> tuple[str, int, bool, str, str]:
    """Parse basic.deliver (from the method's ids on).

    The consumer tag, the delivery tag, the redelivered flag, exchange and routing key. The library
    takes five times as long.
    """
    at = 5 + method[4]
    consumer, (tag, redelivered) = method[5:at], _DELIVERED.unpack_from(method, at)
    at += _DELIVERED.size
    end = at + 1 + method[at]
    exchange = method[at + 1 : end].decode(*_TEXT_AS)
    key = method[end + 1 : end + 1 + method[end]].decode(*_TEXT_AS)
    return consumer.decode(*_TEXT_AS), tag, bool(redelivered), exchange, key


def properties(header: bytes) -> dict[str, Any] | None:
    """Parse the properties in a header frame's payload, if ``content`` may have written the frame.

    The library takes six times as long. None: the library has to parse the frame.
    """
    if not header.startswith(_PLAIN, PROPERTIES_AT) or len(header) > _SMALL:
        return None
    at = PROPERTIES_AT + len(_PLAIN) + _LONG.size
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
    if id_ends + _TIME.size != len(header) or COMPRESSED in headers:
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
        """Wait for bytes, and fill the empty buffer."""
        self._kept, self._at = self._recv(AHEAD), 0

    def __call__(self, most: int) -> bytes:
        """Up to ``most`` bytes; no bytes at the end."""
        if self.is_empty:
            self._kept, self._at = self._recv(max(most, AHEAD)), 0
        start = self._at
        self._at = start + most
        return self._kept[start : self._at]

    def message(self) -> tuple[int, bytes, bytes, bytes] | None:
        """The next delivery, if all frames are buffered: channel, method, header and body.

        None: the next frame has to be read alone.
        """
        kept, end = self._kept, self._at
        channels, parts = set(), []
        try:
            for wanted in (_METHOD, _HEADER, _BODY):
                kind, channel, size = _HEAD.unpack_from(kept, end)
                start = end + _HEAD.size
                end = start + size + 1
                if kind != wanted or kept[end - 1] != _END:
                    return None
                channels.add(channel)
                parts.append(kept[start : end - 1])
            method, header, body = parts
            is_whole = _BODY_SIZE.unpack_from(header, 4) == (len(body),)
        except (LookupError, struct.error):
            return None
        if not is_whole or len(channels) > 1 or not method.startswith(_DELIVER):
            return None
        self._at = end
        return channel, method, header, body

    def frame(self) -> tuple[int, int, bytes] | None:
        """The next frame, if complete; None too for an invalid frame: the library raises."""
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
    """Writes whole frames in order, after frames kept for the next write.

    Safe from threads and green threads.

    Args:
        write: writes all of the argument. After an error nothing more is written: half a frame
            may have left, and the peer would read the next frame as the rest.
    """

    __slots__ = ("_is_broken", "_lock", "_write", "kept")

    def __init__(self, write: Callable[[bytes | memoryview], Any]) -> None:
        self._write = write
        self._lock = threading.Lock()
        #: Frames for the next write.
        self.kept: list[bytes] = []
        self._is_broken = False

    def __call__(self, data: bytes | memoryview) -> None:
        """Write the kept frames, then this data."""
        with self._lock:
            kept, self.kept = self.kept, []
            if kept:
                data = b"".join((*kept, data))
            if data:
                if self._is_broken:
                    raise BrokenPipeError(EPIPE, "an earlier write has failed")
                self._is_broken = True
                self._write(data)
                self._is_broken = False
