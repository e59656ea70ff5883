"""Traced exchanges: a span for each, with the span's context sent to the peer."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pos_gateway.transport.errors import TransportError
from pos_gateway.transport.exchange import Reply, Request

if TYPE_CHECKING:
    from pos_gateway.telemetry.tracing import Tracing


def traced(send: Callable[..., Reply], tracing: "Tracing") -> Callable[..., Reply]:
    """``Transport.send`` with a span, and the span's context sent as ``traceparent``."""

    def send_traced(request: Request, **options: Any) -> Reply:
        with tracing.calling() as span:
            span.says(method=request.method, host=_host(request.url))
            context = span.context
            if context is not None:
                request = request.adding(context.headers)
            try:
                reply = send(request, **options)
            except TransportError as error:
                span.failed(error.code)
                raise
            span.says(http_status=reply.status)
            if reply.status >= 400:
                span.failed(str(reply.status))
            return reply

    return send_traced


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:  # the transport rejects the URL
        return None
