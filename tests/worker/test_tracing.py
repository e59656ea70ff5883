"""One trace, from a backend's order to the POS and back to the event: through real workers."""

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.forked import Preloaded
from tests.orders import an_order
from tests.telemetry.collector import Collector, Received
from tests.worker.lab import GREEN, PATIENCE, ROOT, Lab, WorkerProcess, by_type
from tests.worker.test_logs import attempted, lines_of

#: The headers of a backend in another language, from OpenTelemetry's own example.
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT, STATE = f"00-{TRACE}-{SPAN}-01", "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"
INFO = ("--loglevel", "INFO")
PREFORK = ("-P", "prefork", "-c", "1")


@cache
def _backend() -> Preloaded:
    """One for each process of pytest."""
    return Preloaded(sys.executable, "-m", "tests.telemetry.backend")


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


class Tracing:
    """A lab whose workers trace orders, with the verbs of a backend that has a trace."""

    def __init__(self, lab: Lab, collector: Collector, folder: Path) -> None:
        self._lab = lab
        self._collector = collector
        self._folder = folder

    def worker(
        self, *flags: str, app: str = GREEN, local_wait_timeout: float = 5.0, **environment: str
    ) -> AbstractContextManager[WorkerProcess]:
        return self._lab.worker(
            *(*INFO, *flags),
            app=app,
            environment={**self._collector.environment, **environment},
            tracing=True,
            local_wait_timeout=local_wait_timeout,
        )

    def ask(self, action: str, order_id: str, merchant_id: str) -> None:
        """Have a backend with OpenTelemetry publish a request."""
        self._lab.client.connect()
        environment = {**os.environ, **self._collector.environment, "OTEL_SERVICE_NAME": "shop"}
        arguments = [self._lab.broker_url, action, order_id, merchant_id]
        backend = _backend().fork(environment, self._folder / "backend.log", arguments=arguments)
        assert backend.wait(PATIENCE) == 0, (self._folder / "backend.log").read_text()

    def publish(self, order: dict[str, Any], **trace: object) -> None:
        """Publish an order as a backend in another language does, with these headers."""
        headers = {"task": "pos_gateway.submit_order", "id": order["order_id"], **trace}
        self._lab.publish_raw(json.dumps([[order], {}, {}]).encode(), headers)


@pytest.fixture
def tracing(lab: Lab, collector: Collector, tmp_path: Path) -> Tracing:
    return Tracing(lab, collector, tmp_path)


def parent(span: Received) -> str:
    """The trace header of the span's children."""
    return f"00-{span.trace}-{span.id}-0[13]"


def is_of(header: str, span: Received) -> bool:
    return re.fullmatch(parent(span), header) is not None


@pytest.mark.parametrize(("app", "flags"), [(GREEN, ()), ("pos_gateway", PREFORK)])
def test_an_order_is_one_trace_from_the_backend_to_the_pos_and_back(
    lab: Lab, tracing: Tracing, collector: Collector, app: str, flags: tuple[str, ...]
) -> None:
    lab.open_merchants("fast-1", provider="acme")
    tracing.ask("submit", "o1", "fast-1")
    with tracing.worker(*flags, app=app) as worker:
        [told] = lab.event_messages(1)
    ours = ("submit", "deliver", "call POS", "publish event")
    [checkout] = collector.named("checkout")
    submit, deliver, call, publish = (collector.named(name)[0] for name in ours)
    assert {span.trace for span in (submit, deliver, call, publish)} == {checkout.trace}
    assert [each.parent for each in (submit, deliver, call, publish)] == [
        *(checkout.id, submit.id, deliver.id, deliver.id)
    ]
    assert [each.kind for each in (submit, deliver, call, publish)] == [
        *("producer", "consumer", "client", "producer")
    ]
    assert [each.service for each in (submit, deliver)] == ["shop", "pos-gateway"]
    order = lab.merchants.order("fast-1", "o1")
    assert order is not None
    assert is_of(order["traces"][0], call)
    assert is_of(told["headers"]["traceparent"], publish)
    [line] = attempted(lines_of(worker))
    assert line["trace_id"] == checkout.trace
    shown = ("order_id", "merchant_id", "provider", "action", "attempt", "outcome", "contact")
    assert deliver.said(*shown) == [line[name] for name in shown]
    assert deliver.said("order_id", "provider", "attempt") == ["o1", "acme", 1]
    times = [name for name in ("waited_seconds", "claim_seconds") if line[name] is not None]
    assert [round(each, 4) for each in deliver.said(*times)] == [line[name] for name in times]
    assert len(times) == (2 if app == GREEN else 1)  # an order waits in a green worker only
    assert submit.said("order_id", "merchant_id") == ["o1", "fast-1"]
    assert call.attributes["http.response.status_code"] == 201
    assert publish.attributes["messaging.message.id"] == told["event"]["id"]
    assert not any(span.failed for span in (submit, deliver, call, publish))


