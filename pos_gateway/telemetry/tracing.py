"""OpenTelemetry spans of an order. The only importer of OpenTelemetry, imported only for tracing.

A span holds only the fields allowed in a log line (``fields.py``), and a few of OpenTelemetry's own
names. An exception's class is recorded without the message, where personal data may be.
"""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pos_gateway import __version__
from pos_gateway.domain.errors import FieldError, InvalidSettings
from pos_gateway.domain.trace_context import TraceContext
from pos_gateway.telemetry.fields import FIELDS
from pos_gateway.telemetry.line import kept

#: Maximum ended spans waiting for the collector; past the maximum the oldest are dropped.
WAITING = 2048
#: Maximum spans in a batch. Encoding a span takes 0.03 ms, and a batch blocks the loop throughout.
BATCH_SIZE = 64
#: Maximum seconds that a span waits for a batch.
GATHER = 1.0
#: Seconds for which ``stop`` waits for the collector.
GRACE = 2.0

#: OpenTelemetry attributes by field name.
_NAMES = {
    **{name: f"pos_gateway.{name}" for name in FIELDS},
    "message_id": "messaging.message.id",
    "routing_key": "messaging.rabbitmq.destination.routing_key",
    "method": "http.request.method",
    "host": "server.address",
    "http_status": "http.response.status_code",
}

_W3C = TraceContextTextMapPropagator()


class Span:
    """A span in progress."""

    __slots__ = ("_has_failed", "_span")

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        self._has_failed = False

    @property
    def context(self) -> TraceContext | None:
        """The context for child spans; None: OpenTelemetry is disabled by its environment."""
        headers: dict[str, str] = {}
        _W3C.inject(headers, trace.set_span_in_context(self._span))
        return TraceContext.of(headers)

    @property
    def trace_id(self) -> str | None:
        """The trace's id; None: OpenTelemetry is disabled by its environment."""
        context = self._span.get_span_context()
        return trace.format_trace_id(context.trace_id) if context.is_valid else None

    def says(self, **fields: Any) -> None:
        """Set the allowed attributes; omit None."""
        if self._span.is_recording():
            shown = kept(fields).items()
            self._span.set_attributes(
                {
                    _NAMES[name]: value
                    for name, value in shown
                    if name in _NAMES and value is not None
                }
            )

    def failed(self, why: str) -> None:
        """Mark the span failed; ``why`` is a code, or an exception's class. The first call wins."""
        if not self._has_failed:
            self._has_failed = True
            self._span.set_attribute("error.type", why)
            self._span.set_status(StatusCode.ERROR)

    def end(self) -> None:
        """End the span."""
        self._span.end()


class Tracing:
    """Makes spans. Safe from threads and green threads; each thread has a current span.

    A span returned as a context manager is the current span until the end of the block.
    """

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    def asking(self, action: str) -> AbstractContextManager[Span]:
        """The backend publishes a request, within the program's current span."""
        return _present(self._tracer.start_span(action, kind=SpanKind.PRODUCER))

    def delivering(self, cause: TraceContext | None) -> AbstractContextManager[Span]:
        """A worker handles a message."""
        return _present(self._tracer.start_span("deliver", _after(cause), SpanKind.CONSUMER))

    def calling(self) -> AbstractContextManager[Span]:
        """A request to a POS, within the attempt."""
        return _present(self._tracer.start_span("call POS", kind=SpanKind.CLIENT))

    def event_span(self, cause: TraceContext) -> Span:
        """An event is published. Several spans run at once, none of them current; end each."""
        return Span(self._tracer.start_span("publish event", _after(cause), SpanKind.PRODUCER))


class ExportedTracing(Tracing):
    """Spans sent to a collector, configured by OpenTelemetry's environment (``OTEL_*``).

    A thread (green in a green worker) sends the spans, without blocking orders: spans not accepted by
    the collector in time are dropped. The constructor does no I/O.

    Raises:
        InvalidSettings: OpenTelemetry cannot read the environment.
    """

    def __init__(self) -> None:
        try:
            # Not at the top: a backend may have only OpenTelemetry's API.
            from opentelemetry.sdk.resources import OTELResourceDetector, Resource  # noqa: PLC0415
            from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415

            ours = Resource.create({"service.name": "pos-gateway"})
            resource = ours.merge(OTELResourceDetector().detect())
            self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        except ValueError as error:
            raise InvalidSettings([FieldError("OpenTelemetry", str(error))]) from None
        super().__init__(self._provider.get_tracer("pos_gateway", __version__))

    def start(self) -> None:
        """Start sending from this process: once, and after any fork."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
            OTLPSpanExporter,
        )
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

        self._provider.add_span_processor(
            BatchSpanProcessor(
                OTLPSpanExporter(),
                max_queue_size=WAITING,
                max_export_batch_size=BATCH_SIZE,
                schedule_delay_millis=1000 * GATHER,
            )
        )

    def stop(self) -> None:
        """Send remaining spans, within ``GRACE`` seconds. Idempotent."""
        closing = threading.Thread(target=self._provider.shutdown, name="spans", daemon=True)
        closing.start()
        closing.join(GRACE)


@cache
def of_this_program() -> Tracing:
    """Tracing as configured by the host program, now or later: for code imported by backends."""
    return Tracing(trace.get_tracer("pos_gateway", __version__))


@contextmanager
def _present(started: trace.Span) -> Iterator[Span]:
    span = Span(started)
    with trace.use_span(started, True, record_exception=False, set_status_on_exception=False):
        try:
            yield span
        except BaseException as error:
            span.failed(type(error).__name__)
            raise


def _after(cause: TraceContext | None) -> Context:
    """A context of ``cause``, not of the current span; without a cause, of a new trace."""
    nothing = Context()
    return nothing if cause is None else _W3C.extract(cause.headers, nothing)
