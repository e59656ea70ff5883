"""Figures of a run, from what was seen of it."""

from math import inf

from loadtests.bench.gauge import used_between
from loadtests.load.histogram import percentile
from loadtests.load.run import Run

#: Seconds that a part must be busy for, to be what limits a run: a collection of garbage is over
#: sooner.
STRETCH = 5.0


def sent(run: Run, name: str) -> int:
    """Orders of a class that backends tried to submit."""
    return sum(run.record.outcomes.get(name, {}).values())


def seconds(run: Run, what: str, name: str) -> list[float]:
    """How long it took for each order of a class, ascending.

    Infinite for those to which it did not happen: half of a class's orders that never arrive must
    not make the others' figures those of all.
    """
    times = run.record.times[what].get(name)
    known = sorted(times.seconds) if times else []
    return known + [inf] * (sent(run, name) - len(known))


def share_accepted(run: Run, name: str) -> float:
    """Accepted orders of a class, of those sent."""
    return run.record.outcomes.get(name, {}).get("accepted", 0) / max(1, sent(run, name))


def late(run: Run) -> float:
    """Seconds by which the latest hundredth of the orders was submitted late, or more."""
    return percentile(sorted(run.record.late.seconds) or [0.0], 0.99)


def busy(run: Run, part: str) -> float:
    """The share of a core that a part used, from the first order to the last."""
    return _busy_between(run, part, run.record.began, run.record.last)


def busiest(run: Run, part: str) -> float:
    """The same of the stretch in which it used most."""
    first, last = run.record.began, max(run.record.last, run.record.began + STRETCH)
    starts = [each.at for each in run.readings if first <= each.at <= last - STRETCH]
    return max(_busy_between(run, part, at, at + STRETCH) for at in [first, *starts])


def memory(run: Run, part: str) -> list[float]:
    """MiB that a part held, at each look while orders came."""
    return [
        each.held.get(part, 0.0)
        for each in run.readings
        if run.record.began <= each.at <= run.record.last
    ]


#: Slots that are held, by whose orders; and all of them.
TAKEN = ("slots.light", "slots.heavy", "slots.silent")
SLOTS = ("slots.free", *TAKEN)


def highest(run: Run, *names: str) -> float:
    """The highest sum of these figures of the worker's metrics."""
    sums = (sum(each.figures.get(name, 0.0) for name in names) for each in run.samples)
    return max(sums, default=0.0)


def _busy_between(run: Run, part: str, start: float, end: float) -> float:
    return used_between(run.readings, start, end).get(part, 0.0) / max(end - start, 1e-9)
