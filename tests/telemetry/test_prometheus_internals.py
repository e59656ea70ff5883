"""What the gateway uses of prometheus_client beyond its documentation."""

from collections.abc import Iterator

import prometheus_client
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from pos_gateway.telemetry.prometheus_internals import (
    Counter,
    Histogram,
    labels_of,
    with_samples,
)

NUMBER = 100


class Lazily(Collector):
    """Collects a metric whose samples are made while it is written."""

    def __init__(self) -> None:
        self.made: list[int] = []

    def collect(self) -> Iterator[Metric]:
        yield with_samples(Metric("orders", "Orders.", "counter"), self._samples())

    def _samples(self) -> Iterator[Sample]:
        for number in range(NUMBER):
            self.made.append(number)
            yield Sample("orders_total", {"merchant": f"m{number}"}, number)


def test_samples_from_an_iterator_are_all_written_once() -> None:
    lazily = Lazily()
    text = generate_latest(lazily).decode()
    assert lazily.made == list(range(NUMBER))
    assert [line for line in text.splitlines() if not line.startswith("#")] == [
        f'orders_total{{merchant="m{number}"}} {number}.0' for number in range(NUMBER)
    ]


def test_samples_are_made_one_by_one() -> None:
    lazily = Lazily()
    [metric] = lazily.collect()
    for number, _ in enumerate(metric.samples, 1):
        assert len(lazily.made) == number


def test_a_metrics_labels() -> None:
    registry = CollectorRegistry()
    orders = Counter("orders", "Orders.", ("outcome", "provider"), registry=registry)
    assert labels_of(orders) == ("outcome", "provider")
    assert labels_of(Histogram("seconds", "Time.", registry=registry)) == ()


def test_what_is_counted_without_locks_is_written_as_by_the_library() -> None:
    """Below, on and between bounds, above all of them, and with labels."""
    written = []
    for counter, histogram in (
        (prometheus_client.Counter, prometheus_client.Histogram),
        (Counter, Histogram),
    ):
        registry = CollectorRegistry()
        orders = counter("orders", "Orders.", ("outcome",), registry=registry)
        orders.labels("accepted").inc()
        orders.labels("accepted").inc(2)
        counter("all", "All.", registry=registry).inc()
        seconds = histogram("seconds", "Time.", registry=registry, buckets=(0.1, 1, 2.5))
        replies = histogram("reply", "Time.", ("provider",), registry=registry, buckets=(0.1, 1))
        for each in (0, 0.1, 0.100001, 1, 2, 2.5, 1000):
            seconds.observe(each)
            replies.labels("square").observe(each)
        text = generate_latest(registry).decode()
        written.append([line for line in text.splitlines() if "_created" not in line])
    assert written[0] == written[1]