def test_a_cancel_request_has_a_separate_trace(
    lab: Lab, tracing: Tracing, collector: Collector
) -> None:
    lab.open_merchants("fast-1")
    with tracing.worker():
        tracing.publish(an_order("o1", "fast-1"), traceparent=PARENT)
        lab.events(1)
        tracing.ask("cancel", "o1", "fast-1")
        [told] = lab.event_messages(1)
        _, attempt = collector.named("deliver", 2)
    [checkout], [cancel] = collector.named("checkout"), collector.named("cancel")
    assert (cancel.parent, attempt.parent) == (checkout.id, cancel.id)
    assert attempt.said("action", "outcome") == ["cancel", "cancelled"]
    _, publish = collector.named("publish event", 2)
    assert told["event"]["type"] == "order.cancelled"
    assert is_of(told["headers"]["traceparent"], publish)
    assert publish.trace == checkout.trace != TRACE


def test_every_attempt_is_in_its_backends_trace(
    lab: Lab, tracing: Tracing, collector: Collector
) -> None:
    lab.open_merchants("m", max_concurrency=1)
    lab.merchants.profile("m", {"kind": "fail", "status": 503})
    tracing.publish(an_order("o1", "m"), traceparent=PARENT, tracestate=STATE)
    with tracing.worker():
        lab.merchants.wait_until(merchant_id="m", requests=2)
        lab.merchants.profile("m", {"kind": "accept"})
        [told] = lab.event_messages(1)
    attempts = collector.named("deliver", 3)
    assert {(each.trace, each.parent, each.state) for each in attempts} == {(TRACE, SPAN, STATE)}
    numbers = [each.said("attempt")[0] for each in attempts]
    assert numbers == list(range(1, len(attempts) + 1))
    calls = {call.parent: call for call in collector.named("call POS", len(attempts))}
    first, *_, last = (calls[each.id] for each in attempts)
    assert (first.failed, first.attributes["error.type"]) == (True, "503")
    assert not last.failed
    order = lab.merchants.order("m", "o1")
    assert order is not None
    assert all(
        is_of(header, calls[each.id])
        for header, each in zip(order["traces"], attempts, strict=True)
    )
    assert told["headers"]["traceparent"].split("-")[1] == TRACE
    assert told["headers"]["tracestate"] == STATE


def test_parked_orders_keep_their_traces(lab: Lab, tracing: Tracing, collector: Collector) -> None:
    """Through bundles, bundles that are parked again, and orders parked alone."""
    lab.open_merchants("m", paused=True)
    traces = {f"o{n}": f"{n + 1:032x}" for n in range(70)}
    for order_id, trace in traces.items():
        tracing.publish(
            an_order(order_id, "m"), traceparent=f"00-{trace}-{SPAN}-01", tracestate=STATE
        )
    with tracing.worker(local_wait_timeout=0.5):
        lab.wait_until_parked(2, 20)
        lab.open_merchants("m")
        told = lab.event_messages(70)
    assert {
        each["event"]["order_id"]: each["headers"]["traceparent"].split("-")[1] for each in told
    } == traces
    delivered = collector.named("deliver", 70)
    assert {
        each.said("order_id")[0]: (each.trace, each.parent, each.state) for each in delivered
    } == {order_id: (trace, SPAN, STATE) for order_id, trace in traces.items()}


def test_an_order_keeps_its_trace_when_its_worker_is_killed(
    lab: Lab, tracing: Tracing, collector: Collector
) -> None:
    lab.open_merchants("m")
    lab.merchants.profile("m", {"kind": "hang"})
    tracing.publish(an_order("o1", "m"), traceparent=PARENT)
    with tracing.worker() as worker:
        lab.merchants.wait_until(merchant_id="m", in_flight=1)
        worker.send(signal.SIGKILL)
        worker.wait()
    lab.merchants.profile("m", {"kind": "accept"}, release=True)
    with tracing.worker():
        [told] = lab.event_messages(1)
    delivered = collector.named("deliver")[-1]
    assert (delivered.trace, delivered.parent) == (TRACE, SPAN)
    assert delivered.said("outcome") == ["accepted"]
    assert told["headers"]["traceparent"].split("-")[1] == TRACE


