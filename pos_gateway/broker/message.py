"""A message to be published."""

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

#: Significant bits of a delay: as a rule, and where it matters to be back within the second.
COARSE, FINE = 2, 5


@dataclass(frozen=True, slots=True)
class Message:
    """What is published where. ``message_id`` is what a receiver deduplicates by."""

    exchange: str
    routing_key: str
    body: bytes
    message_id: str
    headers: Mapping[str, Any] = field(default_factory=dict)
    #: Whole seconds that the broker holds it back; 0 is not at all.
    delay: int = 0

    def delayed(self, seconds: float, *, before: float = inf, bits: int = COARSE) -> "Message":
        """The same message, to arrive in that many seconds, or somewhat later but not earlier.

        Every set bit of the delay costs a hop through another queue of the broker, so it is
        rounded up to ``bits`` of them (two: 31 s becomes 32 s, one hop instead of five), unless
        that would take it to ``before``. At least a second.
        """
        whole = min(max(1, ceil(seconds)), MAX_DELAY)
        low = max(0, whole.bit_length() - bits)
        rounded = min(-(-whole >> low) << low, MAX_DELAY)
        return replace(self, delay=rounded if rounded < before else whole)

    def following(self, cause: TraceContext | None) -> "Message":
        """The same message, as what follows from that."""
        if cause is None:
            return self
        return replace(self, headers={**self.headers, **cause.headers})

    def route(self) -> tuple[str, str]:
        """Exchange and routing key on RabbitMQ, through native delayed delivery if delayed.

        Delayed, it enters at the first queue that holds it back. The exchanges before that one
        only pass it on, each by a topic's pattern, and took the broker 2 ms a message.
        """
        if self.delay:
            first = level_name(self.delay.bit_length() - 1)
            return first, calculate_routing_key(self.delay, self.routing_key)
        return self.exchange, self.routing_key


def undelayed(routing_key: str) -> str:
    """The key under which a message was first published, whatever delays it went through.

    A native delay is a prefix of 28 binary digits, each a word of its own.
    """
    words = routing_key.split(".")
    if len(words) > MAX_NUMBER_OF_BITS_TO_USE and set(words[:MAX_NUMBER_OF_BITS_TO_USE]) <= {
        "0",
        "1",
    }:
        return ".".join(words[MAX_NUMBER_OF_BITS_TO_USE:])
    return routing_key
