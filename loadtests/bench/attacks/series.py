"""Slots over time: the requests in flight by class of merchant, as the merchants saw them."""

from collections.abc import Collection, Mapping, Sequence
from math import ceil, floor
from typing import Any

from loadtests.bench.attacks.plays import Observation
from pos_gateway.simulated_merchants.levels import BUCKETS


def series(kind: str, seen: Observation) -> dict[str, Any]:
    """A run's slots in steps of a tenth of a second from its beginning, to be drawn."""
    attack = seen.trial.attack
    troubled = attack.troubled if attack else ()
    return {
        "run": kind,
        "candidate": seen.trial.candidate.name,
        "attack": attack.name if attack else None,
        "began": seen.began,
        "step": 1 / BUCKETS,
        #: Seconds from the beginning; 0 for merchants that were in trouble before it.
        "struck_after": None if attack is None else max(0.0, (seen.struck or 0.0) - seen.began),
        "flaps_every": attack.flaps_every if attack else None,
        "slots": slots(seen.levels, troubled, seen.began, seen.ended),
        "arrivals": arrivals(seen),
    }


def slots(
    levels: Mapping[str, Sequence[tuple[float, int]]],
    troubled: Collection[str],
    began: float,
    ended: float,
) -> dict[str, list[int]]:
    """The requests in flight in each tenth of a second, by class."""
    nothing = steps((), began, ended)
    classes = {"healthy": [nothing], "troubled": [nothing]}
    for group, points in levels.items():
        name = "troubled" if group in troubled else "healthy"
        classes[name].append(steps(points, began, ended))
    return {name: summed(groups) for name, groups in classes.items()}


def steps(points: Sequence[tuple[float, int]], began: float, ended: float) -> list[int]:
    """The level in each tenth of a second; where nothing changed, that of the one before."""
    known = {round(at * BUCKETS): level for at, level in points}
    first = floor(began * BUCKETS)
    before = [bucket for bucket in known if bucket < first]
    levels, level = [], known[max(before)] if before else 0
    for bucket in range(first, ceil(ended * BUCKETS)):
        level = known.get(bucket, level)
        levels.append(level)
    return levels


def summed(groups: Sequence[Sequence[int]]) -> list[int]:
    """The groups' levels together; they are of the same stretch of time."""
    return [sum(levels) for levels in zip(*groups, strict=True)]


def arrivals(seen: Observation) -> Mapping[str, list[int]]:
    """Orders that first reached their merchants in each tenth of a second, by class."""
    first = floor(seen.began * BUCKETS)
    length = ceil(seen.ended * BUCKETS) - first
    counts = {"healthy": [0] * length, "troubled": [0] * length}
    for order_id, at in seen.arrived.items():
        name = "healthy" if seen.trial.is_healthy(seen.merchant_of[order_id]) else "troubled"
        place = floor(at * BUCKETS) - first
        if 0 <= place < length:
            counts[name][place] += 1
    return counts
