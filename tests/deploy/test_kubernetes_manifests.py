"""What the manifests promise, read from the files themselves; no cluster and no kubectl needed.

Where kubectl is installed, the same is asked of what it renders.
"""

import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pos_gateway.broker import topology
from pos_gateway.client import in_canary
from pos_gateway.settings import PREFIX, Settings

ROOT = Path(__file__).parents[2]
K8S = ROOT / "deploy" / "k8s"
KUBECTL = shutil.which("kubectl")
KUSTOMIZATIONS = sorted(path.parent for path in K8S.rglob("kustomization.yaml"))
OVERLAYS = [path for path in KUSTOMIZATIONS if path.parent.name == "overlays"]

GREEN = ["celery", "-A", "pos_gateway.gcelery", "worker"]
SYNCHRONOUS = ["celery", "-A", "pos_gateway", "worker", "-P", "prefork", "-c", "4"]

#: All that an overlay's patch of the worker may change.
PATCHABLE = {
    "spec.replicas",
    "spec.template.metadata.annotations",
    "spec.template.spec.volumes",
    *(
        f"spec.template.spec.containers.{field}"
        for field in (
            *("name", "command", "args", "resources"),
            *("ports", "livenessProbe", "startupProbe", "readinessProbe", "volumeMounts"),
        )
    ),
}


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def render(folder: Path) -> list[dict[str, Any]]:
    assert KUBECTL is not None
    run = subprocess.run(
        [KUBECTL, "kustomize", folder], check=False, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    return list(yaml.safe_load_all(run.stdout))


def place(folder: Path) -> str:
    return str(folder.relative_to(K8S))


def pods() -> Iterator[Any]:
    """The pods that the files describe, and the ones that are rendered if they can be."""
    yield pytest.param(load(K8S / "base/worker.yaml"), id="base/worker.yaml")
    yield pytest.param(load(K8S / "migrate/job.yaml"), id="migrate/job.yaml")
    for folder in KUSTOMIZATIONS if KUBECTL else ():
        for resource in render(folder):
            if resource["kind"] in ("Deployment", "Job"):
                yield pytest.param(resource, id=f"rendered:{place(folder)}")


every_pod = pytest.mark.parametrize("workload", list(pods()))
every_overlay = pytest.mark.parametrize("overlay", OVERLAYS, ids=place)


def pod_of(workload: dict[str, Any]) -> Any:
    return workload["spec"]["template"]["spec"]


def the_container_of(workload: dict[str, Any]) -> Any:
    [container] = pod_of(workload)["containers"]
    return container


def base() -> Any:
    return load(K8S / "base/worker.yaml")


def patch_of(overlay: Path) -> Any:
    return load(overlay / "worker.yaml")


def settings_of_the_workers() -> dict[str, str]:
    [generator] = load(K8S / "base/kustomization.yaml")["configMapGenerator"]
    return dict(literal.split("=", 1) for literal in generator["literals"])


def fields(value: Any, path: str = "") -> Iterator[str]:
    """The paths that a patch sets, down to where PATCHABLE names them."""
    if path in PATCHABLE:
        yield path
    elif isinstance(value, dict):
        for name, below in value.items():
            yield from fields(below, f"{path}.{name}".removeprefix("."))
    elif isinstance(value, list):
        for below in value:
            yield from fields(below, path)
    else:
        yield path


@every_pod
def test_every_pod_keeps_to_the_restricted_pod_security_standard(workload: Any) -> None:
    pod, container = pod_of(workload), the_container_of(workload)
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


@every_pod
def test_no_pod_gets_a_token_for_kubernetes(workload: Any) -> None:
    assert pod_of(workload)["automountServiceAccountToken"] is False


def test_the_service_account_hands_out_no_token() -> None:
    account = load(K8S / "base/service-account.yaml")
    assert account["automountServiceAccountToken"] is False
    assert account["metadata"]["name"] == pod_of(base())["serviceAccountName"]


@every_pod
def test_no_service_can_put_a_setting_that_is_none_into_a_pod(workload: Any) -> None:
    # A Service named pos-gateway would otherwise become POS_GATEWAY_SERVICE_HOST in its namespace.
    assert pod_of(workload)["enableServiceLinks"] is False


@every_pod
def test_every_container_states_what_it_needs_and_the_memory_it_may_take(workload: Any) -> None:
    resources = the_container_of(workload)["resources"]
    assert resources["requests"].keys() == {"cpu", "memory"}
    assert "memory" in resources["limits"]


@every_pod
def test_every_container_gets_the_secret(workload: Any) -> None:
    sources = the_container_of(workload)["envFrom"]
    assert {"secretRef": {"name": "pos-gateway"}} in sources


def test_the_workers_get_the_config_map_that_is_generated_for_them() -> None:
    [generator] = load(K8S / "base/kustomization.yaml")["configMapGenerator"]
    reference = {"configMapRef": {"name": generator["name"]}}
    assert reference in the_container_of(base())["envFrom"]


def test_a_worker_starts_with_the_settings_of_the_config_map_and_the_secret() -> None:
    secret = load(K8S / "secret.example.yaml")["stringData"]
    assert load(K8S / "secret.example.yaml")["metadata"]["name"] == "pos-gateway"
    names = ("BROKER_URL", "DATABASE_URL", "SECRET_KEY")
    assert secret.keys() == {f"POS_GATEWAY_{name}" for name in names}
    settings = Settings.from_environment({**settings_of_the_workers(), **secret})
    assert settings.database_url.startswith("postgresql://")


def test_passwords_and_the_canary_are_no_business_of_the_config_map() -> None:
    given = settings_of_the_workers()
    assert not any(name.endswith(("_URL", "_KEY")) for name in given)
    assert "POS_GATEWAY_CANARY_PERCENT" not in given  # read by the order backend only


@pytest.mark.parametrize("folder", KUSTOMIZATIONS, ids=place)
def test_no_kustomization_takes_in_the_example_of_a_secret(folder: Path) -> None:
    assert "secret" not in (folder / "kustomization.yaml").read_text().replace(
        "(secret.example.yaml)", ""
    )


def test_the_workers_run_the_command_of_the_contract_on_the_queue_orders() -> None:
    container = the_container_of(base())
    assert container["command"] == GREEN
    assert container["args"] == ["-Q", topology.orders_queue.name]


def test_the_canary_runs_the_same_command_on_its_own_queue() -> None:
    container = the_container_of(patch_of(K8S / "overlays/canary"))
    assert container == {"name": "worker", "args": ["-Q", topology.canary_queue.name]}


def test_the_synchronous_workers_run_the_command_of_the_contract_and_are_not_probed() -> None:
    container = the_container_of(patch_of(K8S / "overlays/synchronous"))
    assert container["command"] == SYNCHRONOUS
    assert "args" not in container  # the queue is the base's
    # Only a green worker serves metrics: a probe would kill these for their silence.
    probes = ("livenessProbe", "startupProbe", "readinessProbe")
    nothing = {name: container[name] for name in (*probes, "ports")}
    assert not any(nothing.values())
    metadata = patch_of(K8S / "overlays/synchronous")["spec"]["template"]["metadata"]
    assert metadata["annotations"]["prometheus.io/scrape"] == "false"


def test_the_synchronous_workers_have_the_writable_folder_that_multiprocessing_needs() -> None:
    patch = patch_of(K8S / "overlays/synchronous")
    [volume] = pod_of(patch)["volumes"]
    assert volume["emptyDir"]["sizeLimit"]
    assert the_container_of(patch)["volumeMounts"] == [
        {"name": volume["name"], "mountPath": "/tmp"}
    ]


def test_the_migration_runs_the_command_of_the_contract_without_retrying_for_ever() -> None:
    job = load(K8S / "migrate/job.yaml")
    assert the_container_of(job)["command"] == ["pos-gateway", "db", "upgrade"]
    assert pod_of(job)["restartPolicy"] == "Never"
    assert job["spec"]["backoffLimit"] <= 3
    assert job["spec"]["activeDeadlineSeconds"]
    assert "initContainers" not in pod_of(base())


@every_overlay
def test_an_overlay_is_the_base_with_names_and_labels_of_its_own(overlay: Path) -> None:
    kustomization = load(overlay / "kustomization.yaml")
    assert kustomization["resources"] == ["../../base"]
    assert kustomization["nameSuffix"] == f"-{overlay.name}"
    # Else two Deployments would count each other's pods as theirs.
    assert kustomization["labels"] == [
        {"pairs": {"track": overlay.name}, "includeSelectors": True, "includeTemplates": True}
    ]
    assert base()["spec"]["selector"]["matchLabels"]["track"] == "stable"


@every_overlay
def test_an_overlay_changes_nothing_that_the_base_promises(overlay: Path) -> None:
    assert load(overlay / "kustomization.yaml")["patches"] == [{"path": "worker.yaml"}]
    patch = patch_of(overlay)
    target = base()
    assert {name: patch.pop(name) for name in ("apiVersion", "kind")} == {
        name: target[name] for name in ("apiVersion", "kind")
    }
    assert patch.pop("metadata") == {"name": target["metadata"]["name"]}
    assert set(fields(patch)) <= PATCHABLE


@pytest.mark.parametrize("path", sorted(K8S.rglob("*.yaml")), ids=place)
def test_every_file_says_what_it_is(path: Path) -> None:
    content = load(path)
    assert content["apiVersion"]
    assert content["kind"]
    # kustomize takes in what is listed, and only that.
    if path.name not in ("kustomization.yaml", "secret.example.yaml"):
        kustomization = load(path.parent / "kustomization.yaml")
        patches = [patch["path"] for patch in kustomization.get("patches", [])]
        assert path.name in [*kustomization["resources"], *patches]


def test_a_roll_out_never_leaves_the_queue_without_a_worker() -> None:
    spec = base()["spec"]
    assert spec["replicas"] >= 2
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


@every_overlay
def test_an_overlay_patches_the_base_s_container_and_adds_none(overlay: Path) -> None:
    assert the_container_of(patch_of(overlay))["name"] == the_container_of(base())["name"]


def test_the_selector_of_the_workers_matches_their_pods() -> None:
    spec = base()["spec"]
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]


