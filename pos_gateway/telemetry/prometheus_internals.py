"""What the gateway uses of prometheus_client beyond its documentation; used nowhere else.

- ``Metric.samples`` may be an iterator, which the text format reads once: a scrape yields to orders
  within a metric of a thousand series, instead of holding them up for tens of milliseconds.
- ``_labelnames`` of a metric: its labels, for ``docs/metrics.md``.
"""

from collections.abc import Iterator
from typing import Any

from prometheus_client import Metric
from prometheus_client.samples import Sample


def with_samples(metric: Metric, samples: Iterator[Sample]) -> Metric:
    """The metric, with these samples read while it is written."""
    metric.samples = samples  # type: ignore[assignment]
    return metric


def labels_of(metric: Any) -> tuple[str, ...]:
    """The names of a metric's labels."""
    names: tuple[str, ...] = metric._labelnames
    return names
