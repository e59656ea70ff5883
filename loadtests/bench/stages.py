"""Where an order's time goes, stage by stage, from the queue to the POS: by the worker's own log."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from loadtests.load.histogram import percentile

#: An order's stages in their order; the last is the whole way.
QUEUED, ADMITTED, CLAIMED, SENT, WHOLE = (
    "in RabbitMQ, and to be read",
    "admission, and a green thread",
    "its claim is durable",
    "sent, to the POS",
    "the whole way",
)
STAGES = (QUEUED, ADMITTED, CLAIMED, SENT, WHOLE)


@dataclass(frozen=True, slots=True)
class Stage:
    """Seconds that orders spent in one stage."""

    name: str
    p50: float
    p99: float


def attempts(printed: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    """First attempts, as the worker's log has them (``delivery.attempted``)."""
    for line in printed:
        try:
            said = json.loads(line)
        except ValueError:
            continue  # Celery's banner
        is_attempt = isinstance(said, dict) and said.get("event") == "delivery.attempted"
        if is_attempt and said.get("attempt") == 1:
            yield said


def stages(
    printed: Iterable[str], published: Mapping[str, float], arrived: Mapping[str, float]
) -> list[Stage]:
    """The stages of all orders whose times are known.

    Args:
        printed: the worker's log.
        published: when each order entered the queue, by its id and the wall clock.
        arrived: when each order first reached its POS, likewise.
    """
    seconds: dict[str, list[float]] = {name: [] for name in STAGES}
    for said in attempts(printed):
        order_id = said["order_id"]
        if order_id not in published or order_id not in arrived:
            continue
        waited, claim = said["waited_seconds"], said["claim_seconds"]
        claimed = datetime.fromisoformat(said["timestamp"]).timestamp() - said["seconds"]
        seconds[QUEUED].append(claimed - claim - waited - published[order_id])
        seconds[ADMITTED].append(waited)
        seconds[CLAIMED].append(claim)
        seconds[SENT].append(arrived[order_id] - claimed)
        seconds[WHOLE].append(arrived[order_id] - published[order_id])
    return [_stage(name, sorted(values)) for name, values in seconds.items() if values]


def _stage(name: str, values: Sequence[float]) -> Stage:
    return Stage(name, percentile(values, 0.5), percentile(values, 0.99))
