"""What a workload must not do: Kubernetes' restricted profile, and this project's own policies.

Each violation is a sentence. The profile is that of the Pod Security Standards, for Linux pods.
"""

import re
from collections.abc import Iterator
from typing import Any

_VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral"),
    *("persistentVolumeClaim", "projected", "secret"),
}
#: A moving tag does not say what runs.
_MOVING = re.compile(r"(latest|stable|edge|main|master|nightly)$")
_OURS = re.compile(r"(^|/)pos-gateway[:@]")
#: Every image that is built here, the simulated merchants' too.
_BUILT = re.compile(r"(^|/)pos-gateway(-merchants)?[:@]")


def pod_of(workload: dict[str, Any]) -> dict[str, Any]:
    """The pod that a Deployment or a Job creates."""
    pod: dict[str, Any] = workload["spec"]["template"]["spec"]
    return pod


def violations(workload: dict[str, Any]) -> list[str]:
    """All violations; none for a workload that may be applied."""
    pod = pod_of(workload)
    return [
        *_restricted_pod(pod),
        *(
            f"{container['name']}: {finding}"
            for container in [*pod.get("initContainers", []), *pod["containers"]]
            for finding in (*_restricted_container(container, pod), *_ours(container))
        ),
        *_our_pod(pod),
    ]


def _restricted_pod(pod: dict[str, Any]) -> Iterator[str]:
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(field):
            yield f"{field} is set"
    for volume in pod.get("volumes", []):
        if kinds := set(volume) - {"name"} - _VOLUMES:
            yield f"the volume {volume['name']} is a {kinds.pop()}"
    if pod.get("securityContext", {}).get("sysctls"):
        yield "sysctls are set"


def _restricted_container(container: dict[str, Any], pod: dict[str, Any]) -> Iterator[str]:
    own, common = container.get("securityContext", {}), pod.get("securityContext", {})
    if own.get("privileged"):
        yield "it is privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation is not false"
    if own.get("runAsNonRoot", common.get("runAsNonRoot")) is not True:
        yield "runAsNonRoot is not true"
    for field in ("runAsUser", "runAsGroup"):
        # Without a group the kubelet sets the user alone, and the group is root's.
        if not own.get(field, common.get(field)):
            yield f"{field} is root's, or not said"
    profile = own.get("seccompProfile", common.get("seccompProfile", {}))
    if profile.get("type") not in ("RuntimeDefault", "Localhost"):
        yield "there is no seccompProfile"
    capabilities = own.get("capabilities", {})
    if "ALL" not in capabilities.get("drop", []):
        yield "it keeps capabilities"
    if set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}:
        yield "it adds capabilities"
    if any("hostPort" in port for port in container.get("ports") or []):
        yield "it has a hostPort"


def _ours(container: dict[str, Any]) -> Iterator[str]:
    _, _, tag = container["image"].rpartition("/")[2].partition(":")
    if not tag or _MOVING.search(tag):
        yield f"its image {container['image']} is none in particular"
    resources = container.get("resources", {})
    if {"cpu", "memory"} - resources.get("requests", {}).keys():
        yield "it does not say what it needs"
    if "memory" not in resources.get("limits", {}):
        yield "its memory has no limit"
    read_only = container.get("securityContext", {}).get("readOnlyRootFilesystem")
    if _OURS.search(container["image"]) and read_only is not True:
        yield "its file system is not read-only"


def _our_pod(pod: dict[str, Any]) -> Iterator[str]:
    if pod.get("automountServiceAccountToken") is not False:
        yield "it gets a token for Kubernetes"
    # A Service named pos-gateway would otherwise become POS_GATEWAY_SERVICE_HOST in its namespace,
    # and a worker refuses to start on an unknown setting.
    if pod.get("enableServiceLinks") is not False:
        yield "it gets variables for every Service"
    # Linux delivers PID 1 no signal without a handler; none of our commands has one during its
    # imports.
    if pod.get("shareProcessNamespace") is not True and any(
        _BUILT.search(container["image"]) for container in pod["containers"]
    ):
        yield "its command is PID 1"