def test_a_worker_may_finish_an_order_that_is_asked_for_and_then_sent() -> None:
    timeout = float(settings_of_the_workers()["POS_GATEWAY_REQUEST_TIMEOUT"])
    assert pod_of(base())["terminationGracePeriodSeconds"] >= 2 * timeout + 10


def test_a_worker_is_probed_over_http_where_its_own_event_loop_answers() -> None:
    container = the_container_of(base())
    [port] = container["ports"]
    assert port == {"name": "metrics", "containerPort": 9808}
    assert str(port["containerPort"]) == settings_of_the_workers()["POS_GATEWAY_METRICS_PORT"]
    for name, path in (
        ("livenessProbe", "/healthz"),
        ("startupProbe", "/healthz"),
        ("readinessProbe", "/readyz"),
    ):
        # Not tcpSocket: the kernel accepts for a process that hangs. Not exec: `celery inspect`
        # needs remote control, which is off.
        assert container[name]["httpGet"] == {"path": path, "port": "metrics"}
        assert container[name].keys() & {"tcpSocket", "exec"} == set()


def test_prometheus_is_told_where_the_metrics_are() -> None:
    assert base()["spec"]["template"]["metadata"]["annotations"] == {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": settings_of_the_workers()["POS_GATEWAY_METRICS_PORT"],
        "prometheus.io/path": "/metrics",
    }


