"""A message to publish."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil, inf
from typing import Any

from kombu.transport.native_delayed_delivery import (
    MAX_NUMBER_OF_BITS_TO_USE,
    calculate_routing_key,
    level_name,
)

from pos_gateway.domain.trace_context import TraceContext

#: Longest native delay in seconds: 28 queues, one for each power of two.
MAX_DELAY = 2**MAX_NUMBER_OF_BITS_TO_USE - 1

#: Significant bits of a delay: the default, and for delays that must end within the second.
COARSE, FINE = 2, 5


@dataclass(frozen=True, slots=True)
class Message:
    """A message and its route. Receivers deduplicate by ``message_id``."""

    exchange: str
    routing_key: str
    body: bytes
    message_id: str
    headers: Mapping[str, Any] = field(default_factory=dict)
    #: Delay at the broker in whole seconds; 0: no delay.
    delay: int = 0

    def delayed(self, seconds: float, *, before: float = inf, bits: int = COARSE) -> "Message":
        """The same message, delivered after at least ``seconds``.

        Every set bit of the delay costs a hop through a further queue of the broker. The delay is therefore rounded up
        to ``bits`` significant bits (two: 31 s becomes 32 s, one hop instead of five), unless the result would reach
        ``before``. At least a second.
        """
        whole = min(max(1, ceil(seconds)), MAX_DELAY)
        low = max(0, whole.bit_length() - bits)
        rounded = min(-(-whole >> low) << low, MAX_DELAY)
        return replace(self, delay=rounded if rounded < before else whole)

    def following(self, cause: TraceContext | None) -> "Message":
        """The same message, with ``cause`` as the trace's parent."""
        if cause is None:
            return self
        return replace(self, headers={**self.headers, **cause.headers})

    def route(self) -> tuple[str, str]:
        """Exchange and routing key on RabbitMQ, through native delayed delivery if delayed.

        A delayed message enters at the first queue that causes a delay. The earlier exchanges would only forward the
        message by a topic pattern, which took the broker 2 ms a message.
        """
        if self.delay:
            first = level_name(self.delay.bit_length() - 1)
            return first, calculate_routing_key(self.delay, self.routing_key)
        return self.exchange, self.routing_key


def undelayed(routing_key: str) -> str:
    """The routing key under which a message was first published, without native delays.

    A native delay is a prefix of 28 binary digits, each a word.
    """
    words = routing_key.split(".")
    if len(words) > MAX_NUMBER_OF_BITS_TO_USE and set(words[:MAX_NUMBER_OF_BITS_TO_USE]) <= {
        "0",
        "1",
    }:
        return ".".join(words[MAX_NUMBER_OF_BITS_TO_USE:])
    return routing_key
