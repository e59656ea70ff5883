"""What a run showed: as it was seen, before any figure is made of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadtests.bench.accounting import Accounting
from loadtests.bench.attacks.attack import Attack
from loadtests.bench.attacks.producer import Production
from loadtests.bench.attacks.trial import Trial
from loadtests.bench.gauge import Reading


@dataclass(frozen=True, slots=True)
class Observation:
    """Times are of the wall clock."""

    trial: Trial
    #: The merchant of each order that was planned, by the order's id.
    merchant_of: Mapping[str, str]
    #: When each order that arrived first reached its merchant.
    arrived: Mapping[str, float]
    readings: Sequence[Reading]
    #: When the worker was started or, with a schedule, when the first order was published.
    began: float
    ended: float
    #: When the merchants got into trouble; None: before the beginning, or never.
    struck: float | None
    #: Requests in flight by group, as the merchants saw them.
    levels: Mapping[str, Sequence[tuple[float, int]]]
    #: What was published when, if orders came at a schedule.
    production: Production | None = None
    #: None if the candidate publishes no outcomes, or time was up.
    accounting: Accounting | None = None
    #: Orders a second at which the queue was filled, if it was.
    filled_at: float | None = None
    #: The most memory that the worker held, in MiB.
    peak: float = 0.0
    #: Why the run says nothing; empty if it does.
    fault: str = ""

    def spared(self, attack: Attack) -> list[str]:
        """The orders of the merchants that stay healthy in this attack, be it this run's or not."""
        return [
            order_id
            for order_id, merchant_id in self.merchant_of.items()
            if not attack.troubles(merchant_id)
        ]


def unaccounted(accounting: Accounting | None) -> str:
    """What the gateway lost or doubled, which makes a run say nothing about it; empty: nothing."""
    return "" if accounting is None or accounting.adds_up else str(accounting)
