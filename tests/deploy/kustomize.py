"""Manifests as a cluster gets them: rendered by the real kustomize, the one in kubectl."""

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
K8S = ROOT / "deploy" / "k8s"
#: The folders that are applied: components are parts of these.
APPLIED = (
    *("base", "migrate", "overlays/canary", "overlays/canary-rollout", "overlays/development"),
    *("overlays/production", "overlays/synchronous"),
)
COMPONENTS = (
    *("components/hpa", "components/keda", "components/rabbitmq-cluster"),
    *("components/server", "components/server-ingress"),
)
Resource = dict[str, Any]


@cache
def render(folder: str) -> tuple[Resource, ...]:
    """The resources that `kubectl apply -k` would send."""
    return rendered(K8S / folder)


def render_with(component: str, workplace: Path) -> tuple[Resource, ...]:
    """The base with a component."""
    (workplace / "kustomization.yaml").write_text(
        yaml.safe_dump(
            {
                "resources": [os.path.relpath(K8S / "base", workplace)],
                "components": [os.path.relpath(K8S / component, workplace)],
            }
        )
    )
    return rendered(workplace)


def of_kind(kind: str, resources: tuple[Resource, ...]) -> dict[str, Resource]:
    """Those of one kind, by name."""
    return {each["metadata"]["name"]: each for each in resources if each["kind"] == kind}


def load(path: str) -> Any:
    """A file, parsed."""
    return yaml.safe_load((K8S / path).read_text())


def rendered(folder: Path) -> tuple[Resource, ...]:
    """The same of any folder."""
    # The pinned one, which is beside this Python, or any other.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kubectl = shutil.which("kubectl", path=path)
    assert kubectl, "there is no kubectl: make test installs the one that is pinned"
    # kustomize refuses symbolic links.
    done = subprocess.run([kubectl, "kustomize", folder.resolve()], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return tuple(yaml.load_all(done.stdout, Loader=yaml.CSafeLoader))  # ten times as fast
