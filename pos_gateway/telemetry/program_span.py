"""A backend's own span around a submission, if the program uses OpenTelemetry."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pos_gateway.domain.trace_context import TraceContext


@contextmanager
def program_span(
    action: str, order_id: str | None = None, merchant_id: str | None = None
) -> Iterator[TraceContext | None]:
    """A child of the program's current span while entered; None in a program without any."""
    if "opentelemetry.trace" not in sys.modules:  # the import takes long
        yield None
        return
    from pos_gateway.telemetry.tracing import of_this_program  # noqa: PLC0415

    with of_this_program().asking(action) as span:
        span.says(order_id=order_id, merchant_id=merchant_id)
        yield span.context
