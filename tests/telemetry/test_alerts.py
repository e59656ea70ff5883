"""Alerts, dashboard and runbook name existing metrics, and what they name is documented."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import Counter, Histogram

from pos_gateway.server.site import Site
from pos_gateway.settings import PREFIX, Settings
from pos_gateway.telemetry import metrics
from testkit.patience import PATIENCE
from testkit.servers.process import program

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus"
DASHBOARD = ROOT / "deploy" / "grafana" / "pos-gateway.json"
RUNBOOK = ROOT / "docs" / "runbook.md"
#: Metrics of Prometheus itself, and of its client in every Python process.
GIVEN = {"up", "process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"}


def alerts() -> list[Any]:
    groups = yaml.safe_load((RULES / "rules.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[Any]:
    return [each for each in json.loads(DASHBOARD.read_text())["panels"] if each["type"] != "row"]


def expressions() -> Iterator[Any]:
    for alert in alerts():
        yield pytest.param(alert["expr"], id=alert["alert"])
    for panel in panels():
        for target in panel["targets"]:
            yield pytest.param(target["expr"], id=f"{panel['title']} {target['refId']}")


def known() -> dict[str, set[str]]:
    """Every series that a worker may have, and its labels."""
    names = {}
    for each in metrics.declared():
        labels = set(each._labelnames)
        if isinstance(each, Histogram):
            names |= {f"{each._name}{suffix}": labels for suffix in ("_sum", "_count")}
            names[f"{each._name}_bucket"] = {*labels, "le"}
        else:
            names[each._name + "_total" * isinstance(each, Counter)] = labels
    return names | {name: set() for name in GIVEN}


@pytest.mark.parametrize("expression", list(expressions()))
def test_an_expression_names_existing_metrics_and_labels(expression: str) -> None:
    there_are = known()
    bare = re.sub(r'"[^"]*"', '""', expression)
    named = set(re.findall(r"\b(?:pos_gateway|process)_\w+|\bup\b", bare))
    assert named
    assert named <= there_are.keys()
    labels = {label for name in named for label in there_are[name]} | {"instance", "job"}
    for matchers in re.findall(r"\{([^}]*)\}", bare):
        assert set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", matchers)) <= labels
    for grouping in re.findall(r"\b(?:by|on) \(([^)]*)\)", bare):
        assert {each.strip() for each in grouping.split(",")} <= labels


def test_every_metric_for_people_is_on_the_dashboard() -> None:
    shown = " ".join(target["expr"] for panel in panels() for target in panel["targets"])
    assert [each._name for each in metrics.declared() if each._name not in shown] == []


def test_the_alerts_pass_promtools_tests() -> None:
    done = subprocess.run(
        [program("promtool", "prometheus"), "test", "rules", "rules_test.yml"],
        cwd=RULES,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_test_in_which_it_fires() -> None:
    tests = yaml.safe_load((RULES / "rules_test.yml").read_text())["tests"]
    go_off = {
        case["alertname"]
        for test in tests
        for case in test["alert_rule_test"]
        if case.get("exp_alerts")
    }
    assert go_off == {alert["alert"] for alert in alerts()}


def test_prometheus_accepts_the_scrape_configuration(tmp_path: Path) -> None:
    configuration = yaml.safe_load((RULES / "scrape.yml").read_text())
    [job] = configuration["scrape_configs"]
    # Debian's Prometheus has no Kubernetes discovery: the rest of the job is checked without it.
    assert job.pop("kubernetes_sd_configs") == [{"role": "pod"}]
    copy = tmp_path / "scrape.yml"
    copy.write_text(yaml.safe_dump(configuration))
    shutil.copy(RULES / "rules.yml", tmp_path)
    done = subprocess.run(
        [program("promtool", "prometheus"), "check", "config", copy],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    named = {found for alert in alerts() for found in re.findall(r'job="([^"]*)"', alert["expr"])}
    assert named == {job["job_name"]}


def test_no_stream_counts_as_a_slow_request(tmp_path: Path) -> None:
    """A stream's time is its client's: of an operator's page, of a backend that listens."""
    site = Site(Settings(database_url=f"sqlite:///{tmp_path}/gateway.db", metrics_port=0))
    [rule] = [alert for alert in alerts() if alert["alert"] == "PosGatewayHttpSlow"]
    [left_out] = re.findall(r'route!~"([^"]*)"', rule["expr"])
    streams = site.app._streams
    assert streams
    assert [each for each in streams if not re.fullmatch(left_out, each)] == []


def test_no_pod_that_has_ended_is_scraped() -> None:
    """As the Prometheus Operator has it by default: else each is a worker that does not answer."""
    [job] = yaml.safe_load((RULES / "scrape.yml").read_text())["scrape_configs"]
    [rule] = [
        each
        for each in job["relabel_configs"]
        if each["source_labels"] == ["__meta_kubernetes_pod_phase"]
    ]
    assert rule["action"] == "drop"
    phases = ("Pending", "Running", "Succeeded", "Failed", "Unknown")
    ended = [each for each in phases if re.fullmatch(rule["regex"], each)]
    assert ended == ["Succeeded", "Failed"]


def test_the_runbook_has_an_entry_for_exactly_every_alert() -> None:
    headings = re.findall(r"^### (\w+)$", RUNBOOK.read_text(), re.MULTILINE)
    assert headings == [alert["alert"] for alert in alerts()]
    for alert in alerts():
        assert alert["annotations"]["runbook"] == f"docs/runbook.md#{alert['alert'].lower()}"
        assert alert["labels"]["severity"] in ("critical", "warning")


def test_the_runbook_names_existing_settings_log_events_and_panels() -> None:
    page = RUNBOOK.read_text()
    for variable in re.findall(rf"{PREFIX}[A-Z_]+", page):
        assert variable.removeprefix(PREFIX).lower() in Settings.model_fields, variable
    source = "".join(path.read_text() for path in (ROOT / "pos_gateway").rglob("*.py"))
    source = source.replace('f"breaker.{_ANNOUNCED[transition.state]}"', '"breaker.opened"')
    for event in re.findall(
        r"`((?:broker|worker|events|ledger|publish|fleet|breaker|metrics)\.\w+)`", page
    ):
        assert f'"{event}"' in source, event
    titles = {panel["title"] for panel in panels()}
    rows = {row["title"] for row in json.loads(DASHBOARD.read_text())["panels"]} - titles
    for shown in re.findall(r"\*([A-Z][^*]+)\*", page):
        assert any(title.startswith(shown) for title in titles | rows), shown
