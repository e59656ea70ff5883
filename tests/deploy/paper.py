"""A simulated cluster: what `kubectl` does to numbers of pods, with the API server's defaults.

As much of it as docs/deploy.md uses. Nothing is scheduled: a wanted pod exists.
"""

import copy
import json
import shlex
from collections.abc import Iterable
from typing import Any

from tests.deploy.kustomize import Resource, render

#: An API server's defaults.
_DEFAULTS = {"Deployment": {"replicas": 1, "paused": False}, "Rollout": {"replicas": 1}}
_PAUSED = "autoscaling.keda.sh/paused-replicas"
Name = tuple[str, str]


class PaperCluster:
    """Resources by kind and name, as they are and as they were last applied."""

    def __init__(self) -> None:
        self.live: dict[Name, Resource] = {}
        self._applied: dict[Name, Resource] = {}

    def do(self, line: str) -> None:
        """Execute a command; one that changes no resource does nothing.

        Autoscalers act before the next one: a command's own effect is seen.

        Raises:
            KeyError: it names a missing resource.
            AssertionError: an unknown command.
        """
        self._autoscale()
        match shlex.split(line)[1:]:
            case ["apply", "-k", folder]:
                self.apply(render(folder.removeprefix("deploy/k8s/")))
            case ["delete", "-k", folder]:
                for each in render(folder.removeprefix("deploy/k8s/")):
                    self._delete(name_of(each))
            case ["delete", kind, name, *_]:
                self._delete((_kind(kind), name))
            case ["scale", *deployments, number]:
                for each in deployments:
                    spec = self.live["Deployment", each.removeprefix("deployment/")]["spec"]
                    spec["replicas"] = int(number.removeprefix("--replicas="))
            case ["annotate", "scaledobject", name, *_, what]:
                if ("ScaledObject", name) in self.live:
                    annotations = self.live["ScaledObject", name]["metadata"].setdefault(
                        "annotations", {}
                    )
                    annotations.pop(what.rstrip("-"), None)
                    annotations.update([what.split("=")] if "=" in what else [])
            case ["patch", "scaledobject", name, "--type=merge", patch]:
                if ("ScaledObject", name) in self.live:
                    change = json.loads(patch.removeprefix("--patch="))
                    self.live["ScaledObject", name] = merged(
                        {}, change, self.live["ScaledObject", name]
                    )
            case [verb, *_]:
                assert verb in ("wait", "rollout", "exec", "argo"), line

    def apply(self, resources: Iterable[Resource]) -> None:
        """Merge three ways: a field that was last applied and is not any more is removed."""
        for each in copy.deepcopy(list(resources)):
            name = name_of(each)
            live = merged(self._applied.get(name, {}), each, self.live.get(name, {}))
            if each["kind"] in _DEFAULTS:
                live["spec"] = {**_DEFAULTS[each["kind"]], **live["spec"]}
            self.live[name], self._applied[name] = live, copy.deepcopy(each)

    @property
    def workers(self) -> dict[Name, int]:
        """Pods that consume orders, except for the canary's, by their owner."""
        return {
            name: each["spec"]["replicas"]
            for name, each in self.live.items()
            if each["kind"] in _DEFAULTS
            and each["metadata"]["labels"].get("app.kubernetes.io/component") == "worker"
            and each["metadata"]["labels"].get("track") != "canary"
        }

    def _delete(self, name: Name) -> None:
        self.live.pop(name, None)
        self._applied.pop(name, None)

    def _autoscale(self) -> None:
        for (kind, _), each in self.live.items():
            spec = each["spec"] if kind in ("ScaledObject", "HorizontalPodAutoscaler") else None
            if spec is None:
                continue
            target = self.live["Deployment", spec["scaleTargetRef"]["name"]]["spec"]
            low = spec.get("minReplicaCount", spec.get("minReplicas"))
            high = spec.get("maxReplicaCount", spec.get("maxReplicas"))
            paused = each["metadata"].get("annotations", {}).get(_PAUSED)
            if paused is not None:
                target["replicas"] = int(paused)
            elif target["replicas"]:  # none stay none: KEDA knows the queue from workers alone
                target["replicas"] = min(max(target["replicas"], low), high)


def merged(before: Any, after: Any, live: Any) -> Any:
    """The live fields, with those in `after`, and without those in `before` that are not in it."""
    if not isinstance(after, dict) or not isinstance(live, dict):
        return after
    before = before if isinstance(before, dict) else {}
    left = {key: value for key, value in live.items() if key in after or key not in before}
    return left | {key: merged(before.get(key), after[key], left.get(key)) for key in after}


def name_of(resource: Resource) -> Name:
    return resource["kind"], resource["metadata"]["name"]


def _kind(word: str) -> str:
    kinds = ("Job", "Rollout", "AnalysisTemplate", "ScaledObject")
    [kind] = [each for each in kinds if each.lower() == word]
    return kind
