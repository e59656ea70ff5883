"""What the order backends saw of a run, to be written down by one process and read by another."""

import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

#: What is timed of each order, from the moment at which it is about to be submitted: until the
#: broker has confirmed it, until its POS has it, and until its concluding event.
ENQUEUE, POS, EVENT = "enqueue", "pos", "event"
#: What backends follow: the gateway's events, and what the simulated merchants tell of orders.
EVENTS, FEED = "events", "feed"


class Times:
    """Of one thing and one class: when each began (seconds from the first order), and how long.

    Sixteen bytes for each: a run of hours has many.
    """

    def __init__(self, at: Iterable[float] = (), seconds: Iterable[float] = ()) -> None:
        self.at, self.seconds = array("d", at), array("d", seconds)

    def add(self, at: float, seconds: float) -> None:
        self.at.append(at)
        self.seconds.append(seconds)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Times) and (self.at, self.seconds) == (other.at, other.seconds)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Judged:
    """An objective, or an account that must be 0."""

    what: str
    wanted: str
    was: str
    met: bool


@dataclass(frozen=True, slots=True)
class RunRecord:
    """Times are seconds; the wall clock's only where it says so."""

    #: The wall-clock time from which orders came.
    began: float
    #: When the last one had come, and when there was nothing more to wait for: wall clock.
    last: float
    ended: float
    #: By what was timed, then by class.
    times: Mapping[str, Mapping[str, Times]]
    #: By how much each order was submitted later than it was due.
    late: Times
    #: Orders by class and outcome.
    outcomes: Mapping[str, Mapping[str, int]]
    #: Confirmed, and nothing was heard of them since.
    missing: Sequence[str]
    #: Made more than once by their merchants.
    doubled: Sequence[str]
    #: Said to be accepted, and not made by their merchants.
    phantom: Sequence[str]
    #: Reported as ended in two ways, of which the first was no doubt.
    contradicted: Sequence[str]
    #: Said to be rejected, expired or failed, and made by their merchants.
    denied: Sequence[str]
    #: Events that repeat what was known; they are published at least once.
    repeated: int
    #: Entries of the simulated merchants' records that came too fast to be followed.
    unseen: int
    #: Why ``EVENTS`` or ``FEED`` could be followed no more before the run was over.
    lost: Mapping[str, str]

    @property
    def sent(self) -> int:
        """Orders that backends tried to submit."""
        return sum(sum(counts.values()) for counts in self.outcomes.values())

    def accounts(self) -> Iterator[Judged]:
        """That no order was lost or made twice, and each outcome is true, as far as it is known."""
        accounts = {
            "orders made twice": self.doubled,
            "orders with two ends": self.contradicted,
            "orders made, and reported as rejected, expired or failed": self.denied,
        }
        # An order without an event, or a call, is missed only where all events, or calls, were read.
        if EVENTS not in self.lost:
            accounts["orders missing"] = self.missing
        if FEED not in self.lost and not self.unseen:
            accounts["orders accepted that no merchant has"] = self.phantom
        for what, orders in accounts.items():
            examples = (
                f" ({', '.join(orders[:3])}{', …' if len(orders) > 3 else ''})" if orders else ""
            )
            yield Judged(what, "0", f"{len(orders):,}{examples}", met=not orders)

    def write(self, path: Path) -> None:
        """Write it down as JSON."""
        path.write_text(json.dumps(self, default=_fields))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what ``write`` has written."""
        values = json.loads(path.read_text())
        values["late"] = Times(**values["late"])
        values["times"] = {
            what: {name: Times(**times) for name, times in classes.items()}
            for what, classes in values["times"].items()
        }
        return cls(**values)


def _fields(value: RunRecord | Times) -> dict[str, object]:
    if isinstance(value, Times):
        return {"at": value.at.tolist(), "seconds": value.seconds.tolist()}
    return {name: getattr(value, name) for name in value.__slots__}
