"""What a worker counts since it started. Readers take differences: see ``store.py``."""

from collections.abc import Mapping, Sequence

from pos_gateway.database.schema import COUNTED

#: Upper bounds in seconds of the waits that are counted, from an order's ``placed_at`` until its
#: first attempt; there is one counter more, for longer ones.
WAITS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 30.0)
_WAITED = tuple(f"waited_{number}" for number in range(len(WAITS) + 1))

#: A number for each of ``COUNTED``.
Counters = Mapping[str, int]


def counters(taken: int, recorded: Mapping[str, int], waits: Sequence[int]) -> Counters:
    """A worker's counters.

    Args:
        taken: orders that no worker had claimed before.
        recorded: recorded events by the last word of their type.
        waits: first attempts of healthy merchants' orders, by how long they waited.
    """
    known = {**recorded, **dict(zip(_WAITED, waits, strict=False)), "taken": taken}
    return {name: known.get(name, 0) for name in COUNTED}


def wait_within(counts: Counters, part: float) -> float | None:
    """Seconds within which this part of the healthy orders was attempted; None: there were none.

    Exact to its interval, in which it is interpolated, and ``WAITS[-1]`` at most.
    """
    waits = [counts[name] for name in _WAITED]
    left = part * sum(waits)
    if not left:
        return None
    lower = 0.0
    for upper, number in zip(WAITS, waits, strict=False):
        if number >= left:
            return lower + (upper - lower) * left / number
        left, lower = left - number, upper
    return lower
