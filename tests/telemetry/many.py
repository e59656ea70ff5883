"""A worker's metrics with every possible label value: prints a scrape.

``python -m tests.telemetry.many MERCHANTS PROVIDERS``, in a separate process without other series.
"""

import sys
from typing import Any

from pos_gateway.admission.admission import Admission
from pos_gateway.admission.breaker import BreakerState
from pos_gateway.admission.limits import AdmissionLimits, Terms
from pos_gateway.broker.topology import QUEUES
from pos_gateway.cache.refresh_ahead import RefreshAheadCache
from pos_gateway.domain.outcome import Kind
from pos_gateway.telemetry import log, metrics
from pos_gateway.telemetry.port import MetricsPort
from pos_gateway.worker.standings import Standings
from testkit.servers.process import free_port
from tests.telemetry.lab import get

#: Labels with values from the code: each metric's, all of them.
OWN: dict[Any, tuple[str, ...]] = {
    metrics.connections: ("available", "leased", "pending"),
    metrics.breaker_transitions: tuple(BreakerState),
    metrics.queue_messages: tuple(queue.name for queue in QUEUES),
    metrics.queue_age: tuple(queue.name for queue in QUEUES),
    metrics.fleet_syncs: ("answered", "failed"),
    metrics.not_ready: ("broker", "database", "draining"),
}
_ANYHOW: Any = {
    "lifetime": 1.0,
    "absent": 1.0,
    "stale": 1.0,
    "max_weight": 1,
    "failures": (),
    "pause": lambda _: 1.0,
}
#: Adapters that poll POSes.
POLLED = ("square", "toast", "clover", "hubrise")
#: A worker's.
CACHES = [RefreshAheadCache(name, dict, **_ANYHOW) for name in ("merchants", "catalogs", "tokens")]


def main(merchants: int, providers: int) -> None:
    """Every merchant is in trouble, and every outcome, provider and reason has occurred."""
    admission: Admission[str] = Admission(AdmissionLimits(), lambda _: Terms(1))
    number = free_port()
    port = MetricsPort(number)
    provider_of = {f"m{n}": f"provider-{n % providers}" for n in range(merchants)}
    port.before_scrape(Standings(admission, provider_of.get).show)
    for merchant_id, provider in provider_of.items():
        admission.offer(merchant_id, "o", 0.0)
        admission.open_breaker(merchant_id, 60.0)
        admission.parked_count.add(merchant_id, 64, 30.0)
        for kind in Kind:
            metrics.outcome_recorded(kind, provider)
            metrics.attempted(kind, provider, 0.1)
        metrics.dead_lettered(f"reason-{merchant_id}")
    for merchant_id in ("m0", "m1"):
        metrics.outcome_recorded("accepted", None)
        metrics.attempted("accepted", None, 0.1)
        admission.close_breaker(merchant_id)
    log.configure()
    for metric, values in OWN.items():
        for value in values:
            metric.labels(value)
    for adapter in POLLED:
        for result in ("listed", "failed", "down"):
            metrics.polls(adapter, result)
    port.start()
    print(get(number, "/metrics")[1])


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
