"""Write the manifests that are made of something else: ``make manifests``.

The addresses that a pod may send to are those that the gateway lets itself be sent to, and the
operator's alerts are Prometheus's: each is said in one place.
"""

from pathlib import Path
from typing import Any

import yaml

from pos_gateway.runtime.addresses import PUBLIC, WEB_PORTS

HERE = Path(__file__).parent


def manifests() -> dict[Path, str]:
    """Every generated manifest by its place."""
    return {
        HERE / "k8s/base/network-policy-merchants.yaml": _text(
            "Workers may send to the public internet, which is where merchants' POSes are, and to\n"
            "# nothing else: what is left out is not public. So may servers: alerts' receivers are there, and\n"
            "# the operations page checks a POS. Networks and ports that are opened with POS_GATEWAY_ALLOWED_NETWORKS\n"
            "# and POS_GATEWAY_ALLOWED_PORTS, and a receiver in the cluster, want a policy of their own.",
            "pos_gateway/runtime/addresses.py",
            _merchants(),
        ),
        HERE / "k8s/components/prometheus-rules/rules.yaml": _text(
            "The alerts; docs/runbook.md says what each means and what to do.",
            "deploy/prometheus/rules.yml",
            _rules(),
        ),
    }


def _merchants() -> dict[str, Any]:
    blocks = [
        {"ipBlock": {"cidr": str(network), "except": [str(special) for special in specials]}}
        for network, specials in PUBLIC.items()
    ]
    ports = [{"port": port, "protocol": "TCP"} for port in sorted(WEB_PORTS)]
    pods = {
        "matchLabels": {"app.kubernetes.io/name": "pos-gateway"},
        "matchExpressions": [
            {
                "key": "app.kubernetes.io/component",
                "operator": "In",
                "values": ["worker", "server"],
            }
        ],
    }
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata("pos-gateway-merchants"),
        "spec": {
            "podSelector": pods,
            "policyTypes": ["Egress"],
            "egress": [{"to": blocks, "ports": ports}],
        },
    }


def _rules() -> dict[str, Any]:
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": _metadata("pos-gateway"),
        "spec": yaml.safe_load((HERE / "prometheus/rules.yml").read_text()),
    }


def _metadata(name: str) -> dict[str, Any]:
    return {"name": name, "labels": {"app.kubernetes.io/name": "pos-gateway"}}


def _text(what: str, source: str, manifest: dict[str, Any]) -> str:
    written = yaml.safe_dump(manifest, sort_keys=False, width=100)
    return f"# {what}\n# Made by `make manifests` of {source}.\n{written}"


if __name__ == "__main__":
    for path, text in manifests().items():
        path.write_text(text)
        print(f"wrote {path.relative_to(HERE.parent)}")  # noqa: T201  (what it is run for)
