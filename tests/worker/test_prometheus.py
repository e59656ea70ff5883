"""A real Prometheus scrapes a real worker and HTTP server: each panel and alert has a result."""

import json
import math
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pos_gateway.simulated_merchants.client import SimulatedMerchants
from testkit.servers.process import free_port
from testkit.servers.prometheus import Prometheus
from testkit.servers.rabbitmq import RabbitMQ
from testkit.servers.redis import Redis
from tests.server.lab import serving
from tests.worker.lab import PATIENCE, Lab

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "deploy" / "grafana" / "pos-gateway.json"
RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
#: Grafana's variables: a window with all scrapes, however slow the machine, and all workers.
VARIABLES = {"$__rate_interval": "1h", "$instance": ".*"}
WELL, AFTER = [f"w{n}" for n in range(20)], [f"a{n}" for n in range(20)]
DOWN = [f"d{n}" for n in range(12)]


@pytest.fixture(scope="module")
def prometheus(
    rabbitmq: RabbitMQ,
    redis: Redis,
    simulated_merchants: SimulatedMerchants,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Prometheus]:
    """A Prometheus that has scraped a worker with merchants that are healthy, down and unknown."""
    folder = tmp_path_factory.mktemp("watched")
    url, port, servers_port = rabbitmq.add_vhost(), free_port(), free_port()
    simulated_merchants.reset()
    lab = Lab(url, f"sqlite:///{folder / 'pos_gateway.db'}", simulated_merchants, folder)
    configuration = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [
            {
                "job_name": "pos-gateway",
                "static_configs": [
                    {"targets": [f"127.0.0.1:{each}" for each in (port, servers_port)]}
                ],
            }
        ],
    }
    lab.open_merchants("fast-1", "fast-2", provider="acme")
    lab.open_merchants("down-1", "down-2", provider="bad", max_concurrency=2)
    lab.merchants.profile("down-*", {"kind": "reset"})
    with (
        Prometheus(yaml.safe_dump(configuration)) as prometheus,
        lab.worker(metrics_port=port, redis_url=redis.url, max_waiting=2),
        serving(
            url,
            lab.database_url,
            folder / "server.log",
            {"POS_GATEWAY_METRICS_PORT": str(servers_port)},
        ) as server,
    ):
        server.get("/v1/events")
        server.post("/v1/callbacks/rest/fast-1", {})  # unsigned
        wait_until(prometheus, "pos_gateway_http_requests_total", lambda done: done > 0)
        wait_until(prometheus, "pos_gateway_http_callbacks_total", lambda done: done > 0)
        lab.submit("fast-1", *WELL)
        lab.submit("down-1", *DOWN)
        lab.submit("no-such", "o1")
        lab.events_until_all_ended([*WELL, "o1"])
        told = 'sum(pos_gateway_orders_total{outcome="accepted"})'
        wait_until(prometheus, told, lambda total: total == len(WELL))
        wait_until(prometheus, "pos_gateway_merchant_breaker", lambda state: state > 0)
        # A rate needs two scrapes.
        requested = 'pos_gateway_http_requests_total{route="/v1/events"}'
        served = max(values(prometheus, requested))
        server.get("/v1/events")
        wait_until(prometheus, requested, lambda done: done > served)
        attempts = 'pos_gateway_attempts_total{provider="bad"}'
        before = max(values(prometheus, attempts))
        lab.submit("fast-2", *AFTER)
        lab.submit("down-2", *(f"{each}-2" for each in DOWN))
        lab.events_until_all_ended(AFTER)
        wait_until(prometheus, told, lambda total: total == len(WELL) + len(AFTER))
        wait_until(prometheus, attempts, lambda made: made > before)
        wait_until(prometheus, "pos_gateway_queue_messages", lambda ready: ready >= 0)
        prometheus.at = both_were_up(prometheus)
        yield prometheus
        lab.merchants.profile("down-*", {"kind": "accept"})
    lab.close()
    rabbitmq.delete_vhost(url)


def wait_until(prometheus: Prometheus, query: str, done: Callable[[float], bool]) -> None:
    """Poll the query until it is done."""
    until = time.monotonic() + PATIENCE
    while not any(done(value) for value in values(prometheus, query)):
        assert time.monotonic() < until, f"{query}: {prometheus.query(query)}"
        time.sleep(0.1)


def both_were_up(prometheus: Prometheus) -> float:
    """A moment from now on before which both had replied, and about which no later scrape says more.

    On a slow machine a reply may take longer than its scrape lasts: the target has no series until the next scrape.
    """
    now, until = time.time(), time.monotonic() + PATIENCE
    while True:
        [at] = values(prometheus, "min(timestamp(up))")
        if at > now and values(prometheus, f"min(up @ {at})") == [1.0]:
            return at
        assert time.monotonic() < until, prometheus.query("up")
        time.sleep(0.1)


def values(prometheus: Prometheus, query: str) -> list[float]:
    return [float(series["value"][1]) for series in prometheus.query(query)]


def queries() -> Iterator[Any]:
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", []):
            expression = target["expr"]
            if "pos_gateway_polls_total" in expression:
                continue  # no merchant is polled here: tests/telemetry knows the metric and its labels
            for variable, value in VARIABLES.items():
                expression = expression.replace(variable, value)
            yield pytest.param(expression, id=f"{panel['title']} {target['refId']}")


@pytest.mark.parametrize("query", list(queries()))
def test_a_panels_query_has_a_result(prometheus: Prometheus, query: str) -> None:
    assert "$" not in query
    found = values(prometheus, query)
    assert found, "there is no such series"
    assert any(not math.isnan(value) for value in found), "nothing was observed"


def rules() -> list[Any]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alerts_expression_is_evaluated(prometheus: Prometheus, rule: Any) -> None:
    prometheus.query(rule["expr"])  # raises unless the query succeeds


def test_every_series_of_an_alert_exists(prometheus: Prometheus) -> None:
    """An alert on a series that does not exist would never fire."""
    for rule in rules():
        bare = re.sub(r"\{[^}]*\}", "", rule["expr"])
        for name in set(re.findall(r"\bpos_gateway_\w+", bare)):
            assert values(prometheus, name), (rule["alert"], name)


def test_prometheus_loads_the_rules_without_an_error(
    prometheus: Prometheus,
) -> None:
    until = time.monotonic() + PATIENCE
    while any(rule["health"] == "unknown" for rule in prometheus.rules()):  # not evaluated yet
        assert time.monotonic() < until
        time.sleep(0.1)
    found = {rule["name"]: rule["health"] for rule in prometheus.rules()}
    assert found == {rule["alert"]: "ok" for rule in rules()}
