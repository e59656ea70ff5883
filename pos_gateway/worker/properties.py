"""Reading a message's properties: what cannot be read must not end the connection, or the worker.

The AMQP library raises while it reads a frame (text that is not UTF-8, a time in the year 58856,
a table nested without end), far from where a message could be set aside; the message would come
back, and stop the next worker. And it reads in Python whatever the broker lets pass: a frame full of
headers holds the worker's loop for 50 ms.
"""

import struct
from collections.abc import Callable
from typing import Any

import structlog
from amqp import serialization
from amqp.exceptions import FrameSyntaxError

log = structlog.get_logger(__name__)

#: The AMQP class of messages' contents.
_BASIC = 60
#: Under this name the header `compression` is kept: kombu inflates a body by it before anybody can
#: look at its size.
COMPRESSION = "x-compression"
#: What such a message is said to contain, and why; it has no header.
UNREADABLE = "application/x-unreadable"
#: Bytes of a message's properties, headers included, of which a worker reads everything. The gateway's
#: own have a fifth of that, and RabbitMQ adds 200 for each of its delays that they come by. Of more it
#: reads no lists and tables, and so many headers at most.
MOST, HEADERS = 8192, 256
WHY_UNREADABLE = f"its properties cannot be read, or are more than {HEADERS} headers"
#: Properties that stand before the table of headers, and that one, by their flags.
_SHORT_TEXTS, _TABLE = (0x8000, 0x4000), 0x2000
#: Bytes of a value in a table, by its letter. Of others the length stands before them.
_SIZES = {
    **dict.fromkeys(b"V", 0),
    **dict.fromkeys(b"tbB", 1),
    **dict.fromkeys(b"sUu", 2),
    **dict.fromkeys(b"Iif", 4),
    **dict.fromkeys(b"D", 5),
    **dict.fromkeys(b"lLdT", 8),
}
_NESTED = b"FA"
#: What the AMQP library raises; OSError is a time that no calendar has, and not the connection.
_UNREADABLE = (
    *(ValueError, OverflowError, RecursionError, LookupError, TypeError, OSError),
    *(struct.error, ArithmeticError, FrameSyntaxError),
)


def tolerate_bad_properties(most: int | None = MOST) -> None:
    """Have the AMQP library read bad properties as none. For this whole process; idempotent.

    Args:
        most: bytes above which they are read in part only; None: they are read however many they have.
    """
    read = serialization.PROPERTY_CLASSES[_BASIC]
    serialization.PROPERTY_CLASSES[_BASIC] = _tolerant(getattr(read, "strict", read), most)


def _tolerant(read: Callable[..., Any], most: int | None) -> Callable[..., Any]:
    def read_or_not(buffer: bytes, offset: int) -> Any:
        end = len(buffer)
        try:
            if most is not None and end - offset > most:
                buffer, offset = _without_nested(bytes(buffer[offset:])), 0
            properties, _ = read(buffer, offset)
        except _UNREADABLE as error:
            log.warning("message.unreadable_properties", error=type(error).__name__)
            return {"application_headers": {}, "content_type": UNREADABLE}, end
        headers = properties.get("application_headers") or {}
        if "compression" in headers:
            headers[COMPRESSION] = headers.pop("compression")
        return properties, end

    read_or_not.strict = read  # type: ignore[attr-defined]
    return read_or_not


def _without_nested(properties: bytes) -> bytes:
    """The same without the lists and tables in their headers: no header that a worker reads is one.

    Raises what the AMQP library raises, and OverflowError: there are too many headers.
    """
    at = 2
    (flags,) = struct.unpack_from(">H", properties)
    for flag in _SHORT_TEXTS:
        if flags & flag:
            at += 1 + properties[at]
    if not flags & _TABLE:
        return properties
    before, kept, number = properties[:at], [], 0
    (size,) = struct.unpack_from(">I", properties, at)
    at += 4
    end = at + size
    while at < end:
        if (number := number + 1) > HEADERS:
            raise OverflowError
        begin, at = at, at + 1 + properties[at]
        kind, at = properties[at], at + 1
        if kind in _SIZES:
            at += _SIZES[kind]
        else:
            at += 4 + struct.unpack_from(">I", properties, at)[0]
        if kind not in _NESTED:
            kept.append(properties[begin:at])
    table = b"".join(kept)
    return before + struct.pack(">I", len(table)) + table + properties[end:]
