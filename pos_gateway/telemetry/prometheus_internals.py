"""What the gateway uses of prometheus_client beyond its documentation; used nowhere else.

- ``Metric.samples`` may be an iterator, which the text format reads once: a scrape yields to orders
  within a metric of a thousand series, instead of holding them up for tens of milliseconds.
- ``_labelnames`` of a metric: its labels, for ``docs/metrics.md``.
- ``Counter._value``, ``Histogram._sum``, ``_buckets`` and ``_upper_bounds``, and ``_value`` of each: counting
  without locks. Under gevent a lock is Python's code, and an observation seven calls instead of one.
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

import prometheus_client
from prometheus_client import Metric
from prometheus_client.samples import Sample


class Counter(prometheus_client.Counter):
    """The library's, without a lock: CPython switches threads at calls and loops, not within ``+=``."""

    def inc(self, amount: float = 1, exemplar: Any = None) -> None:
        """Count, with no exemplar. Not on a metric with labels: on its children."""
        self._value._value += amount


class Histogram(prometheus_client.Histogram):
    """The library's, without locks, as ``Counter``."""

    def observe(self, amount: float, exemplar: Any = None) -> None:
        """Count an observation, with no exemplar. Not on a metric with labels: on its children."""
        self._sum._value += amount
        self._buckets[bisect_left(self._upper_bounds, amount)]._value += 1


def with_samples(metric: Metric, samples: Iterator[Sample]) -> Metric:
    """The metric, with these samples read while it is written."""
    metric.samples = samples  # type: ignore[assignment]
    return metric


def labels_of(metric: Any) -> tuple[str, ...]:
    """The names of a metric's labels."""
    names: tuple[str, ...] = metric._labelnames
    return names
