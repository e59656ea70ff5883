"""Traced events: each in its own trace; a failed publish fails its span."""

from collections.abc import Callable, Sequence

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pos_gateway.broker.message import Message
from pos_gateway.domain.errors import BatchCutShort
from pos_gateway.domain.trace_context import TraceContext
from pos_gateway.events.traced import Publish, traced
from pos_gateway.telemetry.tracing import Tracing


def an_event(number: int) -> Message:
    cause = TraceContext(f"00-{number:032x}-{'b' * 16}-01", "x=y")
    return Message("order-events", "order.accepted", b"{}", f"e{number}", cause.headers)


UNTRACED = Message("order-events", "order.failed", b"{}", "e0")


class Spans:
    """Publishes traced events, and shows the status of their spans."""

    def __init__(self) -> None:
        self._ended = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._ended))
        self._tracing = Tracing(provider.get_tracer("test"))

    def publish(self, publish: Publish, *messages: Message) -> int:
        return traced(publish, self._tracing)(messages, lambda: None)

    @property
    def failed(self) -> dict[object, bool]:
        """Whether its span failed, by the event's id."""
        return {
            (span.attributes or {})["messaging.message.id"]: not span.status.is_unset
            for span in self._ended.get_finished_spans()
        }


@pytest.fixture
def spans() -> Spans:
    return Spans()


def test_each_event_continues_its_trace_and_one_without_is_unchanged(spans: Spans) -> None:
    published: list[Message] = []

    def publish(messages: Sequence[Message], on_sent: Callable[[], None]) -> int:
        published.extend(messages)
        return len(messages)

    events = [an_event(1), UNTRACED, an_event(2)]
    assert spans.publish(publish, *events) == 3
    assert spans.failed == {"e1": False, "e2": False}
    assert published[1] is UNTRACED
    for ours, theirs in ((events[0], published[0]), (events[2], published[2])):
        before, after = TraceContext.of(ours.headers), TraceContext.of(theirs.headers)
        assert before is not None and after is not None
        assert before.parent.split("-")[1] == after.parent.split("-")[1]
        assert before.parent != after.parent
        assert after.state == "x=y"
        assert (ours.body, ours.message_id) == (theirs.body, theirs.message_id)


def test_spans_of_refused_events_fail(spans: Spans) -> None:
    assert spans.publish(lambda *_: 1, an_event(1), an_event(2), an_event(3)) == 1
    assert spans.failed == {"e1": False, "e2": True, "e3": True}


def test_spans_of_unconfirmed_events_fail(spans: Spans) -> None:
    def publish(messages: Sequence[Message], on_sent: Callable[[], None]) -> int:
        raise BatchCutShort(1, "down")

    with pytest.raises(BatchCutShort):
        spans.publish(publish, an_event(1), an_event(2))
    assert spans.failed == {"e1": False, "e2": True}
