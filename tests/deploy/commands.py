"""Every command that a container of ours runs, and whether it is PID 1 there."""

import re
from typing import NamedTuple

import yaml

from tests.deploy.dockerfile import Dockerfile
from tests.deploy.kustomize import APPLIED, ROOT, render
from tests.deploy.policies import pod_of


class Command(NamedTuple):
    """A container's command line, and whether its pod or Docker has an init for it."""

    words: tuple[str, ...]
    init: bool


def commands() -> list[Command]:
    """The commands in the manifests and docker-compose.yml, each once, also the merchants'."""
    image = Dockerfile.read(ROOT / "Dockerfile")
    built = {"pos-gateway": image.stages[-1], "pos-gateway-merchants": image.stage("merchants")}

    def name_of(image: str) -> str:
        return re.sub(r"[:@].*", "", image).rpartition("/")[2]

    found = []
    for folder in APPLIED:
        for each in render(folder):
            if each["kind"] not in ("Deployment", "Job"):
                continue
            pod = pod_of(each)
            for container in pod["containers"]:
                if (name := name_of(container["image"])) in built:
                    command = container.get("command", built[name].command)
                    words = (*command, *container.get("args", []))
                    found.append(Command(words, pod.get("shareProcessNamespace", False)))
    for service in yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"].values():
        if (name := name_of(service["image"])) in built:
            words = tuple(service.get("command", built[name].command))
            found.append(Command(words, service.get("init", False)))
    return sorted(set(found))
