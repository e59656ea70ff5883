"""What the gateway uses of prometheus_client beyond its documentation."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric, generate_latest
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from pos_gateway.telemetry.prometheus_internals import labels_of, with_samples

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
