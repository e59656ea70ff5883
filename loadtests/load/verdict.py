"""Whether a run was as wanted, what limited it, and whether it says anything at all."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from math import isinf

from loadtests.bench.gauge import BROKER, DATABASE, LEFT, PRODUCER, SIMULATOR, WAITED, WORKER
from loadtests.load.figures import (
    SLOTS,
    STRETCH,
    busiest,
    busy,
    highest,
    late,
    seconds,
    share_accepted,
)
from loadtests.load.histogram import percentile
from loadtests.load.run import Run
from loadtests.load.scraper import PERIOD, Sample
from pos_gateway.demo.record import EVENTS, Judged

#: What limited a run of which too little was seen.
UNKNOWN = "unknown"
#: Shares of a core, over a stretch.
_WORKER_FULL, _OTHERS_FULL = 0.95, 0.90
#: Share of the time that the worker may have to wait for its core.
_MAY_WAIT = 0.10


class Word(Enum):
    """The verdict, with the exit code of the process. 2 is that of a mistake in what was asked."""

    MET = 0
    MISSED = 1
    NO_RESULT = 3


@dataclass(frozen=True, slots=True)
class Limit:
    """One thing that limited a run."""

    what: str
    #: With the numbers that say so.
    sentence: str
    #: It is of the test's own making: the run says nothing about the gateway.
    spoils: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """Everything that is judged of a run."""

    #: That no order was lost or made twice, and what was told of each is true; it must hold in any
    #: run, as far as it is known.
    accounts: Sequence[Judged]
    objectives: Sequence[Judged]
    limits: Sequence[Limit]

    @property
    def spoilt(self) -> Sequence[Limit]:
        """Why the run says nothing about the gateway."""
        return [each for each in self.limits if each.spoils]

    @property
    def word(self) -> Word:
        """A lost order is one however the load came to be; a latency is not."""
        if not all(each.met for each in self.accounts):
            return Word.MISSED
        if self.spoilt:
            return Word.NO_RESULT
        return Word.MET if all(each.met for each in self.objectives) else Word.MISSED

    @property
    def sentence(self) -> str:
        """The verdict in a sentence."""
        missed = [each.what for each in (*self.accounts, *self.objectives) if not each.met]
        match self.word:
            case Word.MET:
                return "Every objective was met."
            case Word.MISSED:
                return f"Missed: {', '.join(missed)}."
            case Word.NO_RESULT:
                spoilers = dict.fromkeys(each.what for each in self.spoilt)
                if UNKNOWN in spoilers:
                    return "This is no result: what limited it is unknown."
                by = " and the ".join(spoilers)
                return f"This is no result: what was measured is the {by}, not the gateway."


def judge(run: Run) -> Verdict:
    """The verdict on a run."""
    return Verdict(list(run.record.accounts()), list(_objectives(run)), limits(run))


def _objectives(run: Run) -> Iterator[Judged]:
    for name, merchants in run.scenario.merchants.items():
        for objective, limit in merchants.objectives.items():
            if objective == "accepted":
                share = share_accepted(run, name)
                yield Judged(
                    f"{name}: accepted", f">= {limit:.2%}", f"{share:.2%}", met=share >= limit
                )
                continue
            what, _, percent = objective.partition("_p")
            ordered = seconds(run, what, name)
            was = percentile(ordered, int(percent) / 100) if ordered else float("inf")
            yield Judged(
                f"{name}: {TITLES[what]}, p{percent}",
                f"<= {shown(limit)}",
                shown(was),
                was <= limit,
            )


#: How what is timed is called.
TITLES = {"enqueue": "enqueue", "pos": "order → POS", "event": "order → event"}


def shown(duration: float) -> str:
    """Seconds for a person."""
    if isinf(duration):
        return "never"
    return f"{duration:.2f} s" if duration >= 1 else f"{duration * 1000:.1f} ms"


def limits(run: Run) -> list[Limit]:
    """What limited the run, what spoils it first; nothing if the gateway took every order at once."""
    return [*_of_the_test(run), *_of_the_gateway(run)]


def _of_the_test(run: Run) -> Iterator[Limit]:
    tolerance = run.scenario.tolerance
    if (behind := late(run)) > tolerance:
        yield Limit(
            "producer",
            f"One order in a hundred was submitted {shown(behind)} or more after it was due; "
            f"{shown(tolerance)} would do. Submit fewer, or run the producer on a machine of its own.",
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
            f"One reply in a hundred came {shown(behind)} or more later than its merchant's profile "
            f"says; {shown(tolerance)} would do.",
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
    lasted, read = run.record.last - run.record.began, len(_samples(run))
    if read < lasted // (2 * (PERIOD + tolerance)):
        yield Limit(
            UNKNOWN,
            f"In {lasted:.0f} s the worker's metrics could be read {read} times.",
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
