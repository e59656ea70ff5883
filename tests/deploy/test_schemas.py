"""Every manifest is valid in the Kubernetes releases it is meant for, field by field."""

import copy
from typing import Any

import kubernetes_validate
import pytest

from tests.deploy.kustomize import APPLIED, COMPONENTS, render, render_with

#: The oldest supported release, and the newest.
RELEASES = ("1.29", "1.37")
#: Custom resources of operators; docs/deploy.md lists the needed ones.
CUSTOM = {
    ("argoproj.io/v1alpha1", "AnalysisTemplate"),
    ("argoproj.io/v1alpha1", "Rollout"),
    ("keda.sh/v1alpha1", "ScaledObject"),
    ("monitoring.coreos.com/v1", "PodMonitor"),
    ("monitoring.coreos.com/v1", "PrometheusRule"),
    ("rabbitmq.com/v1beta1", "RabbitmqCluster"),
}


def kind_of(resource: dict[str, Any]) -> tuple[str, str]:
    return resource["apiVersion"], resource["kind"]


@pytest.mark.parametrize("folder", APPLIED)
@pytest.mark.parametrize("release", RELEASES)
def test_a_folders_resources_are_valid_in_kubernetes(folder: str, release: str) -> None:
    ours = [each for each in render(folder) if kind_of(each) not in CUSTOM]
    assert ours
    for resource in ours:
        kubernetes_validate.validate(resource, release, strict=True)


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_components_resources_are_valid_in_kubernetes(component: str, tmp_path: Any) -> None:
    added = [each for each in render_with(component, tmp_path) if each not in render("base")]
    assert added
    for resource in added:
        if kind_of(resource) not in CUSTOM:
            kubernetes_validate.validate(resource, RELEASES[-1], strict=True)


def test_every_operators_kind_is_used(tmp_path: Any) -> None:
    resources = [each for folder in APPLIED for each in render(folder)]
    for number, component in enumerate(COMPONENTS):
        (tmp_path / str(number)).mkdir()
        resources += render_with(component, tmp_path / str(number))
    assert {kind_of(each) for each in resources} >= CUSTOM


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "selector"), None),
        (("spec", "template", "spec", "containers", 0, "name"), None),
        (("spec", "template", "spec", "containers", 0, "livenessProb"), {}),
        (("spec", "replicas"), "two"),
    ],
)
def test_a_missing_misspelt_or_mistyped_field_is_noticed(path: tuple[Any, ...], value: Any) -> None:
    resource = copy.deepcopy(next(each for each in render("base") if each["kind"] == "Deployment"))
    place = resource
    for step in path[:-1]:
        place = place[step]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(resource, RELEASES[-1], strict=True)
