"""Spans: what they contain, and that no order waits for their export."""

import ast
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import Context
from pathlib import Path

import pytest

from pos_gateway.attempt.gateway import Gateway
from pos_gateway.domain.errors import InvalidSettings
from pos_gateway.domain.outcome import Kind
from pos_gateway.domain.trace_context import TraceContext
from pos_gateway.settings import Settings
from pos_gateway.telemetry import tracing as subject
from pos_gateway.telemetry.tracing import BATCH_SIZE, WAITING, ExportedTracing, Span
from pos_gateway.worker.intake import known_headers
from testkit.patience import PATIENCE
from tests.gate import deliver
from tests.orders import received
from tests.telemetry.collector import Collector

ROOT = Path(__file__).parents[2]
CAUSE = TraceContext(f"00-{'a' * 32}-{'b' * 16}-01", "rojo=1")
#: The exporting thread.
SENDER = "OtelBatchSpanRecordProcessor"


@pytest.fixture
def start(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., ExportedTracing]]:
    """Starts the exporter to the collector, in this environment; it is given the time to send all."""
    monkeypatch.setattr(subject, "GRACE", PATIENCE)
    started: list[ExportedTracing] = []

    def start(**environment: str) -> ExportedTracing:
        for name, value in {**collector.environment, **environment}.items():
            monkeypatch.setenv(name, value)
        started.append(ExportedTracing())
        started[-1].start()
        return started[-1]

    yield start
    collector.answer()
    for each in started:
        each.stop()


Start = Callable[..., ExportedTracing]


def test_remaining_spans_are_exported_at_the_end(start: Start, collector: Collector) -> None:
    tracing = start()
    with tracing.delivering(CAUSE) as span:
        span.says(order_id="o1", outcome=Kind.ACCEPTED, waited_seconds=0.5, attempt=2)
        span.says(provider=None)
    tracing.stop()
    tracing.stop()
    [sent] = collector.spans
    assert (sent.name, sent.kind, sent.failed) == ("deliver", "consumer", False)
    assert (sent.trace, sent.parent, sent.state) == ("a" * 32, "b" * 16, "rojo=1")
    assert sent.attributes == {
        "pos_gateway.order_id": "o1",
        "pos_gateway.outcome": "accepted",
        "pos_gateway.waited_seconds": 0.5,
        "pos_gateway.attempt": 2,
    }


def test_unknown_attributes_are_omitted_and_values_are_truncated(
    start: Start, collector: Collector
) -> None:
    tracing = start()
    with tracing.delivering(None) as span:
        span.says(customer="Quux", order_id="o" * 10_000, error={"phone": "Quux"})
    tracing.stop()
    [sent] = collector.spans
    assert sent.attributes == {"pos_gateway.order_id": "o" * 2000, "pos_gateway.error": "[dict]"}


def test_an_exception_is_recorded_by_its_class(start: Start, collector: Collector) -> None:
    """GreenletExit and gevent's Timeout are no Exceptions."""
    tracing = start()
    for kind in (ValueError, GeneratorExit):
        with pytest.raises(kind), tracing.delivering(None):
            raise kind("Quux")
    tracing.stop()
    assert [(each.failed, each.attributes) for each in collector.spans] == [
        (True, {"error.type": "ValueError"}),
        (True, {"error.type": "GeneratorExit"}),
    ]
    assert b"Quux" not in collector.bytes


def test_two_threads_have_separate_spans(start: Start, collector: Collector) -> None:
    tracing = start()
    one, other = Context(), Context()
    outer = [each.run(tracing.delivering, None) for each in (one, other)]
    spans = [each.run(span.__enter__) for each, span in zip((one, other), outer, strict=True)]
    for each in (one, other):
        inner = each.run(tracing.calling)
        each.run(inner.__enter__)
        each.run(inner.__exit__, None, None, None)
    for each, span in zip((one, other), outer, strict=True):
        each.run(span.__exit__, None, None, None)
    tracing.stop()
    calls = [each for each in collector.spans if each.name == "call POS"]
    assert [each.trace for each in calls] == [span.trace_id for span in spans]
    assert len({each.trace for each in calls}) == 2


