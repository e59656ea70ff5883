"""Every metric is described, and the number of series is bounded."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from prometheus_client import Gauge

from pos_gateway.cli.schema import metrics_page
from pos_gateway.telemetry import metrics
from pos_gateway.telemetry.metrics import OTHER
from pos_gateway.telemetry.prometheus_internals import Counter, Histogram
from testkit.patience import PATIENCE
from tests.telemetry.lab import Samples

ROOT = Path(__file__).parents[2]
#: Series of one worker at most, whichever merchants it serves.
MOST = 3000
MERCHANTS, PROVIDERS = 10_000, 60
#: How the HTTP server's metrics begin, which a worker has not.
SERVER = "pos_gateway_http_"


def test_ten_thousand_merchants_and_sixty_providers_make_fewer_than_3000_series() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.telemetry.many", str(MERCHANTS), str(PROVIDERS)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    samples = Samples(done.stdout)
    assert without_samples(samples) == []
    assert len(samples) < MOST
    assert samples.value("pos_gateway_merchants_in_trouble") == MERCHANTS
    assert len(samples.of("pos_gateway_merchant_parked_orders")) == metrics.WORST
    # The sums are complete: unnamed merchants and providers are added together.
    outcome_recorded = samples.of("pos_gateway_orders_total", outcome="accepted")
    assert sum(outcome_recorded.values()) == MERCHANTS + 2
    assert len(outcome_recorded) == metrics.PROVIDERS + 2
    without_a_name = PROVIDERS - metrics.PROVIDERS
    assert (
        abs(outcome_recorded[(OTHER,)] - MERCHANTS * without_a_name / PROVIDERS) <= without_a_name
    )


def without_samples(samples: Samples) -> list[str]:
    """Metrics without a sample in the scrape: their series would be missing in the count."""
    of_a_worker = [each for each in metrics.declared() if not each._name.startswith(SERVER)]
    return [each._name for each in of_a_worker if not samples.names & names_of(each)]


def names_of(metric: Any) -> set[str]:
    suffixes: dict[type, tuple[str, ...]] = {
        Counter: ("_total",),
        Gauge: ("",),
        Histogram: ("_bucket", "_sum", "_count"),
    }
    return {metric._name + suffix for suffix in suffixes[type(metric)]}


def test_a_providers_outcomes_all_begin_with_their_first_order() -> None:
    """PosGatewayOrdersFailing compares them: one that began with 0 would weigh more than the others."""
    metrics.attempted("failed", "first", 0.1)
    metrics.outcome_recorded("failed", "first")
    samples = [s for m in metrics._orders.collect() for s in m.samples if s.name.endswith("_total")]
    [first] = [sample for sample in samples if sample.labels["provider"] == "first"]
    assert (first.labels["outcome"], first.value) == ("failed", 1)


def test_every_metric_has_our_prefix_and_a_description() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert page == metrics_page()
    for each in metrics.declared():
        [described] = each.describe()
        assert described.name.startswith("pos_gateway_")
        assert described.documentation.endswith("."), described.name
        assert f"| `{described.name}" in page


def test_a_duration_metric_is_in_seconds() -> None:
    """All histograms are of durations except for the size of a transaction."""
    for each in metrics.declared():
        if isinstance(each, Histogram) and each is not metrics.ledger_commit_writes:
            assert each._name.endswith("_seconds")
            assert max(bound for bound in each._upper_bounds if bound < float("inf")) <= 1800


def test_the_buckets_of_reply_times_and_waits_resolve_50_ms_to_30_s() -> None:
    for each in (metrics._attempt_seconds, metrics.queue_wait, metrics.order_seconds):
        assert {0.05, 30} <= set(each._upper_bounds)
