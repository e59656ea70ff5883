"""Latencies as a histogram and percentiles, the way ghz prints them."""

from collections.abc import Sequence
from math import ceil

_BUCKETS, _WIDTH = 10, 40
_SHARES = (0.50, 0.90, 0.95, 0.99)


def histogram(seconds: Sequence[float]) -> str:
    """Ten buckets of even width with a bar each, and four percentiles, in milliseconds.

    The last bucket ends at the slowest; one outlier makes the others coarse, which is meant: it
    is to be seen.
    """
    if not seconds:
        return "    (none)"
    ordered, counted = sorted(seconds), buckets(seconds)
    most = max(count for _, count in counted)
    bars = [
        f"    up to {_ms(bound)} [{count:>6}] |{'∎' * round(_WIDTH * count / most)}"
        for bound, count in counted
    ]
    shares = [f"    {share:.0%} within {_ms(percentile(ordered, share))}" for share in _SHARES]
    return "\n".join(bars + shares)


def buckets(seconds: Sequence[float]) -> list[tuple[float, int]]:
    """Ten buckets of even width from the fastest to the slowest: upper bounds and counts."""
    low, high = min(seconds), max(seconds)
    width = (high - low) / _BUCKETS or 1e-9
    counts = [0] * _BUCKETS
    for each in seconds:
        counts[min(_BUCKETS - 1, int((each - low) / width))] += 1
    return [(low + width * (place + 1), count) for place, count in enumerate(counts)]


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that so great a share of the values does not exceed."""
    return ordered[max(0, ceil(share * len(ordered)) - 1)]


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:9.1f} ms"
