"""An order's durations, and the lag of the queues."""

from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from pos_gateway.attempt.decision import Decision
from pos_gateway.broker.wire import RawMessage
from pos_gateway.domain.outcome import Kind, Outcome
from pos_gateway.ledger.states import AttemptHistory, Claim, Key
from pos_gateway.telemetry import metrics
from pos_gateway.worker import timing as subject
from pos_gateway.worker.timing import Timing
from tests.ledger.lab import an_entry
from tests.telemetry.lab import value


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    now = SimpleNamespace(time=1000.0)
    monkeypatch.setattr(subject, "time", lambda: now.time)
    return now


def a_request(placed_at: float | None, key: str = "orders", tries: int = 0) -> Any:
    raw = RawMessage(b"", tries=tries)
    return SimpleNamespace(placed_at=placed_at, routing_key=key, raw=raw)


def a_decision(*kinds: Kind) -> Decision:
    key = Key("m", "o")
    claim = Claim(key, "worker-1", 1, 1, AttemptHistory(), sending=True)
    entries = [(claim, an_entry(kind, key=key)) for kind in kinds]
    return Decision(Outcome(Kind.ACCEPTED), entries)


def timed(name: str) -> tuple[float, float]:
    """The histogram's count and sum of seconds."""
    return value(f"pos_gateway_{name}_seconds_count"), value(f"pos_gateway_{name}_seconds_sum")


def since(before: tuple[float, float], name: str) -> tuple[float, float]:
    count, total = timed(name)
    return count - before[0], pytest.approx(total - before[1])  # type: ignore[return-value]


def age(timing: Timing, **ready: int) -> dict[str, float]:
    timing.show({name.replace("_", "."): messages for name, messages in ready.items()})
    samples = next(iter(metrics.queue_age.collect())).samples
    return {sample.labels["queue"]: sample.value for sample in samples}


def test_the_queue_wait_ends_with_the_first_attempt(now: SimpleNamespace) -> None:
    timing, before = Timing(), timed("queue_wait")
    timing.started(a_request(990.0), None)
    timing.started(a_request(900.0, tries=1), None)  # a retry
    timing.started(a_request(None), None)  # a cancel request
    timing.started(a_request(1003.0), None)  # the backend's clock is ahead
    assert since(before, "queue_wait") == (2, 10.0)


def test_the_waits_of_healthy_merchants_orders_are_counted(now: SimpleNamespace) -> None:
    """For the report: first attempts alone, and none that its merchant itself may have held up."""
    timing = Timing()
    light = SimpleNamespace(light=3, well_for=inf)
    heavy = SimpleNamespace(light=None, well_for=inf)
    limited = SimpleNamespace(light=3, well_for=5.0)
    timing.started(a_request(994.0), limited)
    for placed_at in (1000.0, 999.98, 999.98, 900.0, 1001.0):
        timing.started(a_request(placed_at), light)
    timing.started(a_request(990.0), heavy)
    timing.started(a_request(990.0), None)
    timing.started(a_request(990.0, tries=1), light)
    assert timing.healthy_waits == [2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 1]


def test_an_orders_duration_ends_when_its_outcome_is_durable(now: SimpleNamespace) -> None:
    timing, before = Timing(), timed("order")
    timing.settled(a_request(990.0), a_decision(Kind.ACCEPTED))
    timing.settled(a_request(900.0), a_decision(Kind.PENDING))
    timing.settled(a_request(900.0), a_decision(Kind.IN_DOUBT))
    timing.settled(a_request(900.0), a_decision())  # it had ended before
    timing.settled(a_request(None), a_decision(Kind.CANCELLED))
    timing.settled(a_request(1003.0), a_decision(Kind.EXPIRED))
    assert since(before, "order") == (2, 10.0)


def test_a_queues_lag_is_the_age_of_the_youngest_order_received_from_it(
    now: SimpleNamespace,
) -> None:
    timing = Timing()
    assert age(timing, orders=5) == {}
    for placed_at in (900.0, 970.0, 700.0):  # the last one was parked for a while
        timing.taken(a_request(placed_at))
    timing.taken(a_request(999.0, "0.0.1.orders"))  # a retry whose delay is over
    timing.taken(a_request(None))
    timing.taken(a_request(600.0, "orders.canary"))
    assert age(timing, orders=5, orders_canary=1) == {"orders": 30.0, "orders.canary": 400.0}
    now.time += 60
    assert age(timing, orders=5) == {"orders": 90.0}  # none was received since
    assert age(timing, orders=0) == {"orders": 0.0}
    assert age(timing) == {}  # the broker does not answer


def test_a_backends_fast_clock_does_not_hide_later_orders(now: SimpleNamespace) -> None:
    timing = Timing()
    timing.taken(a_request(99_999.0))
    now.time += 40
    timing.taken(a_request(1010.0))
    assert age(timing, orders=1) == {"orders": 30.0}


def test_every_queues_length_is_a_metric(now: SimpleNamespace) -> None:
    Timing().show({"orders": 3, "order-events": 4})
    samples = next(iter(metrics.queue_messages.collect())).samples
    assert {s.labels["queue"]: s.value for s in samples} == {"orders": 3, "order-events": 4}
