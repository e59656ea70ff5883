"""Traces publishing: a span for each traced event, followed by the consumer's spans."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pos_gateway.broker.message import Message
from pos_gateway.domain.errors import BatchCutShort
from pos_gateway.domain.trace_context import TraceContext
from pos_gateway.events.hydration import YIELD_EVERY
from pos_gateway.runtime.green import cooperatively

if TYPE_CHECKING:
    from pos_gateway.telemetry.tracing import Tracing

#: Publishes messages in order; returns how many from the front are stored.
Publish = Callable[[Sequence[Message], Callable[[], None]], int]


def traced(publish: Publish, tracing: "Tracing") -> Publish:
    """``publish`` with a span for each message of a trace."""

    def publish_traced(messages: Sequence[Message], on_sent: Callable[[], None]) -> int:
        spans, sent = [], []
        stored = 0
        for message in cooperatively(messages, YIELD_EVERY):
            cause = TraceContext.of(message.headers)
            span = None if cause is None else tracing.event_span(cause)
            if span is not None:
                span.says(message_id=message.message_id, routing_key=message.routing_key)
            spans.append(span)
            sent.append(message if span is None else message.following(span.context))
        try:
            stored = publish(sent, on_sent)
        except BatchCutShort as error:
            stored = error.confirmed
            raise
        finally:
            for place, span in enumerate(cooperatively(spans, YIELD_EVERY)):
                if span is not None:
                    if place >= stored:
                        span.failed("not_stored")
                    span.end()
        return stored

    return publish_traced
