"""The CPU cost of an order on each side, from the workers' metrics.

They are read from the workers' ports, or from a Prometheus that scrapes them, at ``/federate``.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from http.client import HTTPException
from itertools import pairwise
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from pos_gateway.canary.verdict import Costs, Spent
from pos_gateway.domain.errors import MetricsUnavailable
from pos_gateway.runtime.urls import mask_url

#: How often the metrics are read after the first time.
LOOKS = 10
#: Seconds that a page may take.
_TIMEOUT = 10.0

_CPU, _ORDERS = "process_cpu_seconds_total", "pos_gateway_orders_total"
#: The terminal outcomes.
_ENDS = frozenset({"accepted", "rejected", "cancelled", "expired", "failed"})


def costs_of(pages: Iterable[Iterable[str]], wait: Callable[[], None]) -> list[Costs]:
    """What each side's workers spent, from one read of the metrics to the next.

    Args:
        pages: of each side, the addresses of its workers' metrics.
        wait: waits until the next read.

    Raises:
        MetricsUnavailable: a page cannot be read.
    """
    sides = [list(urls) for urls in pages]
    looks = [[_look(urls) for urls in sides]]
    for _ in range(LOOKS):
        wait()
        looks.append([_look(urls) for urls in sides])
    return [
        [_spent(before[side], after[side]) for before, after in pairwise(looks)]
        for side in range(len(sides))
    ]


#: By page and process: seconds of CPU and orders since it began.
_Look = Mapping[tuple[str, str], tuple[float, float]]


def _spent(before: _Look, after: _Look) -> Spent:
    """Counts the processes in both reads, without those restarted, whose counters are lower."""
    cpu = orders = 0.0
    processes = 0
    for process in before.keys() & after.keys():
        (cpu_then, orders_then), (cpu_now, orders_now) = before[process], after[process]
        if cpu_now >= cpu_then and orders_now >= orders_then:
            cpu, orders = cpu + cpu_now - cpu_then, orders + orders_now - orders_then
            processes += 1
    return Spent(cpu, round(orders), processes)


def _look(urls: Iterable[str]) -> _Look:
    cpu: dict[tuple[str, str], float] = {}
    orders: dict[tuple[str, str], float] = defaultdict(float)
    for url in urls:
        for sample in _samples(url):
            # A worker's page has no such label; in Prometheus it names the series' worker.
            process = url, sample.labels.get("instance", "")
            if sample.name == _CPU:
                cpu[process] = sample.value
            elif sample.name == _ORDERS and sample.labels.get("outcome") in _ENDS:
                orders[process] += sample.value
    return {process: (seconds, orders[process]) for process, seconds in cpu.items()}


def _samples(url: str) -> list[Sample]:
    try:
        with urlopen(url, timeout=_TIMEOUT) as reply:  # noqa: S310  (an operator has named it)
            page = reply.read().decode()
        return [each for family in text_string_to_metric_families(page) for each in family.samples]
    except (OSError, ValueError, HTTPException) as error:
        raise MetricsUnavailable(f"cannot read the metrics at {mask_url(url)}: {error}") from error
