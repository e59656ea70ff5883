"""docs/deploy.md, executed on a simulated cluster: no step leaves fewer workers than before."""

import copy
import re
from itertools import permutations
from pathlib import Path

import pytest

from tests.deploy.kustomize import ROOT, of_kind, render, render_with
from tests.deploy.paper import PaperCluster, merged

PAGE = (ROOT / "docs" / "deploy.md").read_text()
FIRST = "The database, then the workers"
PRODUCTION, RELEASE = "For production", "The next release"
ROLLOUT, SYNCHRONOUS = "By steps, with Argo Rollouts", "Back to synchronous workers"
#: Sections of the page that follow each other, in all its sequences.
JOURNEYS = (
    [FIRST, PRODUCTION, RELEASE, RELEASE],
    [FIRST, PRODUCTION, "A canary", "Room for the way back", "Back", RELEASE],
    [FIRST, "A canary", "Back", PRODUCTION],
    [FIRST, ROLLOUT, PRODUCTION, RELEASE],
    [FIRST, PRODUCTION, ROLLOUT, ROLLOUT],
    [FIRST, SYNCHRONOUS, PRODUCTION],
    [FIRST, PRODUCTION, SYNCHRONOUS, RELEASE],
)
#: Overlays that replace each other, and their running state.
STABLE = ("base", "overlays/production", "overlays/canary-rollout")
#: Changes the cluster.
CHANGING = ("apply -k", "delete", "scale", "annotate", "patch")


def steps(section: str) -> list[str]:
    """The section's commands, in the order of the page: those of its blocks, and inline ones."""
    [text] = re.findall(rf"^##+ {re.escape(section)}\n(.*?)(?=^#|\Z)", _unmarked(), re.M | re.S)
    found = re.findall(r"^ *(kubectl [^\n]*)$|`(kubectl [^`\n]*)`", text, re.M)
    return [block or inline for block, inline in found if "edit-last-applied" not in inline]


def _unmarked() -> str:
    """The page; a comment in a block is no heading."""
    return re.sub(r"^ +#", "", PAGE, flags=re.M)


@pytest.mark.parametrize("journey", JOURNEYS, ids=" - ".join)
@pytest.mark.parametrize("busy", [2, 7])
def test_no_step_leaves_fewer_workers_than_before(journey: list[str], busy: int) -> None:
    cluster = PaperCluster()
    for section in journey:
        there = sum(cluster.workers.values())
        assert steps(section)
        for line in steps(section):
            before = cluster.workers
            if section == SYNCHRONOUS:  # "as many green workers as there were"
                line = line.replace("replicas=2", f"replicas={there}")  # noqa: PLW2901
            cluster.do(line)
            said = f"{section}: {line}: {before} became {cluster.workers}"
            assert sum(cluster.workers.values()) >= there, said
            if "apply" in line:
                assert all(cluster.workers[name] >= number for name, number in before.items()), said
        if section == FIRST:
            assert cluster.workers == {("Deployment", "pos-gateway"): 2}
            cluster.live["Deployment", "pos-gateway"]["spec"]["replicas"] = busy


@pytest.mark.parametrize(("one", "other"), list(permutations(STABLE, 2)))
@pytest.mark.parametrize("busy", [1, 2, 7])
def test_no_overlay_removes_workers_when_applied_after_another(
    one: str, other: str, busy: int
) -> None:
    cluster = PaperCluster()
    cluster.apply(render(one))
    cluster.live["Deployment", "pos-gateway"]["spec"]["replicas"] = busy
    for folder in (one, other, one):
        before = cluster.workers
        cluster.apply(render(folder))
        assert all(cluster.workers[name] >= number for name, number in before.items())


@pytest.mark.parametrize("component", ["components/hpa", "components/keda"])
def test_an_autoscaler_starts_with_the_existing_workers(component: str, tmp_path: Path) -> None:
    cluster = PaperCluster()
    cluster.do("kubectl apply -k deploy/k8s/base")
    cluster.do("kubectl scale deployment/pos-gateway --replicas=7")
    cluster.apply(render_with(component, tmp_path))
    assert set(cluster.workers.values()) == {7}
    cluster.do("kubectl apply -k deploy/k8s/base")
    assert set(cluster.workers.values()) == {7}


def test_every_section_that_changes_workers_is_on_a_journey() -> None:
    sections = re.findall(r"^##+ (.*)$", PAGE, re.M)
    changing = {
        section
        for section in sections
        if section != "On a laptop"
        and any(word in line for line in steps(section) for word in CHANGING)
    }
    assert changing - {"The Secret"} <= {section for journey in JOURNEYS for section in journey}


def test_a_deployment_replaced_by_a_rollout_follows_no_release() -> None:
    """A release before the first Rollout is Healthy replaces the Rollout's pods alone."""
    left_over = of_kind("Deployment", render("overlays/canary-rollout"))["pos-gateway"]
    assert left_over["spec"]["paused"] is True
    lines = steps(ROLLOUT)
    [gone] = [n for n, line in enumerate(lines) if line.endswith("pos-gateway --replicas=0")]
    assert lines[gone - 1] == "kubectl argo rollouts status pos-gateway"
    cluster = PaperCluster()
    for folder in ("overlays/canary-rollout", "base"):
        cluster.apply(render(folder))
    assert cluster.live["Deployment", "pos-gateway"]["spec"]["paused"] is False


@pytest.mark.parametrize("stable", ["base", "overlays/production"])
def test_a_restore_stops_whatever_reads_the_database_and_starts_it_again(
    stable: str, tmp_path: Path
) -> None:
    cluster = PaperCluster()
    cluster.apply(render_with("components/server", tmp_path))
    cluster.apply(render(stable))
    cluster.do("kubectl scale deployment/pos-gateway --replicas=7")
    page = (ROOT / "docs" / "backup.md").read_text()
    for begins, stopped in (("1. **Stop**", True), ("6. **Start**", False)):
        text = page[page.index(f"\n{begins}") :].split("\n\n2. ")[0].split("\n\n7. ")[0]
        for line in re.findall(r"kubectl [^\n`]*", text):
            cluster.do(line)
        cluster.do("kubectl rollout status deployment/pos-gateway")  # an autoscaler acts before it
        running = {
            name: each["spec"]["replicas"]
            for (kind, name), each in cluster.live.items()
            if kind == "Deployment"
        }
        assert len(running) == 3
        assert all((number == 0) is stopped for number in running.values()), running


def test_a_replica_count_missing_from_the_next_manifest_is_noticed() -> None:
    """Applying it sets the server's default at once."""
    with_replicas = copy.deepcopy(render("base"))
    of_kind("Deployment", with_replicas)["pos-gateway"]["spec"]["replicas"] = 2
    cluster = PaperCluster()
    cluster.apply(with_replicas)
    assert cluster.workers == {("Deployment", "pos-gateway"): 2}
    cluster.apply(render("base"))
    assert cluster.workers == {("Deployment", "pos-gateway"): 1}


def test_a_three_way_merge_removes_applied_fields_and_keeps_others() -> None:
    live = {"ours": {"a": 1, "b": 2}, "theirs": 3, "list": [1, 2]}
    before = {"ours": {"a": 1, "b": 2}, "list": [1, 2]}
    after = {"ours": {"a": 4}, "list": [1]}
    assert merged(before, after, live) == {"ours": {"a": 4}, "theirs": 3, "list": [1]}
