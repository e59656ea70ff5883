"""docker-compose.yml names existing files, commands and settings; no Docker needed."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from pos_gateway.cli.root import root
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.settings import PREFIX, Settings
from pos_gateway.simulated_merchants.profiles import PROFILES
from testkit.patience import PATIENCE
from testkit.servers.process import program
from tests.deploy.dockerfile import Dockerfile
from tests.deploy.kustomize import ROOT, of_kind, render
from tests.deploy.policies import pod_of

COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
EXAMPLES = ROOT / "deploy" / "compose"
GATEWAYS = {n: s for n, s in SERVICES.items() if s["image"].startswith("pos-gateway:")}

every_gateway = pytest.mark.parametrize("name", GATEWAYS)


def lines(name: str) -> list[Any]:
    return [json.loads(line) for line in (EXAMPLES / name).read_text().splitlines()]


def mounts(name: str) -> dict[str, Path]:
    """Paths in a container, and the files of this repository that are mounted there."""
    found = {}
    for volume in SERVICES[name].get("volumes", []):
        source, target, *_ = volume.split(":")
        if source.startswith("."):
            found[target] = ROOT / source
    return found


def test_every_service_for_a_laptop_exists() -> None:
    assert SERVICES.keys() >= {
        *("rabbitmq", "postgresql", "redis", "migrate", "worker", "server", "merchants"),
        *("prometheus", "grafana"),
    }
    assert SERVICES["worker"]["deploy"]["replicas"] == 2
    assert "command" not in SERVICES["worker"]  # the image's


@pytest.mark.parametrize("name", SERVICES)
def test_a_services_files_and_dependencies_exist(name: str) -> None:
    service = SERVICES[name]
    assert [path for path in mounts(name).values() if not path.exists()] == []
    for other, how in service.get("depends_on", {}).items():
        match how["condition"]:
            case "service_healthy":
                assert "test" in SERVICES[other]["healthcheck"]
            case "service_completed_successfully":
                assert "restart" not in SERVICES[other]
                assert "command" in SERVICES[other]
            case condition:
                assert condition == "service_started"
                assert other in SERVICES
    for port in service.get("ports", []):
        assert port.startswith("127.0.0.1:")


@every_gateway
def test_a_gateway_service_starts_with_its_settings_and_is_restricted(name: str) -> None:
    service = GATEWAYS[name]
    given = service["environment"]
    assert all(variable.startswith(PREFIX) for variable in given)
    Settings.from_environment(given)
    for url in (given[each] for each in given if each.endswith("_URL")):
        host = re.search(r"[@/]([a-z]+):\d+/", url)
        assert host is not None
        assert host[1] in SERVICES
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["init"] is True  # see tests/faults/test_signals.py


@every_gateway
def test_a_gateway_services_command_exists(name: str) -> None:
    program_name, *words = GATEWAYS[name].get("command", ["pos-gateway", "worker"])
    assert program_name == "pos-gateway"
    command: click.Command = root
    while isinstance(command, click.Group):
        inner = command.get_command(click.Context(command), words[0])
        assert inner is not None, words
        command, words = inner, words[1:]
    parser = command.make_parser(click.Context(command))
    parser.parse_args(list(words))
    for word in words:
        if word.startswith("/examples/"):
            assert (EXAMPLES / word.removeprefix("/examples/")).exists()


def test_the_built_images_are_stages_of_the_dockerfile() -> None:
    stages = {stage.name for stage in Dockerfile.read(ROOT / "Dockerfile").stages}
    assert SERVICES["merchants"]["build"]["target"] in stages
    assert SERVICES["worker"]["build"] == "."


def test_compose_has_the_store_versions_of_the_development_cluster() -> None:
    ours = {
        name: re.sub(r"-management$", "", service["image"])
        for name, service in SERVICES.items()
        if not service["image"].startswith("pos-gateway")
    }
    assert [image for image in ours.values() if not re.search(r":v?\d+\.\d+(\.\d+)?$", image)] == []
    cluster = of_kind("Deployment", render("overlays/development"))
    for name in ("rabbitmq", "postgresql", "redis"):
        assert pod_of(cluster[name])["containers"][0]["image"] == ours[name]


def test_the_example_merchants_and_orders_are_valid() -> None:
    merchants = [Merchant.parse(each) for each in lines("merchants.jsonl")]
    orders = [Order.parse(each) for each in lines("orders.jsonl")]
    assert {order.merchant_id for order in orders} == {merchant.id for merchant in merchants}
    for merchant in merchants:
        assert merchant.base_url == f"http://merchants:8080/m/{merchant.id}"
        assert merchant.id.partition("-")[0] in PROFILES
    command = Dockerfile.read(ROOT / "Dockerfile").stage("merchants").command
    assert command[-2:] == ["--port", "8080"]


def test_prometheus_scrapes_workers_and_server_and_loads_the_alerts() -> None:
    files = mounts("prometheus")
    configuration = yaml.safe_load((files["/etc/prometheus/prometheus.yml"]).read_text())
    [job] = configuration["scrape_configs"]
    [found] = job["dns_sd_configs"]
    assert found["names"] == ["worker", "server"]
    assert found["port"] == Settings().metrics_port
    for name in found["names"]:
        assert SERVICES[name]["environment"]["POS_GATEWAY_METRICS_HOST"] == "0.0.0.0"
    assert job["job_name"] == "pos-gateway"
    assert files["/etc/prometheus/rules.yml"] == ROOT / "deploy/prometheus/rules.yml"
    done = subprocess.run(
        [
            *(program("promtool", "prometheus"), "check", "config", "--syntax-only"),
            files["/etc/prometheus/prometheus.yml"],
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_grafana_has_its_data_source_and_the_dashboard() -> None:
    files = mounts("grafana")
    [source] = yaml.safe_load(
        files["/etc/grafana/provisioning/datasources/prometheus.yml"].read_text()
    )["datasources"]
    assert source["url"] == "http://prometheus:9090"
    [provider] = yaml.safe_load(
        files["/etc/grafana/provisioning/dashboards/pos-gateway.yml"].read_text()
    )["providers"]
    folder = files[provider["options"]["path"]]
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (folder / Path(home).name).exists()