def test_the_image_is_this_version_by_number_for_the_workers_and_the_migration() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    images = [load(K8S / name / "kustomization.yaml")["images"] for name in ("base", "migrate")]
    assert images[0] == images[1]
    [image] = images[0]
    assert image["newTag"] == version
    for workload in (base(), load(K8S / "migrate/job.yaml")):
        assert the_container_of(workload)["image"] == image["name"]


def test_no_tag_is_latest_anywhere() -> None:
    files = [*K8S.rglob("*.yaml"), ROOT / "Dockerfile", ROOT / "docs/deploy.md"]
    assert [path for path in files if re.search(r"\blatest\b", path.read_text())] == []


@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed: nothing is rendered")
@pytest.mark.parametrize("folder", KUSTOMIZATIONS, ids=place)
def test_it_renders_with_every_image_tagged_and_every_reference_resolved(folder: Path) -> None:
    resources = render(folder)
    known = {(resource["kind"], resource["metadata"]["name"]) for resource in resources}
    for resource in resources:
        if resource["kind"] not in ("Deployment", "Job"):
            continue
        container = the_container_of(resource)
        assert re.search(r":\d+\.\d+\.\d+$", container["image"])
        for source in container["envFrom"]:
            if "configMapRef" in source:
                assert ("ConfigMap", source["configMapRef"]["name"]) in known
        account = pod_of(resource).get("serviceAccountName")
        assert account is None or ("ServiceAccount", account) in known


@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed: nothing is rendered")
def test_rendered_tracks_share_neither_names_nor_selectors() -> None:
    folders = [K8S / "base", *OVERLAYS]
    deployments = [r for folder in folders for r in render(folder) if r["kind"] == "Deployment"]
    names = {deployment["metadata"]["name"] for deployment in deployments}
    tracks = {deployment["spec"]["selector"]["matchLabels"]["track"] for deployment in deployments}
    assert len(names) == len(tracks) == len(folders)


def test_the_deployment_page_names_only_folders_settings_and_queues_that_exist() -> None:
    page = (ROOT / "docs/deploy.md").read_text()
    for path in re.findall(r"deploy/k8s[\w/.-]*", page):
        assert (ROOT / path.rstrip(".")).exists(), path
    for variable in re.findall(rf"{PREFIX}[A-Z_]+", page):
        assert variable.removeprefix(PREFIX).lower() in Settings.model_fields, variable
    queues = {queue.name for queue in topology.QUEUES}
    assert set(re.findall(r"\borders\.\w+", page)) <= queues | {"orders.jsonl"}


def test_the_merchants_on_the_deployment_page_are_in_the_canary_as_it_says() -> None:
    page = (ROOT / "docs/deploy.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)` \| (yes|no) \| (yes|no) \|$", page, re.MULTILINE)
    assert rows
    for merchant, at_10, at_50 in rows:
        assert in_canary(merchant, 10) is (at_10 == "yes")
        assert in_canary(merchant, 50) is (at_50 == "yes")
