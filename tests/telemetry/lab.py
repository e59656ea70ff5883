"""Requests to a worker's metrics port, and parsed scrapes."""

import json
import urllib.error
import urllib.request
from typing import Any

from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from testkit.patience import PATIENCE


def get(port: int, path: str) -> tuple[int, str]:
    """A page's status and text."""
    # No proxy of the environment applies to loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def get_json(port: int, path: str) -> tuple[int, Any]:
    status, text = get(port, path)
    return status, json.loads(text)


class Samples:
    """A parsed scrape."""

    def __init__(self, text: str) -> None:
        self._samples = [
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        ]

    def __len__(self) -> int:
        return len(self._samples)

    def of(self, name: str, **labels: str) -> dict[tuple[str, ...], float]:
        """The series of this name with these labels, by the other labels' values in order."""
        return {
            tuple(v for k, v in sorted(sample.labels.items()) if k not in labels): sample.value
            for sample in self._samples
            if sample.name == name and labels.items() <= sample.labels.items()
        }

    def value(self, name: str, **labels: str) -> float:
        """The one series with exactly these labels."""
        return self.of(name, **labels)[()]

    @property
    def names(self) -> set[str]:
        return {sample.name for sample in self._samples}


def value(name: str, **labels: str) -> float:
    """A series of this process; 0 if there is none."""
    return REGISTRY.get_sample_value(name, labels) or 0.0
