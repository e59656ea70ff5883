"""Internals of prometheus_client, undocumented, used here and nowhere else.

- ``Metric.samples`` may be an iterator, read once by the text format: a scrape yields to orders
  within a metric of a thousand series, instead of delaying orders for tens of milliseconds.
- ``_labelnames`` of a metric: the labels, for ``docs/metrics.md``.
- ``Counter._value``, ``Histogram._sum``, ``_buckets`` and ``_upper_bounds``, and ``_value`` of each:
  counting without locks. Under gevent a lock is Python code: seven calls an observation, not one.
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

import prometheus_client
from prometheus_client import Metric
from prometheus_client.samples import Sample


class Counter(prometheus_client.Counter):
    """The library's counter, lockless: CPython switches threads at calls and loops, not in ``+=``."""

    def inc(self, amount: float = 1, exemplar: Any = None) -> None:
        """Count, without an exemplar. Only for a metric without labels, or a child."""
        self._value._value += amount


class Histogram(prometheus_client.Histogram):
    """The library's histogram without locks, as ``Counter``."""

    def observe(self, amount: float, exemplar: Any = None) -> None:
        """Count an observation, without an exemplar. Only for a metric without labels, or a child."""
        self._sum._value += amount
        self._buckets[bisect_left(self._upper_bounds, amount)]._value += 1


def with_samples(metric: Metric, samples: Iterator[Sample]) -> Metric:
    """The metric, with ``samples`` read during the writing."""
    metric.samples = samples  # type: ignore[assignment]
    return metric


def labels_of(metric: Any) -> tuple[str, ...]:
    """The names of a metric's labels."""
    names: tuple[str, ...] = metric._labelnames
    return names
