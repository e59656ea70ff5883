"""Runs that never were: what was seen of them is made up, and can be made worse."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from loadtests.bench.gauge import (
    BROKER,
    DATABASE,
    LEFT,
    PRODUCER,
    SIMULATOR,
    WAITED,
    WORKER,
    Reading,
)
from loadtests.load.run import Run
from loadtests.load.scenario import LoadScenario
from loadtests.load.scraper import Sample
from pos_gateway.demo.record import RunRecord, Times

BEGAN = 1_000_000.0
SECONDS = 20
#: Orders of the healthy class; it has two a tenth of a second.
ORDERS = 2 * 10 * SECONDS

SCENARIO = LoadScenario.model_validate(
    {
        "file": Path("planted.toml"),
        "description": "Made up.",
        "seconds": SECONDS,
        "deliver_within": 5,
        "arrivals": {"shape": "steady", "rate": 22},
        "merchants": {
            "healthy": {
                "number": 5,
                "weight": 10,
                "latency": 0.1,
                "objectives": {"pos_p99": 0.5, "enqueue_p50": 0.05, "accepted": 0.99},
            },
            "hang": {
                "number": 1,
                "weight": 1,
                "behaviour": "hang",
                "outage": {"begins": 5, "ends": 10},
            },
        },
    }
)


def times(took: float, number: int = ORDERS) -> Times:
    return Times([each * SECONDS / number for each in range(number)], [took] * number)


def a_record(**changes: Any) -> RunRecord:
    record = RunRecord(
        began=BEGAN,
        last=BEGAN + SECONDS,
        ended=BEGAN + SECONDS + 5,
        times={
            "enqueue": {"healthy": times(0.01), "hang": times(0.01, 40)},
            "pos": {"healthy": times(0.02), "hang": times(2.0, 10)},
            "event": {"healthy": times(0.2), "hang": times(5.0, 40)},
        },
        late=times(0.001, ORDERS + 40),
        outcomes={"healthy": {"accepted": ORDERS}, "hang": {"expired": 30, "in_doubt": 10}},
        missing=[],
        doubled=[],
        phantom=[],
        contradicted=[],
        denied=[],
        repeated=0,
        unseen=0,
        lost={},
    )
    return replace(record, **changes)


def samples(figures: Mapping[str, float] | None = None) -> Sequence[Sample]:
    """One a second, all alike: calm but for these."""
    calm = {"slots.free": 190, "slots.light": 8, "slots.silent": 2, "connections.leased": 10}
    return [Sample(BEGAN + second, {**calm, **(figures or {})}) for second in range(SECONDS + 5)]


def readings(busy: Mapping[str, float] | None = None, first: float = 0.0) -> Sequence[Reading]:
    """Twice a second: shares of a core by part, from that second on (before it: calm)."""
    calm = {
        WORKER: 0.4,
        PRODUCER: 0.1,
        SIMULATOR: 0.1,
        WAITED: 0.0,
        LEFT: 0.5,
        BROKER: 0.2,
        DATABASE: 0.1,
    }
    used = dict.fromkeys(calm, 0.0)
    found = []
    for half in range(2 * (SECONDS + 5)):
        found.append(Reading(BEGAN + half / 2, dict(used), dict.fromkeys(calm, 100.0 + half)))
        shares = {**calm, **(busy or {})} if half / 2 >= first else calm
        used = {part: used[part] + share / 2 for part, share in shares.items()}
    return found


def a_run(**changes: Any) -> Run:
    """One that met every objective, and that nothing limited; ``changes`` make it another."""
    late = {"replies": 400, "p99": 0.002, "worst": 0.01}
    return replace(Run(SCENARIO, a_record(), samples(), readings(), late), **changes)
