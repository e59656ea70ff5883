"""Microseconds of CPU of tracing an order, encoding and sending its spans included.

An order goes through all traced code, and meets no server there: no admission, ledger, POS or broker.
A process of its own takes the spans.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import gevent

from loadtests.bench.micro.runner import PAUSE, YIELD_EVERY, Play, in_turn
from pos_gateway.attempt.attempt import Attempt
from pos_gateway.attempt.gateway import Gateway
from pos_gateway.broker import wire
from pos_gateway.broker.message import Message
from pos_gateway.broker.wire import RawMessage
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import CallResult, Kind, Outcome
from pos_gateway.events.hydration import Hydration
from pos_gateway.events.outbox import Row
from pos_gateway.events.traced import Publish
from pos_gateway.events.traced import traced as traced_events
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import AttemptHistory, Claim, Key
from pos_gateway.runtime.vault import Vault
from pos_gateway.settings import Settings
from pos_gateway.transport.exchange import Reply, Request
from pos_gateway.transport.traced import traced as traced_exchanges
from pos_gateway.worker.gc_tuning import tune_gc

RECORD: dict[str, Any] = {
    "order_id": "6f1d4e5a-0000-4000-8000-000000000000",
    "merchant_id": "merchant-0123456789",
    "placed_at": "2026-01-31T12:00:00+00:00",
    "deliver_by": "2099-01-31T12:00:00+00:00",
    "currency": "EUR",
    "items": [{"sku": "burger", "name": "Burger", "quantity": 2, "unit_price": 850}],
    "total": 1700,
}
REQUEST = Request("POST", "https://pos.example.com/orders", b"{}", {"Idempotency-Key": "o"})
BODY = wire.body_of(json.dumps(RECORD).encode())
KEY = Key(RECORD["merchant_id"], RECORD["order_id"])
OUTCOME = Outcome(Kind.ACCEPTED, contact=CallResult.ANSWERED)
CLAIM = Claim(KEY, "worker", 1, 1, AttemptHistory(), sending=True)
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0"
#: The headers of the orders, and whether they are traced.
CANDIDATES = {
    "off": ({}, False),
    "off, and the message has a trace": ({"traceparent": f"{PARENT}1"}, False),
    "on, not sampled": ({"traceparent": f"{PARENT}0"}, True),
    "on": ({"traceparent": f"{PARENT}1"}, True),
}


class Orders:
    """Takes orders through all traced code."""

    def __init__(self, headers: dict[str, str], *, traced: bool) -> None:
        self._headers = headers
        self._gate = Gateway(Settings(database_url="sqlite://", tracing=traced))
        self._gate.spine._submit.claim = self._claimed  # type: ignore[method-assign]
        self._send: Callable[..., Reply] = _answer
        self._publish: Publish = _store
        self._hydration = Hydration(Payloads(Vault()))
        if self._gate.tracing is not None:
            self._gate.tracing.start()
            self._send = traced_exchanges(_answer, self._gate.tracing)
            self._publish = traced_events(_store, self._gate.tracing)

    def _claimed(self, attempt: Attempt[Order]) -> Outcome | None:
        """In place of the delivery: one request, and it is accepted."""
        attempt.claims, attempt.called = [CLAIM], True
        self._send(REQUEST)
        return OUTCOME

    def batch(self) -> None:
        """Orders in a row, and the batch of their events."""
        self._publish([self._event() for _ in range(YIELD_EVERY)], lambda: None)

    def end(self) -> None:
        """Send what is left."""
        if self._gate.tracing is not None:
            self._gate.tracing.stop()

    def _event(self) -> Message:
        now = time.perf_counter()
        raw, spine = RawMessage.of(BODY, self._headers, "orders"), self._gate.spine
        attempt: Attempt[Any] = Attempt(None, raw, received=now)
        decision = spine._decided(attempt, spine._read(attempt))
        event = decision.entries[0][1].event
        assert event is not None
        trace = None if event.trace is None else str(event.trace)
        row = Row(1, 1, event.id, event.kind, KEY.merchant_id, KEY.order_id, now, "x", None, None, 1, None, "{}", None, None, trace)  # fmt: skip
        return self._hydration.message(row)


def _answer(_request: Request, **_: Any) -> Reply:
    return Reply(201, {}, b"{}")


def _store(messages: Sequence[Message], _on_sent: Callable[[], None]) -> int:
    return len(messages)


@contextmanager
def opened(number: int) -> Iterator[Play]:
    """The candidates in turn."""

    def cpu(headers: dict[str, str], traced: bool) -> float:
        orders, began = Orders(headers, traced=traced), time.process_time()
        for _ in range(number // YIELD_EVERY):
            orders.batch()
            gevent.sleep(PAUSE)
        orders.end()
        return (time.process_time() - began) / number * 1e6

    tune_gc()
    candidates = {name: partial(cpu, *given) for name, given in CANDIDATES.items()}
    command = [sys.executable, "-m", __name__]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as collector:
        assert collector.stdout is not None
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.stdout.readline().strip()
        yield lambda turn: in_turn(candidates, turn)
        collector.terminate()


class Collector(BaseHTTPRequestHandler):
    """Takes what comes."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Its name in the standard library."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


if __name__ == "__main__":
    with suppress(KeyboardInterrupt), ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()
