"""What limited a run: where it could not have been faster, or was not the gateway's at all."""

from collections.abc import Iterator
from dataclasses import dataclass

from loadtests.bench.gauge import BROKER, DATABASE, LEFT, PRODUCER, SIMULATOR, WAITED, WORKER
from loadtests.load.figures import SLOTS, STRETCH, busiest, busy, highest, late
from loadtests.load.record import EVENTS
from loadtests.load.run import Run
from loadtests.load.scraper import Sample

#: What limited a run of which too little was seen.
UNKNOWN = "unknown"
#: Shares of a core, over a stretch.
_WORKER_FULL, _OTHERS_FULL = 0.95, 0.90
#: Share of the time that the worker may have to wait for its core.
_MAY_WAIT = 0.10


@dataclass(frozen=True, slots=True)
class Limit:
    """One thing that limited a run."""

    what: str
    #: With the numbers that say so.
    sentence: str
    #: It is of the test's own making: the run says nothing about the gateway.
    spoils: bool = False


def limits(run: Run) -> list[Limit]:
    """What limited the run, what spoils it first; nothing if the gateway took every order at once."""
    return [*_of_the_test(run), *_of_the_gateway(run)]


def _of_the_test(run: Run) -> Iterator[Limit]:
    tolerance = run.scenario.tolerance
    if (behind := late(run)) > tolerance:
        yield Limit(
            "producer",
            f"One order in a hundred was submitted {_ms(behind)} or more after it was due; "
            f"{_ms(tolerance)} would do. Submit fewer, or run the producer on a machine of its own.",
            spoils=True,
        )
    if (share := busiest(run, PRODUCER)) >= _OTHERS_FULL:
        yield Limit(
            "producer",
            f"It used {share:.0%} of its core for {STRETCH:g} s. Submit fewer.",
            spoils=True,
        )
    if (behind := run.simulator_late["p99"]) > tolerance:
        yield Limit(
            "simulator",
            f"One reply in a hundred came {_ms(behind)} or more later than its merchant's profile "
            f"says; {_ms(tolerance)} would do.",
            spoils=True,
        )
    if (share := busiest(run, SIMULATOR)) >= _OTHERS_FULL:
        yield Limit("simulator", f"It used {share:.0%} of its core for {STRETCH:g} s.", spoils=True)
    for what, why in run.record.lost.items():
        part = "producer" if what == EVENTS else "simulator"
        yield Limit(part, f"Its {what} could be followed no more: {why}.", spoils=True)
    if unseen := run.record.unseen:
        yield Limit(
            "simulator",
            f"{unseen:,} entries of its records came too fast to be followed: of which orders is not known.",
            spoils=True,
        )
    seconds, read = run.record.last - run.record.began, len(_samples(run))
    if read < seconds / 2:
        yield Limit(
            UNKNOWN,
            f"In {seconds:.0f} s the worker's metrics could be read {read} times.",
            spoils=True,
        )


def _of_the_gateway(run: Run) -> Iterator[Limit]:
    if (share := busiest(run, WORKER)) >= _WORKER_FULL:
        yield Limit("worker's CPU", f"It used {share:.0%} of its core for {STRETCH:g} s.")
    if (share := busy(run, WAITED)) > _MAY_WAIT:
        yield Limit(
            "shared cores",
            f"The worker was ready to run and had no core for {share:.0%} of the time. "
            "Stop what else runs on this machine.",
        )
    if (share := busiest(run, LEFT)) >= _OTHERS_FULL:
        yield Limit(
            "machine",
            f"The cores that the worker leaves to everything else were {share:.0%} busy for "
            f"{STRETCH:g} s.",
        )
    for part in (BROKER, DATABASE):
        if (share := busiest(run, part)) >= _OTHERS_FULL:
            yield Limit(part, f"It used {share:.0%} of a core for {STRETCH:g} s.")
    samples = _samples(run)
    if short := sum(each.figures.get("waiting.slot", 0) > 0 for each in samples):
        yield Limit(
            "slots",
            f"Orders waited for one of the {highest(run, *SLOTS):.0f} in {short} of {len(samples)} "
            f"samples, {highest(run, 'waiting.slot'):.0f} at most.",
        )
    if held_up := highest(run, "waiting.merchant", "parked_orders"):
        yield Limit(
            "merchants",
            f"Up to {held_up:.0f} orders waited for merchants that were at their limits or in "
            "trouble, in the worker or parked. They hold no slots.",
        )


def _samples(run: Run) -> list[Sample]:
    """Those of the time in which orders came."""
    return [each for each in run.samples if run.record.began <= each.at <= run.record.last]


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms"
