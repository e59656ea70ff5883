"""Which merchants are in trouble, and which of them in most: the one rule for all who name some."""

import heapq
from collections.abc import Iterable

from pos_gateway.admission.breaker import State
from pos_gateway.admission.lane import Standing


def is_in_trouble(standing: Standing) -> bool:
    """Its orders are held up for its own sake, it is left alone, or does not answer."""
    is_held_up = standing.parked > 0 or (standing.troubled and standing.waiting > 0)
    is_left_alone = standing.breaker is not State.CLOSED
    return is_held_up or is_left_alone or (standing.silent and standing.in_flight > 0)


def severity(standing: Standing) -> tuple[int, bool, bool, bool]:
    """What those in most trouble have most of: orders held up. Then, how bad the merchant is."""
    state = standing.breaker
    held_up = standing.parked + standing.waiting
    return held_up, state is State.OPEN, state is State.HALF_OPEN, standing.silent


def worst(standings: Iterable[Standing], most: int) -> list[Standing]:
    """Those of them in most trouble, the worst first; so many at most."""
    return heapq.nlargest(most, filter(is_in_trouble, standings), key=severity)
