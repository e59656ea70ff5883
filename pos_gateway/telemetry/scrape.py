"""A scrape: gauges are set on demand, and series written in small steps.

A worker has a single event loop. Writing three thousand series takes tens of milliseconds, a
standstill for orders: a scrape yields after each metric, and within a long metric. Values of a scrape
are of no single moment, as Prometheus permits.
"""

from collections.abc import Callable, Iterator

from prometheus_client import REGISTRY, CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector

from pos_gateway.runtime.green import cooperatively
from pos_gateway.telemetry.prometheus_internals import with_samples

#: Series of a metric written before yielding to other green threads.
YIELD_EVERY = 50


class Scrape(Collector):
    """The collector read by a scrape. Safe from threads, if the refreshers are."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._registry = registry
        self._refresh: list[Callable[[], None]] = []

    def before(self, refresh: Callable[[], None]) -> None:
        """Call ``refresh`` before each scrape, to set gauges. Must yield to other green threads."""
        self._refresh.append(refresh)

    def text(self) -> bytes:
        """Every metric's current value, in Prometheus's text format."""
        for refresh in self._refresh:
            refresh()
        return generate_latest(self)

    def collect(self) -> Iterator[Metric]:
        """The metrics and their series, lazily: ``text`` iterates once."""
        for metric in cooperatively(self._registry.collect(), 1):
            yield with_samples(metric, cooperatively(metric.samples, YIELD_EVERY))
