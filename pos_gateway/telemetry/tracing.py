"""OpenTelemetry: the spans of an order's way. The only importer of it, and imported only where it is on.

What stands in a span may stand in a log line: what is in ``fields.py`` and a few names of
OpenTelemetry's own. Exceptions are told by their kinds: their messages may be about people.
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

#: Ended spans that wait for the collector at most; then the oldest are dropped.
WAITING = 2048
#: Spans that are sent at once. Encoding one takes 0.03 ms, and for all of a batch nobody else computes.
AT_ONCE = 64
#: Seconds that a span waits for others to be sent with.
GATHER = 1.0
#: Seconds that stopping waits for the collector.
GRACE = 2.0

#: Attributes by the names that they have here.
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
    """A part of an order's way, under way."""

    __slots__ = ("_has_failed", "_span")

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        self._has_failed = False

    @property
    def context(self) -> TraceContext | None:
        """For whatever follows from it; None: OpenTelemetry is disabled by its own environment."""
        headers: dict[str, str] = {}
        _W3C.inject(headers, trace.set_span_in_context(self._span))
        return TraceContext.of(headers)

    @property
    def trace_id(self) -> str | None:
        """The trace that it is in; None: likewise."""
        context = self._span.get_span_context()
        return trace.format_trace_id(context.trace_id) if context.is_valid else None

    def says(self, **fields: Any) -> None:
        """Add what may be shown of these; None is left out."""
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
        """It went wrong; why is a code, or an exception's kind. What is said first counts."""
        if not self._has_failed:
            self._has_failed = True
            self._span.set_attribute("error.type", why)
            self._span.set_status(StatusCode.ERROR)

    def end(self) -> None:
        """It is over."""
        self._span.end()


class Tracing:
    """Makes spans. Safe from threads and green threads; each has a present span of its own.

    Those that are context managers are the present span until their block ends.
    """

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    def asking(self, action: str) -> AbstractContextManager[Span]:
        """The backend asks for something: within whatever it is doing at present."""
        return _present(self._tracer.start_span(action, kind=SpanKind.PRODUCER))

    def delivering(self, cause: TraceContext | None) -> AbstractContextManager[Span]:
        """A worker does what a message asks for."""
        return _present(self._tracer.start_span("deliver", _after(cause), SpanKind.CONSUMER))

    def calling(self) -> AbstractContextManager[Span]:
        """A request to a POS, within the attempt."""
        return _present(self._tracer.start_span("call POS", kind=SpanKind.CLIENT))

    def telling(self, cause: TraceContext) -> Span:
        """An event is published. Many are at once: none is the present span; each is to be ended."""
        return Span(self._tracer.start_span("publish event", _after(cause), SpanKind.PRODUCER))


class ExportedTracing(Tracing):
    """Spans that are sent to a collector, as OpenTelemetry's own environment (``OTEL_*``) says.

    They are sent from a thread (a green one in a green worker), and nobody waits for it: what the
    collector does not take in time is dropped. The constructor does no I/O.

    Raises:
        InvalidSettings: OpenTelemetry cannot read its environment.
    """

    def __init__(self) -> None:
        try:
            # Not at the top: a backend may have no more than OpenTelemetry's interface.
            from opentelemetry.sdk.resources import OTELResourceDetector, Resource  # noqa: PLC0415
            from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415

            ours = Resource.create({"service.name": "pos-gateway"})
            resource = ours.merge(OTELResourceDetector().detect())
            self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        except ValueError as error:
            raise InvalidSettings([FieldError("OpenTelemetry", str(error))]) from None
        super().__init__(self._provider.get_tracer("pos_gateway", __version__))

    def start(self) -> None:
        """Begin to send, in this process: once, and after a fork rather than before it."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
            OTLPSpanExporter,
        )
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

        self._provider.add_span_processor(
            BatchSpanProcessor(
                OTLPSpanExporter(),
                max_queue_size=WAITING,
                max_export_batch_size=AT_ONCE,
                schedule_delay_millis=1000 * GATHER,
            )
        )

    def stop(self) -> None:
        """Send what is left; a collector that does not take it soon is not waited for. Idempotent."""
        closing = threading.Thread(target=self._provider.shutdown, name="spans", daemon=True)
        closing.start()
        closing.join(GRACE)


@cache
def of_this_program() -> Tracing:
    """As the program has set OpenTelemetry up, now or later: for what is imported into others."""
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
    """Not of the present span: what it follows from came from elsewhere, or it begins a trace."""
    nothing = Context()
    return nothing if cause is None else _W3C.extract(cause.headers, nothing)