def test_an_order_without_a_trace_starts_one(
    lab: Lab, tracing: Tracing, collector: Collector
) -> None:
    """So does an order whose trace is malformed or hostile: it is delivered as if it had none."""
    nothing: list[dict[str, object]] = [
        {},
        {"traceparent": f"00-{'0' * 32}-{SPAN}-01"},
        {"traceparent": f"{PARENT}\r\nX-Admin: 1"},
        {"traceparent": {"a": [1]}, "tracestate": "x" * 100_000},
        {"tracestate": STATE},
    ]
    lab.open_merchants("fast-1")
    for number, headers in enumerate(nothing):
        tracing.publish(an_order(f"o{number}", "fast-1"), **headers)
    tracing.publish(an_order("long", "fast-1"), traceparent=PARENT, tracestate="a=" + "x" * 511)
    with tracing.worker():
        told = lab.event_messages(len(nothing) + 1)
    assert {each["event"]["type"] for each in told} == {"order.accepted"}
    delivered = {each.said("order_id")[0]: each for each in collector.named("deliver", len(told))}
    long = delivered.pop("long")
    assert (long.trace, long.parent, long.state) == (TRACE, SPAN, "")
    assert {each.parent for each in delivered.values()} == {""}
    assert len({each.trace for each in delivered.values()} - {TRACE}) == len(nothing)
    assert all("tracestate" not in each["headers"] for each in told)


def test_a_message_that_cannot_be_decoded_is_traced_as_what_it_asks_for(
    lab: Lab, tracing: Tracing, collector: Collector
) -> None:
    lab.open_merchants("fast-1")
    tracing.publish(an_order("o1", "fast-1"))
    with tracing.worker():
        lab.event_messages(1)  # spans are sent once the worker is ready
        for task in ("submit_order", "cancel_order"):
            lab.publish_raw(b"[[", {"task": f"pos_gateway.{task}", "id": "o2"})
        lab.dead_letters(2)
    delivered = [each.said("action", "outcome") for each in collector.named("deliver", 3)]
    assert sorted(delivered) == [
        *(["cancel", "failed"], ["submit", "accepted"], ["submit", "failed"])
    ]


def test_a_span_has_no_personal_data_and_no_secret(
    lab: Lab, tracing: Tracing, collector: Collector
) -> None:
    personal = {
        "customer": {"name": "Zebulon Quux", "phone": "+49 30 5550199"},
        "notes": "ring at Quux, second floor",
    }
    lab.open_merchants("reject-1", "fail-1")
    lab.merchants.profile("reject-1", {"kind": "reject"})
    lab.merchants.profile("fail-1", {"kind": "fail", "status": 410})
    for merchant in ("reject-1", "fail-1"):
        tracing.publish(an_order(merchant, merchant, **personal), traceparent=PARENT)
    tracing.publish({**an_order("invalid", "fail-1", **personal), "total": "Quux"})
    with tracing.worker():
        lab.events_until_all_ended(["reject-1", "fail-1", "invalid"])
    delivered = collector.named("deliver", 3)
    for said in (b"Quux", b"5550199", b"ring at"):
        assert said not in collector.bytes
    reasons = {each.said("order_id")[0]: each.said("reason")[0] for each in delivered}
    assert reasons == {"reject-1": None, "fail-1": "http_410", "invalid": "invalid_order"}
    failed = {each.said("order_id")[0]: each.failed for each in delivered}
    assert failed == {"reject-1": False, "fail-1": True, "invalid": True}
    assert not any(span.events for span in delivered)


def test_a_hanging_collector_delays_no_order(
    lab: Lab, tracing: Tracing, collector: Collector
) -> None:
    """More orders than spans are kept for; neither an order nor the worker's stop waits."""
    lab.open_merchants("m", max_concurrency=100)
    lab.merchants.profile("m", {"kind": "accept", "latency": 0})
    collector.hang()
    with tracing.worker() as worker:
        lab.submit("m", "first")
        collector.wait_until_held()
        orders = [f"o{number}" for number in range(700)]
        lab.submit("m", *orders)
        told = lab.events_until_all_ended(["first", *orders])
        assert collector.held > 0
        assert worker.stop() == 0
    assert by_type(told).keys() == {"order.accepted"}
    assert collector.spans == []


