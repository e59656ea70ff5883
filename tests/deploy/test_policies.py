"""Every workload follows the policies, and every policy notices a violation."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.deploy.kustomize import APPLIED, render
from tests.deploy.policies import pod_of, violations

WORKLOADS = [
    pytest.param(resource, id=f"{folder}:{resource['metadata']['name']}")
    for folder in APPLIED
    for resource in render(folder)
    if resource["kind"] in ("Deployment", "Job")
]
Change = Callable[[dict[str, Any], dict[str, Any]], Any]

#: By its violation: a change to a pod and its container.
BROKEN: dict[str, Change] = {
    "hostNetwork is set": lambda pod, _: pod.update(hostNetwork=True),
    "hostPID is set": lambda pod, _: pod.update(hostPID=True),
    "the volume host is a hostPath": lambda pod, _: pod.update(
        volumes=[{"name": "host", "hostPath": {"path": "/"}}]
    ),
    "sysctls are set": lambda pod, _: pod["securityContext"].update(sysctls=[{"name": "x"}]),
    "runAsNonRoot is not true": lambda pod, _: pod["securityContext"].pop("runAsNonRoot"),
    "runAsUser is root's, or not said": lambda pod, _: pod["securityContext"].update(runAsUser=0),
    "runAsGroup is root's, or not said": lambda pod, _: pod["securityContext"].pop("runAsGroup"),
    "its command is PID 1": lambda pod, _: pod.pop("shareProcessNamespace"),
    "there is no seccompProfile": lambda pod, _: pod["securityContext"].pop("seccompProfile"),
    "it gets a token for Kubernetes": lambda pod, _: pod.pop("automountServiceAccountToken"),
    "it gets variables for every Service": lambda pod, _: pod.pop("enableServiceLinks"),
    "it is privileged": lambda _, it: it["securityContext"].update(privileged=True),
    "allowPrivilegeEscalation is not false": lambda _, it: it["securityContext"].pop(
        "allowPrivilegeEscalation"
    ),
    "it keeps capabilities": lambda _, it: it["securityContext"].pop("capabilities"),
    "it adds capabilities": lambda _, it: it["securityContext"]["capabilities"].update(
        add=["SYS_ADMIN"]
    ),
    "it has a hostPort": lambda _, it: it.update(ports=[{"hostPort": 80}]),
    "its file system is not read-only": lambda _, it: it["securityContext"].pop(
        "readOnlyRootFilesystem"
    ),
    "its memory has no limit": lambda _, it: it["resources"].pop("limits"),
    "it does not say what it needs": lambda _, it: it["resources"]["requests"].pop("cpu"),
    "is none in particular": lambda _, it: it.update(image="registry:5000/pos-gateway"),
}


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_workload_follows_the_restricted_profile_and_our_policies(
    workload: dict[str, Any],
) -> None:
    assert violations(workload) == []


@pytest.mark.parametrize("said", BROKEN)
def test_a_violation_of_a_policy_is_reported(said: str) -> None:
    workload = copy.deepcopy(next(each for each in render("base") if each["kind"] == "Deployment"))
    pod = pod_of(workload)
    BROKEN[said](pod, pod["containers"][0])
    [finding] = violations(workload)
    assert finding.endswith(said)


@pytest.mark.parametrize("tag", [":latest", ":main", ""])
def test_a_moving_tag_is_a_violation(tag: str) -> None:
    workload = copy.deepcopy(next(each for each in render("base") if each["kind"] == "Deployment"))
    pod_of(workload)["containers"][0]["image"] = f"registry.example.com/pos-gateway{tag}"
    assert [each for each in violations(workload) if "in particular" in each]
