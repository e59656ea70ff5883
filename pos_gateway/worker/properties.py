"""Reading a message's properties: what cannot be read must not end the connection, or the worker.

The AMQP library raises while it reads a frame (text that is not UTF-8, a time in the year 58856,
a table nested without end), far from where a message could be set aside; the message would come
back, and stop the next worker.
"""

from collections.abc import Callable
from typing import Any

import structlog
from amqp import serialization

log = structlog.get_logger(__name__)

#: The AMQP class of messages' contents.
_BASIC = 60
#: What such a message is said to contain; it has no header and is quarantined as unknown.
UNREADABLE = {"application_headers": {}, "content_type": "application/x-unreadable"}


def tolerate_bad_properties() -> None:
    """Have the AMQP library read bad properties as none. For this whole process; idempotent."""
    read = serialization.PROPERTY_CLASSES[_BASIC]
    if not getattr(read, "tolerant", False):
        serialization.PROPERTY_CLASSES[_BASIC] = _tolerant(read)


def _tolerant(read: Callable[..., Any]) -> Callable[..., Any]:
    def read_or_not(buffer: bytes, offset: int) -> Any:
        try:
            properties, after = read(buffer, offset)
        except (ValueError, OverflowError, RecursionError, LookupError, TypeError) as error:
            log.warning("message.unreadable_properties", error=repr(error)[:200])
            return {**UNREADABLE, "application_headers": {}}, len(buffer)
        # kombu inflates a body by this header before anybody can look at its size.
        (properties.get("application_headers") or {}).pop("compression", None)
        return properties, after

    read_or_not.tolerant = True  # type: ignore[attr-defined]
    return read_or_not
