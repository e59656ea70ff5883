"""An OpenTelemetry collector: receives spans over HTTP, and shows them."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1 import trace_pb2

from testkit.patience import PATIENCE


@dataclass(frozen=True)
class Received:
    """A received span. Ids in hexadecimal; ``parent`` is empty for a trace's root."""

    service: str
    name: str
    kind: str
    trace: str
    id: str
    parent: str
    state: str
    attributes: dict[str, Any]
    failed: bool
    #: Names of its events, exceptions for example.
    events: tuple[str, ...]

    def said(self, *names: str) -> list[Any]:
        """The values of these attributes of ours."""
        return [self.attributes.get(f"pos_gateway.{name}") for name in names]


class Collector:
    """Receives what is sent to its endpoint, while the context is open."""

    def __init__(self) -> None:
        self._spans: list[Received] = []
        #: All bodies, unparsed.
        self.bytes = b""
        #: How many spans each request had.
        self.batches: list[int] = []
        self._news = threading.Condition()
        self._answers = threading.Event()
        self._answers.set()
        #: Requests that wait for a response.
        self.held = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True

    @property
    def environment(self) -> dict[str, str]:
        """The environment that makes a program export its spans here."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self._server.server_port}"}

    def hang(self) -> None:
        """Receive requests, and do not respond."""
        self._answers.clear()

    def answer(self) -> None:
        """Respond again, also to the waiting requests."""
        self._answers.set()

    @property
    def spans(self) -> list[Received]:
        """The spans received so far."""
        with self._news:
            return list(self._spans)

    def wait_until(self, enough: Callable[[list[Received]], bool]) -> list[Received]:
        """Wait until the predicate holds for the spans; returns them."""
        with self._news:
            assert self._news.wait_for(lambda: enough(self._spans), PATIENCE), self._spans
            return list(self._spans)

    def wait_until_held(self) -> None:
        """Wait until a request waits for its response."""
        with self._news:
            assert self._news.wait_for(lambda: self.held > 0, PATIENCE)

    def named(self, name: str, number: int = 1) -> list[Received]:
        """The spans of that name in order of arrival, once there are this many."""
        return [
            span
            for span in self.wait_until(lambda s: sum(each.name == name for each in s) >= number)
            if span.name == name
        ]

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._answers.set()
        self._server.shutdown()
        self._server.server_close()

    def _take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        with self._news:
            self.bytes += body
            before = len(self._spans)
            for resource in request.resource_spans:
                service = _values(resource.resource.attributes)["service.name"]
                for scope in resource.scope_spans:
                    self._spans += [_received(service, span) for span in scope.spans]
            self.batches.append(len(self._spans) - before)
            self._news.notify_all()

    def _hold(self, change: int) -> None:
        with self._news:
            self.held += change
            self._news.notify_all()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.path == "/v1/traces", self.path
                if not collector._answers.is_set():
                    collector._hold(1)
                    collector._answers.wait()
                    collector._hold(-1)
                collector._take(body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing: it would be in the test's output."""

        return Handler


def _received(service: str, span: trace_pb2.Span) -> Received:
    return Received(
        service,
        span.name,
        trace_pb2.Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.trace_state,
        _values(span.attributes),
        span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
        tuple(event.name for event in span.events),
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
