"""Alerts, the dashboard and the runbook: they name what there is, and what they name is described."""

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

from pos_gateway.settings import PREFIX, Settings
from pos_gateway.telemetry import metrics
from testkit.servers.process import program

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus"
DASHBOARD = ROOT / "deploy" / "grafana" / "pos-gateway.json"
RUNBOOK = ROOT / "docs" / "runbook.md"
#: What Prometheus itself, and its client in every Python process, have.
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
            names[each._name + "_total" * isinstance(each, Counter | metrics.Counted)] = labels
    return names | {name: set() for name in GIVEN}


@pytest.mark.parametrize("expression", list(expressions()))
def test_an_expression_names_metrics_and_labels_that_there_are(expression: str) -> None:
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


def test_every_metric_that_people_are_to_look_at_is_on_the_dashboard() -> None:
    shown = " ".join(target["expr"] for panel in panels() for target in panel["targets"])
    assert [each._name for each in metrics.declared() if each._name not in shown] == []


def test_the_alerts_keep_to_what_their_tests_say() -> None:
    done = subprocess.run(
        [program("promtool", "prometheus"), "test", "rules", "rules_test.yml"],
        cwd=RULES,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tested_with_going_off() -> None:
    tests = yaml.safe_load((RULES / "rules_test.yml").read_text())["tests"]
    go_off = {
        case["alertname"]
        for test in tests
        for case in test["alert_rule_test"]
        if case.get("exp_alerts")
    }
    assert go_off == {alert["alert"] for alert in alerts()}


def test_prometheus_takes_the_configuration_that_finds_the_pods(tmp_path: Path) -> None:
    configuration = yaml.safe_load((RULES / "scrape.yml").read_text())
    [job] = configuration["scrape_configs"]
    # Debian's Prometheus knows no Kubernetes: the rest of the job is looked at with nothing to find.
    assert job.pop("kubernetes_sd_configs") == [{"role": "pod"}]
    copy = tmp_path / "scrape.yml"
    copy.write_text(yaml.safe_dump(configuration))
    shutil.copy(RULES / "rules.yml", tmp_path)
    done = subprocess.run(
        [program("promtool", "prometheus"), "check", "config", copy],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    named = {found for alert in alerts() for found in re.findall(r'job="([^"]*)"', alert["expr"])}
    assert named == {job["job_name"]}


def test_every_alert_has_its_entry_in_the_runbook_and_no_other_has() -> None:
    headings = re.findall(r"^### (\w+)$", RUNBOOK.read_text(), re.MULTILINE)
    assert headings == [alert["alert"] for alert in alerts()]
    for alert in alerts():
        assert alert["annotations"]["runbook"] == f"docs/runbook.md#{alert['alert'].lower()}"
        assert alert["labels"]["severity"] in ("critical", "warning")


def test_the_runbook_names_settings_log_events_and_panels_that_there_are() -> None:
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