def test_an_unreachable_collector_is_logged_and_delays_no_order(lab: Lab, tracing: Tracing) -> None:
    lab.open_merchants("fast-1")
    with tracing.worker(OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1") as worker:
        lab.submit("fast-1", "o1")
        [event] = lab.events(1)
        worker.wait_for_log("opentelemetry.exporter")
    assert event["type"] == "order.accepted"
    said = [line for line in lines_of(worker) if line["event"] == "library.logged"]
    assert any("exporting spans" in line["message"] for line in said)
    assert "Traceback" not in worker.log


def test_a_replaced_child_process_traces_too(
    lab: Lab, tracing: Tracing, collector: Collector
) -> None:
    lab.open_merchants("fast-1")
    with tracing.worker("--max-tasks-per-child", "1", *PREFORK, app="pos_gateway"):
        for order_id in ("o1", "o2"):
            tracing.publish(an_order(order_id, "fast-1"), traceparent=PARENT)
            lab.events(1)
    delivered = collector.named("deliver", 2)
    assert [each.said("order_id")[0] for each in delivered] == ["o1", "o2"]
    assert len({each.id for each in delivered}) == 2


def test_unsampled_traces_are_propagated_and_not_exported(
    lab: Lab, tracing: Tracing, collector: Collector
) -> None:
    lab.open_merchants("fast-1")
    with tracing.worker():
        tracing.publish(an_order("o1", "fast-1"), traceparent=PARENT[:-2] + "00")
        [first] = lab.event_messages(1)
        tracing.publish(an_order("o2", "fast-1"), traceparent=PARENT)
        lab.events(1)
    assert re.fullmatch(f"00-{TRACE}-[0-9a-f]{{16}}-00", first["headers"]["traceparent"])
    assert [each.said("order_id") for each in collector.named("deliver")] == [["o2"]]
    order = lab.merchants.order("fast-1", "o1")
    assert order is not None
    assert re.fullmatch(f"00-{TRACE}-[0-9a-f]{{16}}-00", order["traces"][0])


@pytest.mark.parametrize(("app", "flags"), [(GREEN, ()), ("pos_gateway", PREFORK)])
def test_a_worker_with_tracing_off_imports_nothing_and_propagates_the_trace(
    lab: Lab, app: str, flags: tuple[str, ...], tmp_path: Path
) -> None:
    lab.open_merchants("m", max_concurrency=1)
    lab.merchants.profile("m", {"kind": "fail", "status": 503})
    Tracing(lab, Collector(), tmp_path).publish(
        an_order("o1", "m"), traceparent=PARENT, tracestate=STATE
    )
    imports = {"PYTHONPROFILEIMPORTTIME": "1", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    with lab.worker(*INFO, *flags, app=app, environment=imports) as worker:
        lab.merchants.wait_until(merchant_id="m", requests=1)
        lab.merchants.profile("m", {"kind": "accept"})
        [told] = lab.event_messages(1)
    imported = re.findall(r"^import time:.*\| +(\S+)$", worker.log, re.MULTILINE)
    assert "pos_gateway.worker.tasks" in imported
    assert [name for name in imported if "opentelemetry" in name or "tracing" in name] == []
    assert told["headers"] == {"traceparent": PARENT, "tracestate": STATE}
    order = lab.merchants.order("m", "o1")
    assert order is not None
    assert order["traces"] == []
    assert {line["trace_id"] for line in attempted(lines_of(worker))} == {None}


def test_a_worker_without_opentelemetry_says_what_it_needs(lab: Lab, tmp_path: Path) -> None:
    """An empty package of that name stands for one that is not installed."""
    (tmp_path / "opentelemetry").mkdir()
    (tmp_path / "opentelemetry" / "__init__.py").touch()
    path = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    with lab.worker(environment=path, tracing=True) as worker:
        assert worker.wait() == 78
    assert "pip install 'pos-gateway[tracing]'" in worker.log
    assert "POS_GATEWAY_TRACING" in worker.log
    assert "Traceback" not in worker.log


def test_a_worker_whose_opentelemetry_cannot_be_set_up_says_why(lab: Lab, tracing: Tracing) -> None:
    with tracing.worker(OTEL_SPAN_EVENT_COUNT_LIMIT="many") as worker:
        assert worker.wait() == 78
    assert "OTEL_SPAN_EVENT_COUNT_LIMIT must be" in worker.log
    assert "Traceback" not in worker.log
