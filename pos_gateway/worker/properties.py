"""Reading a message's properties: what cannot be read must not end the connection, or the worker.

The AMQP library raises while it reads a frame (text that is not UTF-8, a time in the year 58856,
a table nested without end), far from where a message could be set aside; the message would come
back, and stop the next worker.
"""

import struct
from collections.abc import Callable
from typing import Any

import structlog
from amqp import serialization

log = structlog.get_logger(__name__)

#: The AMQP class of messages' contents.
_BASIC = 60
#: Under this name the header `compression` is kept: kombu inflates a body by it before anybody can
#: look at its size.
COMPRESSION = "x-compression"
#: What such a message is said to contain; it has no header and is quarantined as unknown.
UNREADABLE = {"application_headers": {}, "content_type": "application/x-unreadable"}
#: What the AMQP library raises; OSError is a time that no calendar has, and not the connection.
_UNREADABLE = (
    *(ValueError, OverflowError, RecursionError, LookupError, TypeError, OSError),
    *(struct.error, ArithmeticError),
)


def tolerate_bad_properties() -> None:
    """Have the AMQP library read bad properties as none. For this whole process; idempotent."""
    read = serialization.PROPERTY_CLASSES[_BASIC]
    if not getattr(read, "tolerant", False):
        serialization.PROPERTY_CLASSES[_BASIC] = _tolerant(read)


def _tolerant(read: Callable[..., Any]) -> Callable[..., Any]:
    def read_or_not(buffer: bytes, offset: int) -> Any:
        try:
            properties, after = read(buffer, offset)
        except _UNREADABLE as error:
            log.warning("message.unreadable_properties", error=type(error).__name__)
            return {**UNREADABLE, "application_headers": {}}, len(buffer)
        headers = properties.get("application_headers") or {}
        if "compression" in headers:
            headers[COMPRESSION] = headers.pop("compression")
        return properties, after

    read_or_not.tolerant = True  # type: ignore[attr-defined]
    return read_or_not
