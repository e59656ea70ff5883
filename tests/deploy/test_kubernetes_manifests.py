"""The promises of the manifests, checked as a cluster gets them."""

import re
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import Counter, Histogram

from pos_gateway.auth import grants
from pos_gateway.broker import queue_metrics, topology
from pos_gateway.events import relay
from pos_gateway.fleet import coordinator
from pos_gateway.ledger import commits, ledger, polls
from pos_gateway.reports import reporter
from pos_gateway.settings import Settings
from pos_gateway.telemetry import metrics
from pos_gateway.telemetry import serving as metrics_serving
from pos_gateway.worker import consumer
from tests.deploy.dockerfile import Dockerfile
from tests.deploy.kustomize import APPLIED, K8S, ROOT, load, of_kind, render, render_with, rendered
from tests.deploy.policies import pod_of

GREEN = ["celery", "-A", "pos_gateway.gcelery", "worker"]
SYNCHRONOUS = ["celery", "-A", "pos_gateway", "worker", "-P", "prefork", "-c", "4"]
EVENTS = ["pos-gateway", "events", "run"]
#: Overlays that are a second set of workers beside the base.
TRACKS = ("canary", "synchronous")

every_folder = pytest.mark.parametrize("folder", APPLIED)
every_track = pytest.mark.parametrize("track", TRACKS)


def workloads(folder: str) -> list[Any]:
    return [each for each in render(folder) if each["kind"] in ("Deployment", "Job")]


def workers(folder: str = "base") -> Any:
    [found] = [
        each
        for each in workloads(folder)
        if each["metadata"]["labels"].get("app.kubernetes.io/component") == "worker"
    ]
    return found


def the_container_of(workload: Any) -> Any:
    [container] = pod_of(workload)["containers"]
    return container


def of_ours() -> Iterator[Any]:
    """Every workload that runs the gateway's image."""
    for folder in APPLIED:
        for each in workloads(folder):
            if "pos-gateway:" in the_container_of(each)["image"]:
                yield pytest.param(each, id=f"{folder}:{each['metadata']['name']}")


every_gateway = pytest.mark.parametrize("workload", list(of_ours()))


def settings_in(folder: str) -> dict[str, str]:
    [config] = of_kind("ConfigMap", render(folder)).values()
    found: dict[str, str] = config["data"]
    return found


def known_series() -> set[str]:
    names = {"process_cpu_seconds_total"}
    for each in metrics.declared():
        if isinstance(each, Histogram):
            names |= {f"{each._name}{suffix}" for suffix in ("_sum", "_count", "_bucket")}
        else:
            names.add(each._name + "_total" * isinstance(each, Counter))
    return names


def series_in(query: str) -> set[str]:
    return set(re.findall(r"\b(?:pos_gateway|process)_\w+", re.sub(r'"[^"]*"', "", query)))


# What is applied


def test_every_folder_with_a_kustomization_is_tested() -> None:
    folders = {path.parent.relative_to(K8S).as_posix() for path in K8S.rglob("kustomization.yaml")}
    parts = {each for each in folders if load(f"{each}/kustomization.yaml")["kind"] == "Component"}
    assert folders - parts - {"base/worker"} == set(APPLIED)


@every_folder
def test_every_reference_but_the_operators_secret_is_resolved(folder: str) -> None:
    resources = render(folder)
    known = {(each["kind"], each["metadata"]["name"]) for each in resources}
    assert len(known) == len(resources)
    for workload in workloads(folder):
        for source in the_container_of(workload).get("envFrom", []):
            if "configMapRef" in source:
                assert ("ConfigMap", source["configMapRef"]["name"]) in known
            else:
                assert source == {"secretRef": {"name": "pos-gateway"}}
        account = pod_of(workload).get("serviceAccountName")
        assert account is None or ("ServiceAccount", account) in known


