"""Every command of the pages about deploying is valid, and names existing things."""

import json
import re
import shlex
from collections.abc import Iterator

import click
import pytest

from pos_gateway.broker import topology
from pos_gateway.cli.root import root
from pos_gateway.client import in_canary
from pos_gateway.domain.errors import InvalidSettings
from pos_gateway.settings import PREFIX, Settings
from tests.deploy.dockerfile import Dockerfile
from tests.deploy.kustomize import APPLIED, ROOT, load, of_kind, render
from tests.deploy.test_compose import SERVICES

PAGES = ("deploy", "upgrading", "backup", "scale", "rotations", "migrating")
#: Programs whose commands are not checked.
FOREIGN = {"rabbitmqctl", "rabbitmq-queues", "kind", "pg_dump", "pg_restore", "psql", "python"}
DEPLOYMENTS = {name for folder in APPLIED for name in of_kind("Deployment", render(folder))}


def text_of(page: str) -> str:
    return (ROOT / "docs" / f"{page}.md").read_text()


def commands() -> Iterator[tuple[str, str]]:
    """Every line of every shell block, and every inline `pos-gateway` or `make`."""
    for page in PAGES:
        text = text_of(page)
        for block in re.findall(r"^ *```sh\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE):
            yield from ((page, line.strip()) for line in block.splitlines() if line.strip())
        prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
        for program in ("pos-gateway", "make", "kubectl", "docker compose"):
            for line in re.findall(rf"(?:`|^ {{4,}})({program} [a-z][^`\n]*)", prose, re.MULTILINE):
                yield page, line


COMMANDS = sorted(set(commands()))


def check(line: str) -> None:
    words = shlex.split(re.sub(r" [<>] \S+$", "", line))
    match words:
        case ["kubectl", *rest]:
            check_kubectl(rest)
        case ["pos-gateway", *rest]:
            check_pos_gateway(rest)
        case ["make", target, *_]:
            targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            assert target in targets
        case ["docker", "compose", "run", "--rm", service]:
            assert service in SERVICES
        case ["docker", "compose", "exec", "-T", *rest]:
            check(shlex.join(["docker", "compose", "exec", *rest]))
        case ["docker", "compose", "exec", service, *rest]:
            assert service in SERVICES
            check(shlex.join(rest))
        case ["docker", "compose", command, *rest]:
            assert command in ("up", "down")
            assert {each for each in rest if not each.startswith("-")} <= SERVICES.keys()
        case ["docker", "build", "--target", stage, *_]:
            dockerfile = Dockerfile.read(ROOT / "Dockerfile")
            assert stage in {each.name for each in dockerfile.stages}
        case ["docker", "run", "--rm", "--init", _, *rest]:
            check(shlex.join(rest))
        case ["docker", command, *_]:
            assert command in ("tag", "push", "pull")
        case [program, *_]:
            assert program in FOREIGN


def check_kubectl(words: list[str]) -> None:
    match words:
        case ["apply" | "delete", "-k", folder]:
            assert folder.removeprefix("deploy/k8s/") in APPLIED
        case ["apply", "-f", "my-secret.yaml" | "tls.yaml"] | ["create" | "label", "namespace", *_]:
            pass
        case ["create", "secret", "tls", name, *_]:
            ingress = load("components/server-ingress/ingress.yaml")
            assert name in {each["secretName"] for each in ingress["spec"]["tls"]}
        case ["rollout", "restart", *deployments]:
            assert {each.removeprefix("deployment/") for each in deployments} <= DEPLOYMENTS
        case ["rollout", "status", deployment]:
            assert deployment.removeprefix("deployment/") in DEPLOYMENTS
        case ["scale", *deployments, replicas]:
            assert re.fullmatch(r"--replicas=\d+", replicas)
            assert {each.removeprefix("deployment/") for each in deployments} <= DEPLOYMENTS
        case ["exec", "-i", *rest]:
            check_kubectl(["exec", *rest])
        case ["exec", deployment, "--", *rest]:
            assert deployment.removeprefix("deploy/") in DEPLOYMENTS
            if rest[0] == "env":
                given = dict([rest[1].split("=")])
                Settings.from_environment(given)
                rest = rest[2:]
            check(shlex.join(rest))
        case ["wait", *_, job] | ["delete", "job", job, "--ignore-not-found"]:
            assert job.removeprefix("job/") in of_kind("Job", render("migrate"))
        case ["argo", "rollouts", "get", "rollout", name, "--watch"]:
            assert name in of_kind("Rollout", render("overlays/canary-rollout"))
        case ["argo", "rollouts", "status" | "abort" | "restart", name] | [
            "delete",
            "rollout",
            name,
        ]:
            assert name in of_kind("Rollout", render("overlays/canary-rollout"))
        case ["delete", "analysistemplate", name]:
            assert name in of_kind("AnalysisTemplate", render("overlays/canary-rollout"))
        case ["delete", "scaledobject", name]:
            assert name in of_kind("ScaledObject", render("overlays/production"))
        case ["apply", "edit-last-applied", deployment]:
            assert deployment.removeprefix("deployment/") in DEPLOYMENTS
        case ["annotate", "scaledobject", name, *options, _]:
            assert options in ([], ["--overwrite"])
            assert name in of_kind("ScaledObject", render("overlays/production"))
        case ["patch", "scaledobject", name, "--type=merge", patch]:
            scaled = of_kind("ScaledObject", render("overlays/production"))[name]["spec"]
            assert json.loads(patch.removeprefix("--patch="))["spec"].keys() <= scaled.keys()
        case _:
            assert words[:3] == ["config", "set-context", "--current"]


def check_pos_gateway(words: list[str]) -> None:
    command: click.Command = root
    context = click.Context(root)
    while isinstance(command, click.Group):
        inner = command.get_command(context, words[0])
        assert inner is not None, words
        command, words = inner, words[1:]
    # Required options and arguments are checked, too; nothing is run.
    command.make_context("pos-gateway", [*words], resilient_parsing=False)


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_a_command_is_valid_and_names_existing_things(page: str, line: str) -> None:
    check(line)


def test_commands_are_found() -> None:
    assert {page for page, _ in COMMANDS} == set(PAGES)
    assert len(COMMANDS) > 50


@pytest.mark.parametrize(
    "line",
    [
        "kubectl apply -k deploy/k8s/overlays/staging",
        "kubectl rollout status deployment/pos-gatewy",
        "kubectl exec deploy/pos-gateway -- pos-gateway merchant import -",
        "kubectl exec deploy/pos-gateway -- env POS_GATEWAY_METRIC_PORT=0 pos-gateway doctor",
        "pos-gateway orders list --state sent",
        "pos-gateway events replay --from 1",
        "make images",
        "docker compose run --rm order",
        "docker compose exec -T servers pos-gateway alerts test",
        "docker compose up --detach sever",
        "kubectl rollout restart deployment/pos-gateway deployment/pos-gateway-event",
        "kubectl create secret tls pos-gateway-cert --cert=new.pem",
        "docker build --target tests .",
        "helm install pos-gateway",
    ],
)
def test_an_invalid_command_is_noticed(line: str) -> None:
    with pytest.raises((AssertionError, InvalidSettings, click.ClickException)):
        check(line)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_only_files_settings_and_queues_that_exist(page: str) -> None:
    text = text_of(page)
    for path in re.findall(r"(?:deploy|tests)/[\w/.-]*\w", text):
        if not path.startswith("deploy/pos-gateway"):  # kubectl's name for a Deployment
            assert (ROOT / path).exists(), path
    for variable in re.findall(rf"{PREFIX}[A-Z_]+", text):
        assert variable.removeprefix(PREFIX).lower() in Settings.model_fields, variable
    queues = {queue.name for queue in topology.QUEUES}
    assert set(re.findall(r"\borders\.[a-z]+\b", text)) <= queues | {"orders.jsonl"}


def test_the_pages_merchants_are_in_the_canary_as_stated() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| (yes|no) \| (yes|no) \|$", text_of("deploy"), re.M)
    assert rows
    for merchant, at_10, at_50 in rows:
        assert in_canary(merchant, 10) is (at_10 == "yes")
        assert in_canary(merchant, 50) is (at_50 == "yes")
