"""Reads message properties so that bad properties end neither the connection nor the worker.

The AMQP library raises while reading a frame (text other than UTF-8, a time in the year 58856, endlessly nested
tables), before the message could be dead-lettered; redelivered, the message would stop the next worker. The library
also parses in Python whatever the broker accepts: a frame full of headers blocks the worker's loop for 50 ms.
"""

import struct
from collections.abc import Callable
from typing import Any

import structlog
from amqp.exceptions import FrameSyntaxError

from pos_gateway.broker.amqp_internals import read_properties_with
from pos_gateway.broker.frames import COMPRESSED

log = structlog.get_logger(__name__)

#: The name given to the header ``compression``: kombu would inflate a body before the size can be checked.
COMPRESSION = "x-compression"
#: The content type given to a message with unreadable properties, and the reason; no headers are left.
UNREADABLE = "application/x-unreadable"
#: Bytes of properties, headers included, that a worker reads in full. The gateway's own have a fifth of the bytes, and
#: RabbitMQ adds 200 per delay. In larger properties the worker skips lists and tables, and allows HEADERS headers at
#: most.
MAX_BYTES, HEADERS = 8192, 256
WHY_UNREADABLE = f"its properties cannot be read, or are more than {HEADERS} headers"
#: Flags of the properties before the header table, and of the table.
_SHORT_TEXTS, _TABLE = (0x8000, 0x4000), 0x2000
#: Bytes of a table value by the type's letter; all further types have a length prefix.
_SIZES = {
    **dict.fromkeys(b"V", 0),
    **dict.fromkeys(b"tbB", 1),
    **dict.fromkeys(b"sUu", 2),
    **dict.fromkeys(b"Iif", 4),
    **dict.fromkeys(b"D", 5),
    **dict.fromkeys(b"lLdT", 8),
}
_NESTED = b"FA"
#: Errors of the AMQP library; OSError is an impossible time, not the connection.
_UNREADABLE = (
    *(ValueError, OverflowError, RecursionError, LookupError, TypeError, OSError),
    *(struct.error, ArithmeticError, FrameSyntaxError),
)


def tolerate_bad_properties(most: int | None = MAX_BYTES) -> None:
    """Make the AMQP library read bad properties as no properties, in the whole process. Idempotent.

    Args:
        most: maximum bytes of properties read in full; larger ones are read in part; None: always in full.
    """
    read_properties_with(lambda read: _tolerant(getattr(read, "strict", read), most))


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
        if COMPRESSED in headers:
            headers[COMPRESSION] = headers.pop(COMPRESSED)
        return properties, end

    read_or_not.strict = read  # type: ignore[attr-defined]
    return read_or_not


def _without_nested(properties: bytes) -> bytes:
    """The properties without list and table headers: a worker reads no list or table.

    Raises the AMQP library's errors, and OverflowError on too many headers.
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