def test_an_attempt_is_not_a_child_of_its_threads_earlier_span(start: Start) -> None:
    tracing = start()
    with tracing.delivering(CAUSE) as before, tracing.delivering(None) as span:
        assert span.trace_id != before.trace_id


def test_spans_are_exported_in_small_batches_that_yield_to_orders(
    start: Start, collector: Collector
) -> None:
    tracing = start()
    for _ in range(5 * BATCH_SIZE + 1):
        tracing.event_span(CAUSE).end()
    tracing.stop()
    assert sum(collector.batches) == 5 * BATCH_SIZE + 1
    assert max(collector.batches) == BATCH_SIZE


def test_while_the_collector_hangs_the_latest_spans_are_kept_and_no_order_waits(
    start: Start, collector: Collector
) -> None:
    collector.hang()
    tracing = start()
    for _ in range(BATCH_SIZE):
        tracing.event_span(CAUSE).end()
    collector.wait_until_held()
    for number in range(2 * WAITING):
        span = tracing.event_span(CAUSE)
        span.says(attempt=number)
        span.end()
    assert collector.held == 1
    collector.answer()
    tracing.stop()
    numbers = [each.said("attempt")[0] for each in collector.spans[BATCH_SIZE:]]
    assert numbers == list(range(WAITING, 2 * WAITING))


def test_stopping_does_not_wait_for_a_collector_that_hangs(
    start: Start, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "GRACE", 0.05)
    collector.hang()
    tracing = start()
    tracing.event_span(CAUSE).end()
    tracing.stop()
    assert SENDER in {thread.name for thread in threading.enumerate()}
    assert collector.spans == []


def test_the_environment_sets_the_service_name(start: Start, collector: Collector) -> None:
    start().event_span(CAUSE).end()
    start(OTEL_RESOURCE_ATTRIBUTES="service.name=a,b=c").event_span(CAUSE).end()
    start(OTEL_SERVICE_NAME="b").event_span(CAUSE).end()
    sent = collector.wait_until(lambda spans: len(spans) == 3)
    assert {each.service for each in sent} == {"pos-gateway", "a", "b"}


def test_disabled_by_opentelemetrys_environment_traces_are_propagated(
    start: Start, collector: Collector
) -> None:
    tracing = start(OTEL_SDK_DISABLED="true")
    with tracing.delivering(CAUSE) as span, tracing.calling() as call:
        span.says(order_id="o1")
        span.failed("why")
        assert span.context == call.context == CAUSE
    with tracing.delivering(None) as span:
        assert (span.context, span.trace_id) == (None, None)
    tracing.stop()
    assert collector.spans == []


def test_an_invalid_environment_is_an_invalid_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_SPAN_EVENT_COUNT_LIMIT", "many")
    with pytest.raises(InvalidSettings, match="OTEL_SPAN_EVENT_COUNT_LIMIT"):
        ExportedTracing()


def test_without_tracing_an_order_makes_no_tracing_call() -> None:
    """Its gateway uses the transport's own method, and the relay's."""
    gate = Gateway(Settings(database_url="sqlite://"))
    assert gate.tracing is None
    assert gate.caller.exchange == gate.transport.send
    assert gate.events._pipeline._publish == gate.events._publish

    def files(**trace: str) -> set[str]:
        called: set[str] = set()
        sys.setprofile(lambda frame, *_: called.add(Path(frame.f_code.co_filename).name))
        try:
            headers = known_headers({"task": "x", "id": "o1", **trace})
            decision = deliver(gate, received({"order_id": "o1"}, headers))
        finally:
            sys.setprofile(None)
        assert decision.messages
        return called

    ours = {"trace_context.py", "tracing.py", "traced.py"}
    assert {"spine.py", "intake.py", "decision.py"} <= files()
    assert not ours & files()
    assert ours & files(**CAUSE.headers) == {"trace_context.py"}


def test_every_attribute_of_every_span_is_allowed() -> None:
    said = [
        (path.name, keyword.arg)
        for path in sorted((ROOT / "pos_gateway").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == Span.says.__name__
        for keyword in node.keywords
    ]
    assert len(said) > 10
    assert [each for each in said if each[1] not in subject._NAMES] == []
