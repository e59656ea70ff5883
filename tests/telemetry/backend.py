"""A backend that uses OpenTelemetry: places an order within its span.

``python -m tests.telemetry.backend`` forks it (tests/forked.py).
"""

import sys
from typing import NoReturn

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from pos_gateway.client import OrderClient
from tests.forked import fork_each
from tests.orders import an_order


def main(arguments: list[str]) -> NoReturn:
    place(*arguments)
    sys.exit()


def place(broker_url: str, action: str, order_id: str, merchant_id: str) -> None:
    with OrderClient(broker_url) as client:
        provider = TracerProvider()  # set up after the client, as a framework may do it
        provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(provider)
        with trace.get_tracer("shop").start_as_current_span("checkout"):
            if action == "submit":
                client.submit(an_order(order_id, merchant_id))
            else:
                client.cancel(order_id, merchant_id)


if __name__ == "__main__":
    fork_each(main)
