"""Traced exchanges: the peer gets the span's id, and the span has the result."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pos_gateway.domain.trace_context import TraceContext
from pos_gateway.simulated_merchants.client import SimulatedMerchants
from pos_gateway.telemetry.tracing import Tracing
from pos_gateway.transport.errors import Misconfigured, NotSent
from pos_gateway.transport.exchange import Reply, Request, Transport
from pos_gateway.transport.guard import Guard
from pos_gateway.transport.traced import traced

CAUSE = TraceContext(f"00-{'a' * 32}-{'b' * 16}-01", "rojo=1")


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracing(spans: InMemorySpanExporter) -> Tracing:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return Tracing(provider.get_tracer("test"))


@pytest.fixture
def send(tracing: Tracing) -> Callable[[Request], Reply]:
    transport = Transport(guard=Guard(allow_all=True))
    return partial(traced(transport.send, tracing), key="m", connections=1, seconds=10.0)


def said(spans: InMemorySpanExporter) -> list[dict[str, Any]]:
    return [dict(span.attributes or {}) for span in spans.get_finished_spans()]


def test_a_request_is_sent_unchanged_with_its_span_in_its_headers(
    tracing: Tracing, spans: InMemorySpanExporter
) -> None:
    requests: list[Request] = []

    def exchange(request: Request, **options: object) -> Reply:
        assert options == {"key": "m"}
        requests.append(request)
        return Reply(201, {}, b"{}")

    secret = Request(
        "POST", "https://me:s3cr3t@pos.example/orders/o?k=s3cr3t", b"s3cr3t", {"A": "s3cr3t"}
    )
    with tracing.delivering(CAUSE):
        assert traced(exchange, tracing)(secret, key="m").status == 201
    [request] = requests
    call, deliver = spans.get_finished_spans()
    assert call.parent is not None and call.parent.span_id == deliver.get_span_context().span_id
    assert request.headers.keys() == {"A", "traceparent", "tracestate"}
    assert request.headers["traceparent"].split("-")[1:3] == [
        "a" * 32,
        f"{call.get_span_context().span_id:016x}",
    ]
    assert request.headers["tracestate"] == "rojo=1"
    assert (request.method, request.url, request.body) == (secret.method, secret.url, secret.body)
    assert said(spans)[0] == {
        "http.request.method": "POST",
        "server.address": "pos.example",
        "http.response.status_code": 201,
    }


def test_an_error_reply_is_an_error_in_the_span(
    send: Callable[[Request], Reply],
    spans: InMemorySpanExporter,
    simulated_merchants: SimulatedMerchants,
) -> None:
    simulated_merchants.reset()
    reply = send(Request("GET", f"{simulated_merchants.base_url('m')}/orders/unknown"))
    assert reply.status == 404
    [attributes] = said(spans)
    assert (attributes["http.response.status_code"], attributes["error.type"]) == (404, "404")


def test_an_invalid_url_is_refused_by_the_transport(
    send: Callable[[Request], Reply], spans: InMemorySpanExporter
) -> None:
    with pytest.raises(Misconfigured):
        send(Request("POST", "http://[", b"{}"))
    assert said(spans) == [{"http.request.method": "POST", "error.type": "url"}]


def test_a_failed_exchange_has_its_code_in_the_span(
    send: Callable[[Request], Reply], spans: InMemorySpanExporter
) -> None:
    with pytest.raises(NotSent):
        send(Request("POST", "http://127.0.0.1:1/orders", b"{}"))
    [span] = spans.get_finished_spans()
    assert said(spans)[0]["error.type"] == "connect"
    assert not span.events
