"""The HTTP server's manifests: probes, stopping, scaling, and who reaches it, as the code has it."""

from pathlib import Path
from typing import Any

import pytest

from pos_gateway.alerts import sender
from pos_gateway.database import engine
from pos_gateway.domain.http_limits import BATCH_BYTES, LONGEST_WAIT
from pos_gateway.ledger import writer
from pos_gateway.server import bulk_threads, following, intake, serving
from pos_gateway.server.openapi import OPERATIONS
from tests.deploy.kustomize import ROOT, Resource, of_kind, render_with
from tests.deploy.policies import pod_of
from tests.deploy.test_compose import SERVICES

NAME = "pos-gateway-server"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> tuple[Resource, ...]:
    return render_with("components/server", tmp_path_factory.mktemp("server"))


@pytest.fixture(scope="module")
def deployment(server: tuple[Resource, ...]) -> Any:
    return of_kind("Deployment", server)[NAME]


@pytest.fixture(scope="module")
def container(deployment: Any) -> Any:
    [container] = pod_of(deployment)["containers"]
    return container


def test_it_runs_the_contracts_command_where_others_reach_it(container: Any) -> None:
    assert container["command"] == ["pos-gateway", "serve", "--host", "0.0.0.0"]
    assert container["ports"] == [
        {"name": "http", "containerPort": 8080},
        {"name": "metrics", "containerPort": 9808},
    ]
    assert SERVICES["server"]["command"] == container["command"]
    assert SERVICES["server"]["ports"] == ["127.0.0.1:8080:8080"]


def test_probes_ask_the_metrics_port(container: Any) -> None:
    """At the other one clients that have all connections would have it killed."""
    for probe, path in (
        ("livenessProbe", "/healthz"),
        ("startupProbe", "/healthz"),
        ("readinessProbe", "/readyz"),
    ):
        assert container[probe]["httpGet"] == {"path": path, "port": "metrics"}


def test_it_has_time_to_finish_requests_before_it_is_killed(
    deployment: Any, container: Any
) -> None:
    program, seconds = container["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "sleep"
    """Even if the database has vanished without a word: each part that asks it waits by itself."""
    audited_twice_and_last_uses = 3 * engine._PING_ANSWER
    stopping = serving.GRACE + intake.TIMEOUT + audited_twice_and_last_uses
    stopping += bulk_threads.STOP_TIMEOUT + writer._ANSWER  # callbacks: the present group
    # The message that is being sent ends beside all of these.
    assert stopping - serving.GRACE > sender.TIMEOUT + 1
    assert int(seconds) + stopping < pod_of(deployment)["terminationGracePeriodSeconds"]
    assert stopping < float(SERVICES["server"]["stop_grace_period"].removesuffix("s"))


def test_a_rollout_a_drain_or_a_lost_zone_never_stops_all_servers(
    server: tuple[Resource, ...], deployment: Any
) -> None:
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    spread = {each["topologyKey"] for each in pod_of(deployment)["topologySpreadConstraints"]}
    assert spread == {"topology.kubernetes.io/zone", "kubernetes.io/hostname"}
    budget = of_kind("PodDisruptionBudget", server)[NAME]["spec"]
    assert budget["selector"] == deployment["spec"]["selector"]
    assert budget["maxUnavailable"] == 1
    assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_the_autoscaler_owns_the_number_of_servers_and_adds_one_before_a_core_is_used(
    server: tuple[Resource, ...], deployment: Any, container: Any
) -> None:
    assert "replicas" not in deployment["spec"]
    scaler = of_kind("HorizontalPodAutoscaler", server)[NAME]["spec"]
    assert scaler["scaleTargetRef"]["name"] == NAME
    assert 2 <= scaler["minReplicas"] < scaler["maxReplicas"]
    [metric] = scaler["metrics"]
    of_request = metric["resource"]["target"]["averageUtilization"] / 100
    requested = container["resources"]["requests"]["cpu"]
    assert of_request * int(requested.removesuffix("m")) < 1000, "a process uses one core"


def test_clients_reach_the_server_and_nothing_else(
    server: tuple[Resource, ...], deployment: Any
) -> None:
    policy = of_kind("NetworkPolicy", server)[NAME]["spec"]
    assert policy["podSelector"] == deployment["spec"]["selector"]
    assert policy["policyTypes"] == ["Ingress"], "egress is as every pod's"
    [rule] = policy["ingress"]
    assert rule["ports"] == [{"port": "http", "protocol": "TCP"}]
    [source] = rule["from"]
    [(label, value)] = source["namespaceSelector"]["matchLabels"].items()
    assert f"`{label}={value}`" in (ROOT / "docs/deploy.md").read_text()
    [port] = of_kind("Service", server)[NAME]["spec"]["ports"]
    assert port["targetPort"] == "http"


def test_the_example_of_an_ingress_lets_batches_polls_and_streams_pass(
    server: tuple[Resource, ...], tmp_path: Path
) -> None:
    [ingress] = of_kind("Ingress", render_with("components/server-ingress", tmp_path)).values()
    said = {
        name.removeprefix("nginx.ingress.kubernetes.io/"): value
        for name, value in ingress["metadata"]["annotations"].items()
    }
    assert said.pop("proxy-buffering") == "off"
    assert int(said.pop("proxy-body-size").removesuffix("m")) * 2**20 == BATCH_BYTES
    assert int(said.pop("proxy-read-timeout")) > max(LONGEST_WAIT, following.HEARTBEAT)
    assert said == {}
    [rule] = ingress["spec"]["rules"]
    assert [rule["host"]] == ingress["spec"]["tls"][0]["hosts"]
    [path] = rule["http"]["paths"]
    assert path["pathType"] == "Prefix"
    kept = {each.path for each in OPERATIONS if not each.path.startswith(path["path"])}
    assert kept == {"/healthz", "/readyz", "/openapi.json"}
    backend = path["backend"]["service"]
    [port] = of_kind("Service", server)[backend["name"]]["spec"]["ports"]
    assert backend["port"]["name"] == port["name"]
