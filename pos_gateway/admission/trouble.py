"""Which merchants to show an operator first."""

import heapq
from collections.abc import Iterable

from pos_gateway.admission.breaker import BreakerState
from pos_gateway.admission.symptoms import MerchantStatus


def is_in_trouble(standing: MerchantStatus) -> bool:
    """Whether there are orders parked, unsent or waiting for the merchant, an open or half-open breaker, or silence
    with orders in flight."""
    is_held_up = standing.parked > 0 or (standing.troubled and standing.waiting > 0)
    has_breaker_open = standing.breaker is not BreakerState.CLOSED
    is_hanging = standing.silent and standing.in_flight > 0
    return is_held_up or has_breaker_open or is_hanging or standing.unsent


def severity(standing: MerchantStatus) -> tuple[int, bool, bool, bool]:
    """Sort key: orders held up, then breaker open, half-open, silent."""
    state = standing.breaker
    held_up = standing.parked + standing.waiting
    return held_up, state is BreakerState.OPEN, state is BreakerState.HALF_OPEN, standing.silent


def worst(standings: Iterable[MerchantStatus], most: int) -> list[MerchantStatus]:
    """The merchants in most trouble, the worst first; ``most`` at most.

    Half of the places are for merchants with a breaker open or half-open: at a peak many merchants are busy, and must
    not hide a dead merchant.
    """
    troubled = list(filter(is_in_trouble, standings))
    away = (each for each in troubled if each.breaker is not BreakerState.CLOSED)
    first = heapq.nlargest(most // 2, away, key=severity)
    names = {each.merchant_id for each in first}
    others = (each for each in troubled if each.merchant_id not in names)
    rest = heapq.nlargest(most - len(first), others, key=severity)
    return sorted([*first, *rest], key=severity, reverse=True)
