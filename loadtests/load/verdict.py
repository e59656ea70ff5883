"""Whether a run was as wanted, or says anything at all."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from math import isinf

from loadtests.load.figures import seconds, share_accepted
from loadtests.load.histogram import percentile
from loadtests.load.limits import UNKNOWN, Limit, limits
from loadtests.load.record import EVENTS, FEED
from loadtests.load.run import Run


class Word(Enum):
    """The verdict, with the exit code of the process. 2 is that of a mistake in what was asked."""

    MET = 0
    MISSED = 1
    NO_RESULT = 3


@dataclass(frozen=True, slots=True)
class Judged:
    """One objective."""

    what: str
    wanted: str
    was: str
    met: bool


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
    return Verdict(list(_accounts(run)), list(_objectives(run)), limits(run))


def _accounts(run: Run) -> Iterator[Judged]:
    record = run.record
    accounts = {
        "orders made twice": record.doubled,
        "orders with two ends": record.contradicted,
        "orders made, and told to be rejected, expired or failed": record.denied,
    }
    # An order without an event, or a call, is missed only where all events, or calls, were read.
    if EVENTS not in record.lost:
        accounts["orders missing"] = record.missing
    if FEED not in record.lost and not record.unseen:
        accounts["orders accepted that no merchant has"] = record.phantom
    for what, orders in accounts.items():
        examples = f" ({', '.join(orders[:3])}{', …' if len(orders) > 3 else ''})" if orders else ""
        yield Judged(what, "0", f"{len(orders):,}{examples}", met=not orders)


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
