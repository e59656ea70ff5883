"""What is measured: every metric is described, and there are never too many series."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from prometheus_client import Counter, Gauge, Histogram

from pos_gateway.cli.schema import metrics_page
from pos_gateway.telemetry import metrics
from pos_gateway.telemetry.labels import OTHER
from tests.telemetry.lab import Samples

ROOT = Path(__file__).parents[2]
#: Series of one worker at most, whomever it serves.
MOST = 3000
MERCHANTS, PROVIDERS = 10_000, 60


def test_with_ten_thousand_merchants_and_sixty_providers_there_are_fewer_than_3000_series() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.telemetry.many", str(MERCHANTS), str(PROVIDERS)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    samples = Samples(done.stdout)
    assert without_samples(samples) == []
    assert len(samples) < MOST
    assert samples.value("pos_gateway_merchants_in_trouble") == MERCHANTS
    assert len(samples.of("pos_gateway_merchant_parked_orders")) == metrics.WORST
    # Nobody is left out of the sums: those that have no name of their own are together.
    told = samples.of("pos_gateway_orders_total", outcome="accepted")
    assert sum(told.values()) == MERCHANTS + 2
    assert len(told) == metrics.PROVIDERS + 2
    without_a_name = PROVIDERS - metrics.PROVIDERS
    assert abs(told[(OTHER,)] - MERCHANTS * without_a_name / PROVIDERS) <= without_a_name


def without_samples(samples: Samples) -> list[str]:
    """Metrics that the scrape has nothing of: their series would not be in the count."""
    return [each._name for each in metrics.declared() if not samples.names & names_of(each)]


def names_of(metric: Any) -> set[str]:
    suffixes = {
        Counter: ("_total",),
        metrics.Counted: ("_total",),
        Gauge: ("",),
        Histogram: ("_bucket", "_sum", "_count"),
    }
    return {metric._name + suffix for suffix in suffixes[type(metric)]}


def test_every_metric_is_ours_and_is_described() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert page == metrics_page()
    for each in metrics.declared():
        [described] = each.describe()
        assert described.name.startswith("pos_gateway_")
        assert described.documentation.endswith("."), described.name
        assert f"| `{described.name}" in page


def test_a_metric_that_times_is_in_seconds() -> None:
    """All histograms are of times but that of how much is written at once."""
    for each in metrics.declared():
        if isinstance(each, Histogram) and each is not metrics.ledger_commit_writes:
            assert each._name.endswith("_seconds")
            assert max(bound for bound in each._upper_bounds if bound < float("inf")) <= 1800


def test_merchants_reply_times_and_waits_are_told_apart_from_50_ms_to_30_s() -> None:
    for each in (metrics._attempt_seconds, metrics.queue_wait, metrics.order_seconds):
        assert {0.05, 30} <= set(each._upper_bounds)
