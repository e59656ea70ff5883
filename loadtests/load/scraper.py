"""The worker's own metrics while a run lasts, read once a second as Prometheus does.

How long the queues are the worker asks the broker every ten seconds only; here it is asked each time.
"""

import re
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from math import inf

from pos_gateway.broker.queue_metrics import QueueMetrics
from testkit.background import Background

#: Seconds between two scrapes, each of which takes a few milliseconds of the worker's time.
PERIOD = 1.0

_LINE = re.compile(
    r"pos_gateway_(slots|waiting|parked_orders|connections|queue_messages|queue_age_seconds"
    r'|event_loop_lag_seconds_bucket)(?:\{\w+="([^"]*)"\})? (\S+)'
)


@dataclass(frozen=True, slots=True)
class Sample:
    """The figures at a moment of the wall clock, by name: ``slots.free``, ``parked_orders``."""

    at: float
    figures: Mapping[str, float]


class Scraper(Background):
    """Scrapes from a thread of its own while its block lasts."""

    def __init__(self, port: int, broker_url: str) -> None:
        super().__init__()
        self.samples: list[Sample] = []
        self._url = f"http://127.0.0.1:{port}/metrics"
        self._depths = QueueMetrics(broker_url)
        # No proxy of the environment stands between us and loopback.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def _run(self) -> None:
        while not self._over.wait(PERIOD):
            try:
                with self._opener.open(self._url, timeout=10) as reply:
                    figures = read(reply.read().decode())
            except (OSError, HTTPException):
                continue  # a worker that answers late is not to be asked twice at once
            self._depths.look()
            lengths = {f"queue_messages.{name}": n for name, n in self._depths.ready.items()}
            self.samples.append(Sample(time.time(), {**figures, **lengths}))


def read(page: str) -> dict[str, float]:
    """The figures of a page of metrics."""
    found = filter(None, map(_LINE.fullmatch, page.splitlines()))
    return {
        ".".join(filter(None, (name, label))): float(value)
        for name, label, value in (each.groups() for each in found)
    }


def loop_lag(before: Sample, after: Sample) -> float:
    """Seconds that 99 of 100 green threads' turns were not later than, between two samples.

    Rounded up to the next bound of the histogram; the last one where that is not enough.
    """
    prefix = "event_loop_lag_seconds_bucket."
    counts = {
        float(name.removeprefix(prefix)): count - before.figures.get(name, 0.0)
        for name, count in after.figures.items()
        if name.startswith(prefix)
    }
    turns, bounds = counts.pop(inf, 0.0), sorted(counts)
    return next(
        (bound for bound in bounds if counts[bound] >= 0.99 * turns), max(bounds, default=0.0)
    )
