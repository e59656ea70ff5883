"""A pod's egress is what the gateway's guard allows, and its stores."""

import re
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deploy.generate import manifests
from pos_gateway.runtime.addresses import PUBLIC, WEB_PORTS, is_public, ports
from pos_gateway.settings import Settings
from pos_gateway.transport.guard import Guard
from tests.deploy.kustomize import ROOT, of_kind, render, render_with

POLICIES = of_kind("NetworkPolicy", render("base"))
MERCHANTS = POLICIES["pos-gateway-merchants"]["spec"]
COMMON = POLICIES["pos-gateway"]["spec"]
#: The edges of every range: where the two lists would differ.
EDGES = [
    address + step
    for network, specials in PUBLIC.items()
    for each in (network, *specials)
    for address in (each[0], each[-1])
    for step in (-1, 0, 1)
    if 0 < int(address) + step < 2**each.max_prefixlen
]


def lets_through(address: IPv4Address | IPv6Address) -> bool:
    """Whether Kubernetes lets a worker's packet to this address out under the policy."""
    [rule] = MERCHANTS["egress"]
    return any(
        address in ip_network(to["ipBlock"]["cidr"])
        and not any(address in ip_network(each) for each in to["ipBlock"]["except"])
        for to in rule["to"]
    )


def test_the_generated_manifests_are_up_to_date() -> None:
    stale = [path.name for path, text in manifests().items() if path.read_text() != text]
    assert stale == [], "run: make manifests"


@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6), st.sampled_from(EDGES)))
@example(ip_address("169.254.169.254"))
@example(ip_address("::ffff:10.0.0.1"))
@example(ip_address("93.184.215.14"))
def test_the_policy_and_the_guard_agree_on_every_address(
    address: IPv4Address | IPv6Address,
) -> None:
    assert lets_through(address) is is_public(address)


def test_the_policy_and_the_guard_agree_on_ports() -> None:
    [rule] = MERCHANTS["egress"]
    allowed = {each["port"] for each in rule["ports"]}
    assert allowed == WEB_PORTS == Guard().ports == ports(Settings().allowed_ports)


def test_every_exception_lies_within_its_block() -> None:
    # Otherwise Kubernetes refuses the whole policy.
    for network, specials in PUBLIC.items():
        for special in specials:
            assert special.subnet_of(network), special  # type: ignore[arg-type]


@pytest.mark.parametrize("resource", render("base"), ids=lambda each: each["metadata"]["name"])
def test_every_pod_is_under_a_policy_and_of_the_base_only_workers_reach_merchants(
    resource: dict[str, Any],
) -> None:
    if resource["kind"] not in ("Deployment", "Job"):
        return
    labels = resource["spec"]["template"]["metadata"]["labels"]
    assert COMMON["podSelector"]["matchLabels"].items() <= labels.items()
    is_worker = resource["metadata"]["name"] == "pos-gateway"
    assert selects(MERCHANTS["podSelector"], labels) is is_worker


def test_servers_reach_the_receivers_of_alerts_and_the_poses_that_their_page_checks(
    tmp_path: Path,
) -> None:
    resources = render_with("components/server", tmp_path)
    server = of_kind("Deployment", resources)["pos-gateway-server"]
    labels = server["spec"]["template"]["metadata"]["labels"]
    reaching = [
        each["metadata"]["name"]
        for each in of_kind("NetworkPolicy", resources).values()
        if selects(each["spec"]["podSelector"], labels)
        and any("ipBlock" in to for rule in each["spec"].get("egress", []) for to in rule["to"])
    ]
    assert reaching == ["pos-gateway-merchants"]


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Whether a selector is of a pod with these labels."""
    for each in selector.get("matchExpressions", []):
        assert each["operator"] == "In"
        if labels.get(each["key"]) not in each["values"]:
            return False
    matched: bool = selector.get("matchLabels", {}).items() <= labels.items()
    return matched


def test_the_canary_and_the_migration_are_under_a_policy_as_well() -> None:
    for folder in ("overlays/canary", "overlays/synchronous", "migrate"):
        [workload] = [each for each in render(folder) if each["kind"] in ("Deployment", "Job")]
        labels = workload["spec"]["template"]["metadata"]["labels"].items()
        assert COMMON["podSelector"]["matchLabels"].items() <= labels


def test_only_the_canary_reaches_prometheus() -> None:
    resources = render("overlays/canary")
    [policy] = of_kind("NetworkPolicy", resources).values()
    selector = policy["spec"]["podSelector"]["matchLabels"].items()
    [canary] = of_kind("Deployment", resources).values()
    assert selector <= canary["spec"]["template"]["metadata"]["labels"].items()
    for folder in ("base", "overlays/synchronous"):
        for other in of_kind("Deployment", render(folder)).values():
            assert not selector <= other["spec"]["template"]["metadata"]["labels"].items()
    [rule] = policy["spec"]["egress"]
    [to] = rule["to"]
    # Only the address on the page is allowed.
    page = (ROOT / "docs" / "deploy.md").read_text()
    [(namespace, port)] = set(re.findall(r"=http://[\w-]+\.([\w-]+)\.svc:(\d+)/federate", page))
    assert to["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": namespace}
    assert rule["ports"] == [{"port": int(port), "protocol": "TCP"}]


def test_ingress_is_for_metrics_and_egress_to_dns_and_stores() -> None:
    assert COMMON["policyTypes"] == ["Ingress", "Egress"]
    [metrics] = COMMON["ingress"]
    assert [port["port"] for port in metrics["ports"]] == ["metrics"]
    assert all("from" in rule for rule in COMMON["ingress"])
    names, stores = COMMON["egress"]
    assert {port["port"] for port in names["ports"]} == {53}
    assert {port["port"] for port in stores["ports"]} == {5671, 5672, 5432, 6379}
    for rule in (*COMMON["egress"], *MERCHANTS["egress"]):
        assert rule["to"], "an empty list is everybody"
