"""One scrape: gauges are set when somebody asks for them, and written in turns.

A worker is one event loop. Three thousand series take tens of milliseconds to write, during which no
order would move; so others have their turn after each metric, and within a long one. What is told is
of no single moment, which Prometheus does not ask for.
"""

from collections.abc import Callable, Iterator

from prometheus_client import REGISTRY, CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector

from pos_gateway.runtime.green import in_turns

#: Series of a metric that are written in a row.
IN_A_ROW = 50


class Scrape(Collector):
    """What is written for Prometheus. Safe from threads, if what is added is."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._registry = registry
        self._refresh: list[Callable[[], None]] = []

    def before(self, refresh: Callable[[], None]) -> None:
        """Have this called before each scrape: it sets gauges. It lets others have their turn."""
        self._refresh.append(refresh)

    def text(self) -> bytes:
        """Every metric as it is now, in Prometheus's text format."""
        for refresh in self._refresh:
            refresh()
        return generate_latest(self)

    def collect(self) -> Iterator[Metric]:
        """The metrics, one by one, and so their series; for ``text``, which goes through them once."""
        for metric in in_turns(self._registry.collect(), 1):
            metric.samples = in_turns(metric.samples, IN_A_ROW)  # type: ignore[assignment]
            yield metric
