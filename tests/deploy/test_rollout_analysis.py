"""What aborts a progressive rollout, checked with Prometheus's test tool."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from testkit.servers.process import program
from tests.deploy.kustomize import of_kind, render

TEMPLATE = of_kind("AnalysisTemplate", render("overlays/canary-rollout"))["pos-gateway"]
METRICS = {each["name"]: each for each in TEMPLATE["spec"]["metrics"]}
#: An analysis's result, as samples of "is it less than what is allowed".
LOOKS = {
    "fine": [{"labels": "{}", "value": 1}],
    "worse": [{"labels": "{}", "value": 0}],
    "none": [],
}

#: How much a series grows a minute.
Series = dict[str, float]


def of(name: str, pods: str, **labels: str) -> str:
    labels["rollouts_pod_template_hash"] = pods
    return name + "{" + ",".join(f'{each}="{value}"' for each, value in labels.items()) + "}"


def ended(pods: str, **outcomes: int) -> Series:
    """Orders, by outcome."""
    return {
        of("pos_gateway_orders_total", pods, outcome=each): number
        for each, number in outcomes.items()
    }


def took(pods: str, *, late: int) -> Series:
    """A thousand orders, of which this many took longer than 2.5 s."""
    return {
        of("pos_gateway_order_seconds_bucket", pods, le="2.5"): 1000 - late,
        of("pos_gateway_order_seconds_count", pods): 1000,
    }


def spent(pods: str, seconds: float) -> Series:
    """CPU for a thousand attempts."""
    return {
        of("process_cpu_seconds_total", pods): seconds,
        of("pos_gateway_attempts_total", pods, outcome="accepted"): 1000,
    }


#: A thousand orders a minute of each, two in a hundred of them rejected, all healthy.
ALIKE = {
    series: growth
    for pods in ("new", "old")
    for part in (ended(pods, accepted=980, rejected=20), took(pods, late=20), spent(pods, 2.0))
    for series, growth in part.items()
}


@pytest.mark.parametrize(
    ("metric", "other", "look"),
    [
        ("failing", {}, "fine"),
        ("failing", ended("new", rejected=25), "fine"),
        *(
            ("failing", ended("new", **{outcome: 40}), "worse")
            for outcome in ("rejected", "failed", "expired", "in_doubt")
        ),
        # Retried orders have no further outcome.
        ("failing", ended("new", rejected=40, pending=5000), "worse"),
        ("failing", ended("new", rejected=40) | ended("old", rejected=40), "fine"),
        # For 1,500 in five minutes there is no verdict, on either side.
        ("failing", ended("new", accepted=270, rejected=30), "none"),
        ("failing", ended("new", rejected=40) | ended("old", accepted=280), "none"),
        ("late", {}, "fine"),
        ("late", took("new", late=30), "fine"),
        ("late", took("new", late=60), "worse"),
        ("late", took("new", late=60) | ended("new", accepted=280), "none"),
        ("cpu", {}, "fine"),
        ("cpu", spent("new", 2.4), "fine"),
        ("cpu", spent("new", 2.6), "worse"),
        ("cpu", spent("new", 2.6) | ended("new", accepted=280), "none"),
    ],
)
def test_a_worse_release_is_rolled_back_and_one_with_few_orders_is_not(
    metric: str, other: Series, look: str, tmp_path: Path
) -> None:
    condition = METRICS[metric]["successCondition"]
    allowed = re.fullmatch(
        r"len\(result\) == 0 \|\| isNaN\(result\[0\]\) \|\| result\[0\] < (\S+)", condition
    )
    assert allowed
    query = METRICS[metric]["provider"]["prometheus"]["query"]
    for argument, pods in (("latest", "new"), ("stable", "old")):
        query = query.replace(f"{{{{args.{argument}}}}}", pods)
    test = {
        "interval": "1m",
        "input_series": [
            {"series": series, "values": f"0+{growth}x10"}
            for series, growth in {**ALIKE, **other}.items()
        ],
        "promql_expr_test": [
            {
                "expr": f"({query}) < bool {allowed[1]}",
                "eval_time": "10m",
                "exp_samples": LOOKS[look],
            }
        ],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"tests": [test]}))
    done = subprocess.run(
        [program("promtool", "prometheus"), "test", "rules", "test.yml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_analysis_may_fail_once() -> None:
    assert {each["failureLimit"] for each in METRICS.values()} == {1}