@every_folder
def test_every_selector_matches_the_pods_of_exactly_one_deployment(
    folder: str,
) -> None:
    pods = [each["spec"]["template"]["metadata"]["labels"].items() for each in workloads(folder)]
    for resource in render(folder):
        spec = resource.get("spec", {})
        match resource["kind"]:
            case "Deployment":
                selector = spec["selector"]["matchLabels"].items()
                assert len([each for each in pods if selector <= each]) == 1
                for spread in pod_of(resource).get("topologySpreadConstraints", []):
                    assert spread["labelSelector"]["matchLabels"].items() <= selector
            case "PodDisruptionBudget":
                selector = spec["selector"]["matchLabels"].items()
                assert len([each for each in pods if selector <= each]) == 1
                assert spec["maxUnavailable"] == 1
                assert spec["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
            case "Service":
                assert [each for each in pods if spec["selector"].items() <= each]
            case "PodMonitor":
                assert [each for each in pods if spec["selector"]["matchLabels"].items() <= each]


def test_tracks_share_neither_names_nor_selectors() -> None:
    deployments = [workers(), *(workers(f"overlays/{track}") for track in TRACKS)]
    assert len({each["metadata"]["name"] for each in deployments}) == len(deployments)
    tracks = {each["spec"]["selector"]["matchLabels"]["track"] for each in deployments}
    assert tracks == {"stable", *TRACKS}


@every_gateway
def test_the_image_tag_is_this_version(workload: Any) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert the_container_of(workload)["image"].endswith(f"pos-gateway:{version}")


@every_gateway
def test_a_pods_user_and_group_are_the_images(workload: Any) -> None:
    said = pod_of(workload)["securityContext"]
    image = Dockerfile.read(ROOT / "Dockerfile").stages[-1]
    assert f"{said['runAsUser']}:{said['runAsGroup']}" == image.the("USER")


def test_registry_and_release_are_set_in_one_place() -> None:
    [image] = load("release/kustomization.yaml")["images"]
    elsewhere = [
        path
        for path in K8S.rglob("*.yaml")
        if image["newName"] in re.sub(r"(?m)^ *#.*", "", path.read_text())
        and path.parent.name not in ("release", "development")
    ]
    assert elsewhere == []


@pytest.mark.parametrize("folder", ["migrate", "overlays/canary"])
def test_a_canarys_release_is_behind_a_comment_and_changes_no_other_worker(
    folder: str, tmp_path: Path
) -> None:
    tree = tmp_path / "k8s"
    shutil.copytree(K8S, tree)
    kustomization = tree / folder / "kustomization.yaml"
    images = r"(?m)^# (images:\n)# ( +- name: .*\n)# ( +newTag: .*)$"
    text, found = re.subn(images, r"\1\2\3", kustomization.read_text())
    assert found == 1
    kustomization.write_text(text)
    [workload] = [each for each in rendered(tree / folder) if each["kind"] in ("Deployment", "Job")]
    [image] = load("release/kustomization.yaml")["images"]
    assert the_container_of(workload)["image"] == f"{image['newName']}:0.2.0"
    assert rendered(tree / "overlays/production") == render("overlays/production")


@pytest.mark.parametrize("path", sorted(K8S.rglob("*.yaml")), ids=lambda path: path.name)
def test_every_file_is_in_a_kustomization(path: Any) -> None:
    if path.name in ("kustomization.yaml", "secret.example.yaml", "adapter-rules.yaml"):
        return
    kustomization = load(f"{path.parent.relative_to(K8S)}/kustomization.yaml")
    patches = [patch.get("path") for patch in kustomization.get("patches", [])]
    assert path.name in [*kustomization["resources"], *patches]


@pytest.mark.parametrize("folder", [each for each in APPLIED if each != "overlays/development"])
def test_no_kustomization_has_a_secret(folder: str) -> None:
    assert of_kind("Secret", render(folder)) == {}


# Commands and settings


def test_the_workers_run_the_contracts_command_on_both_queues() -> None:
    container = the_container_of(workers())
    assert container["command"] == GREEN
    assert "args" not in container  # no -Q: both queues


def test_the_canary_is_the_same_pod_on_its_queue() -> None:
    canary, stable = (the_container_of(workers(f)) for f in ("overlays/canary", "base"))
    assert canary["args"] == ["-Q", topology.canary_queue.name]
    for name in stable.keys() - {"args", "envFrom"}:
        assert canary[name] == stable[name]


def test_the_synchronous_workers_run_the_contracts_command_without_probes() -> None:
    container = the_container_of(workers("overlays/synchronous"))
    assert container["command"] == SYNCHRONOUS
    assert "args" not in container
    # Only a green worker serves metrics: a probe would kill the others.
    assert container.keys().isdisjoint({"livenessProbe", "startupProbe", "readinessProbe", "ports"})
    template = workers("overlays/synchronous")["spec"]["template"]
    assert template["metadata"]["annotations"] == {"prometheus.io/scrape": "false"}


def test_the_synchronous_workers_have_the_writable_folder_that_multiprocessing_needs() -> None:
    workload = workers("overlays/synchronous")
    [volume] = pod_of(workload)["volumes"]
    assert volume["emptyDir"]["sizeLimit"]
    assert the_container_of(workload)["volumeMounts"] == [
        {"name": volume["name"], "mountPath": "/tmp"}
    ]


def test_events_are_published_by_two_events_processes_and_by_no_worker() -> None:
    events = of_kind("Deployment", render("base"))["pos-gateway-events"]
    assert the_container_of(events)["command"] == EVENTS
    assert events["spec"]["replicas"] == 2
    for folder in ("base", "overlays/canary", "overlays/synchronous"):
        assert settings_in(folder)["POS_GATEWAY_PUBLISH_EVENTS"] == "false"
    # One leads for all: a canary's would publish every merchant's events.
    assert len(of_kind("Deployment", render("overlays/canary"))) == 1


def test_the_migration_runs_the_contracts_command_with_bounded_retries() -> None:
    [job] = workloads("migrate")
    assert the_container_of(job)["command"] == ["pos-gateway", "db", "upgrade"]
    assert pod_of(job)["restartPolicy"] == "Never"
    assert job["spec"]["backoffLimit"] <= 3
    assert job["spec"]["activeDeadlineSeconds"]


@every_gateway
def test_no_pod_migrates_at_startup(workload: Any) -> None:
    assert "initContainers" not in pod_of(workload)
    assert {"secretRef": {"name": "pos-gateway"}} in the_container_of(workload)["envFrom"]


@pytest.mark.parametrize("folder", ["base", "overlays/development", "overlays/production"])
def test_a_worker_starts_with_its_settings(folder: str) -> None:
    secret = load("secret.example.yaml")
    assert secret["metadata"]["name"] == "pos-gateway"
    names = ("BROKER_URL", "DATABASE_URL", "REDIS_URL", "SECRET_KEY")
    assert secret["stringData"].keys() == {f"POS_GATEWAY_{name}" for name in names}
    settings = Settings.from_environment({**settings_in(folder), **secret["stringData"]})
    assert settings.database_url.startswith("postgresql://")
    assert settings.allow_private_addresses is (folder == "overlays/development")


def test_the_config_map_has_no_password_and_no_canary_share() -> None:
    given = settings_in("base")
    assert not any(name.endswith(("_URL", "_KEY")) for name in given)
    assert "POS_GATEWAY_CANARY_PERCENT" not in given  # it is the order backend's


# Starting, stopping, probes


def test_a_worker_has_time_to_drain_and_close_before_it_is_killed() -> None:
    """Even if database, broker and Redis have vanished without a word."""
    closing = (
        *(consumer.CANCEL_TIMEOUT, coordinator._STOP_TIMEOUT, reporter.GRACE, grants.STOP),
        *(relay.GRACE, relay._LAST, relay._LAST, commits.CLOSING, ledger._RELEASE_TIMEOUT),
        *(polls._CLOSING, queue_metrics._GRACE, metrics_serving.POLL),
    )
    drain = float(settings_in("base")["POS_GATEWAY_REQUEST_TIMEOUT"]) + consumer.DRAIN_MARGIN
    assert drain + sum(closing) < pod_of(workers())["terminationGracePeriodSeconds"] == 60
    events = of_kind("Deployment", render("base"))["pos-gateway-events"]
    assert sum(closing) < pod_of(events)["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("name", ["pos-gateway", "pos-gateway-events"])
def test_probes_are_http_requests_to_the_workers_event_loop(name: str) -> None:
    container = the_container_of(of_kind("Deployment", render("base"))[name])
    [port] = container["ports"]
    assert port == {"name": "metrics", "containerPort": 9808}
    assert str(port["containerPort"]) == settings_in("base")["POS_GATEWAY_METRICS_PORT"]
    # The kubelet connects from outside the pod, to the pod's address.
    assert settings_in("base")["POS_GATEWAY_METRICS_HOST"] == "0.0.0.0"
    for probe, path in (
        ("livenessProbe", "/healthz"),
        ("startupProbe", "/healthz"),
        ("readinessProbe", "/readyz"),
    ):
        # Not tcpSocket: the kernel accepts for a hanging process. Not exec: `celery inspect` needs
        # remote control, which is off.
        assert container[probe]["httpGet"] == {"path": path, "port": "metrics"}
        assert container[probe].keys() & {"tcpSocket", "exec"} == set()


@pytest.mark.parametrize("name", ["pos-gateway", "pos-gateway-events"])
def test_a_rollout_or_a_lost_zone_never_stops_all_workers(name: str) -> None:
    deployment = of_kind("Deployment", render("base"))[name]
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    spread = {each["topologyKey"]: each for each in pod_of(deployment)["topologySpreadConstraints"]}
    assert spread.keys() == {"topology.kubernetes.io/zone", "kubernetes.io/hostname"}
    assert {each["maxSkew"] for each in spread.values()} == {1}


def test_production_requires_workers_in_several_zones() -> None:
    zone, host = pod_of(workers("overlays/production"))["topologySpreadConstraints"]
    assert (zone["topologyKey"], zone["whenUnsatisfiable"]) == (
        "topology.kubernetes.io/zone",
        "DoNotSchedule",
    )
    assert zone["nodeTaintsPolicy"] == "Honor", (
        "a zone without a node for workers keeps none waiting"
    )
    assert host["whenUnsatisfiable"] == "ScheduleAnyway"


def test_the_service_account_mounts_no_token() -> None:
    [account] = of_kind("ServiceAccount", render("base")).values()
    assert account["automountServiceAccountToken"] is False


# Monitoring and scaling


def test_both_kinds_of_prometheus_discover_the_metrics() -> None:
    monitor = of_kind("PodMonitor", render("base"))["pos-gateway"]["spec"]
    [endpoint] = monitor["podMetricsEndpoints"]
    assert endpoint["port"] == the_container_of(workers())["ports"][0]["name"]
    labels = workers()["spec"]["template"]["metadata"]["labels"]
    scrape = yaml.safe_load((ROOT / "deploy/prometheus/scrape.yml").read_text())
    assert labels[monitor["jobLabel"]] == scrape["scrape_configs"][0]["job_name"]
    labelled = {
        each["target_label"]
        for each in scrape["scrape_configs"][0]["relabel_configs"]
        if "target_label" in each
    }
    # The operator gives each series its namespace by itself.
    operators = {each.replace("-", "_") for each in monitor["podTargetLabels"]} | {
        "instance",
        "namespace",
    }
    assert "track" in operators
    assert labelled == operators
    [service] = of_kind("Service", render("base")).values()
    assert service["spec"]["ports"][0]["targetPort"] == endpoint["port"]
    assert workers()["spec"]["template"]["metadata"]["annotations"] == {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": settings_in("base")["POS_GATEWAY_METRICS_PORT"],
        "prometheus.io/path": "/metrics",
    }


@pytest.mark.parametrize("component", ["components/keda", "components/hpa"])
def test_an_autoscaler_owns_the_number_of_workers(component: str, tmp_path: Any) -> None:
    resources = render_with(component, tmp_path)
    deployments = of_kind("Deployment", resources)
    assert "replicas" not in deployments["pos-gateway"]["spec"]
    assert "replicas" in deployments["pos-gateway-events"]["spec"]
    [scaler] = [e for e in resources if e["kind"] in ("ScaledObject", "HorizontalPodAutoscaler")]
    assert scaler["spec"]["scaleTargetRef"]["name"] == "pos-gateway"


def test_both_autoscalers_use_the_same_numbers(tmp_path: Any) -> None:
    (tmp_path / "keda").mkdir()
    (tmp_path / "hpa").mkdir()
    keda = of_kind("ScaledObject", render_with("components/keda", tmp_path / "keda"))
    hpa = of_kind("HorizontalPodAutoscaler", render_with("components/hpa", tmp_path / "hpa"))
    one, other = keda["pos-gateway"]["spec"], hpa["pos-gateway"]["spec"]
    assert one["minReplicaCount"] == other["minReplicas"] >= 2
    assert one["maxReplicaCount"] == other["maxReplicas"]
    behavior = one["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior == other["behavior"]
    length, age, cpu = (trigger["metadata"] for trigger in one["triggers"])
    of_length, of_age, of_cpu = other["metrics"]
    assert length["threshold"] == of_length["external"]["target"]["averageValue"]
    assert age["threshold"] == of_age["external"]["target"]["value"]
    assert int(cpu["value"]) == of_cpu["resource"]["target"]["averageUtilization"]
    adapter = load("components/hpa/adapter-rules.yaml")["externalRules"]
    asked = [each["external"]["metric"]["name"] for each in (of_length, of_age)]
    assert [rule["name"]["as"] for rule in adapter] == asked
    queries = [rule["metricsQuery"].replace(",<<.LabelMatchers>>", "") for rule in adapter]
    assert queries == [length["query"], age["query"]]
    assert series_in(" ".join(queries)) == {
        "pos_gateway_queue_messages",
        "pos_gateway_queue_age_seconds",
    }
    assert series_in(" ".join(queries)) <= known_series()


def test_no_worker_is_taken_away_while_prometheus_is(tmp_path: Any) -> None:
    """KEDA's fallback sets its number of replicas past the HPA: at a peak that is fewer."""
    scaled = of_kind("ScaledObject", render_with("components/keda", tmp_path))["pos-gateway"]
    assert "fallback" not in scaled["spec"]
    length, age, cpu = scaled["spec"]["triggers"]
    assert cpu["type"] == "cpu"
    # Nor while the workers cannot ask the broker: an empty answer would count as 0.
    assert {each["metadata"]["ignoreNullValues"] for each in (length, age)} == {"false"}


def test_rabbitmq_keeps_a_majority_without_a_node(tmp_path: Any) -> None:
    resources = render_with("components/rabbitmq-cluster", tmp_path)
    cluster = of_kind("RabbitmqCluster", resources)["pos-gateway-rabbitmq"]["spec"]
    assert cluster["replicas"] % 2 == 1
    budget = of_kind("PodDisruptionBudget", resources)["pos-gateway-rabbitmq"]["spec"]
    assert cluster["replicas"] - budget["maxUnavailable"] > cluster["replicas"] / 2
    assert cluster["resources"]["requests"] == cluster["resources"]["limits"]
    assert re.search(r":\d+\.\d+\.\d+", cluster["image"])


# The progressive rollout


def test_the_rollout_is_analysed_before_each_step() -> None:
    resources = render("overlays/canary-rollout")
    rollout = of_kind("Rollout", resources)["pos-gateway"]["spec"]
    assert rollout["workloadRef"]["name"] in of_kind("Deployment", resources)
    assert rollout["workloadRef"]["scaleDown"] == "never"
    canary = rollout["strategy"]["canary"]
    assert (canary["maxSurge"], canary["maxUnavailable"]) == (1, 0)
    weights = [step["setWeight"] for step in canary["steps"] if "setWeight" in step]
    assert weights[0] * rollout["replicas"] % 100 == 0, "a weight is a number of pods"
    assert weights[0] == 10
    [template] = canary["analysis"]["templates"]
    analysis = of_kind("AnalysisTemplate", resources)[template["templateName"]]["spec"]
    arguments = {each["name"] for each in analysis["args"]}
    assert arguments == {each["name"] for each in canary["analysis"]["args"]}
    [monitor] = of_kind("PodMonitor", resources).values()
    label = "rollouts-pod-template-hash"
    assert label in monitor["spec"]["podTargetLabels"]
    for metric in analysis["metrics"]:
        query = metric["provider"]["prometheus"]["query"]
        assert series_in(query) <= known_series()
        assert f'{label.replace("-", "_")}="{{{{args.latest}}}}"' in query
        assert set(re.findall(r"\{\{args\.(\w+)\}\}", query)) <= arguments
