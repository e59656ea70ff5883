"""The CPU cost of an order, read from the metrics of workers and Prometheus."""

import re
from collections.abc import Iterator

import pytest
from prometheus_client import REGISTRY, generate_latest

from pos_gateway.canary import cpu
from pos_gateway.canary.cpu import LOOKS, costs_of
from pos_gateway.domain.errors import MetricsUnavailable
from pos_gateway.telemetry import metrics
from pos_gateway.telemetry.port import MetricsPort
from pos_gateway.telemetry.serving import PageReply
from testkit.servers.process import free_port


class Pages:
    """Workers' pages whose counters a test sets."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.port = free_port()
        self.server = MetricsPort(self.port)

    def show(self, path: str, text: str) -> str:
        self.texts[path] = text
        self.server.pages[path] = lambda _: PageReply(200, self.texts[path].encode(), "text/plain")
        return f"http://127.0.0.1:{self.port}{path}"


@pytest.fixture
def pages() -> Iterator[Pages]:
    pages = Pages()
    pages.server.start()
    yield pages
    pages.server.stop()


def counters(seconds: float, *, labels: str = "", **orders: int) -> str:
    lines = [f"process_cpu_seconds_total{{{labels.removeprefix(',')}}} {seconds}"]
    for outcome, number in orders.items():
        lines.append(
            f'pos_gateway_orders_total{{outcome="{outcome}",provider="a"{labels}}} {number}'
        )
    return "\n".join(lines) + "\n"


def test_a_worker_has_the_metrics_that_are_read() -> None:
    metrics.outcome_recorded("accepted", None)
    page = generate_latest(REGISTRY).decode()
    assert re.search(rf"^{cpu._CPU} ", page, re.MULTILINE)
    assert re.search(rf'^{cpu._ORDERS}{{outcome="accepted",', page, re.MULTILINE)


def test_each_scrape_has_the_cost_since_the_one_before(pages: Pages) -> None:
    looks = iter(range(1, LOOKS + 1))

    def wait() -> None:
        look = next(looks)
        # A new outcome counts from its first scrape; pending is not terminal.
        pages.show(
            "/one", counters(10 + look, accepted=100 * look, rejected=look, pending=50 * look)
        )
        pages.show("/two", counters(20 + look, accepted=10 * look))

    one = pages.show("/one", counters(10, pending=1))
    two = pages.show("/two", counters(20))
    assert costs_of([[one], [one, two]], wait) == [
        [(1.0, 101, 1)] * LOOKS,
        [(2.0, 111, 2)] * LOOKS,
    ]


def test_a_restarted_process_does_not_count_for_that_interval(pages: Pages) -> None:
    looks = iter([*([(5, 50)] * (LOOKS - 2)), (1, 10), (3, 30)])

    def wait() -> None:
        seconds, orders = next(looks)
        pages.show("/one", counters(seconds, accepted=orders))

    one = pages.show("/one", counters(5, accepted=50))
    assert costs_of([[one]], wait) == [[*([(0.0, 0, 1)] * (LOOKS - 2)), (0.0, 0, 0), (2.0, 20, 1)]]


def test_a_page_of_prometheus_has_many_processes(pages: Pages) -> None:
    """A replaced process does not hide the cost of the others."""
    looks = iter(range(1, LOOKS + 1))

    def wait() -> None:
        look = next(looks)
        kept = counters(look, labels=',instance="kept"', accepted=10 * look)
        new = counters(0.5, labels=',instance="new"', accepted=5)
        pages.show("/federate", kept + new)

    old = counters(9, labels=',instance="old"', accepted=900)
    kept = counters(0, labels=',instance="kept"')
    url = pages.show("/federate", old + kept)
    assert costs_of([[url]], wait) == [[(1.0, 10, 1), *([(1.0, 10, 2)] * (LOOKS - 1))]]


@pytest.mark.parametrize("path", ["/nowhere", "/no-metrics"])
def test_an_unreadable_page_is_named(pages: Pages, path: str) -> None:
    pages.show("/no-metrics", "<html>\n{{{")
    url = f"http://127.0.0.1:{pages.port}{path}"
    with pytest.raises(MetricsUnavailable, match=f"cannot read the metrics at {url}: "):
        costs_of([[url]], lambda: None)
