"""What a pod and Redis tell each other in one sync."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

#: Merchants in one sync at most, so that no sync keeps Redis from others for long.
MOST_ASKS = 500
#: Permits, calls and limits above this are not believed.
MOST_PERMITS = 10**9


@dataclass(frozen=True, slots=True)
class Ask:
    """What this pod holds of a merchant's permits and wishes to hold."""

    merchant_id: str
    #: What it is allotted, and may start calls against at this moment.
    permits: int
    #: Calls under way; more than ``permits`` if it was allotted more before.
    in_flight: int
    #: What it could use.
    wish: int
    #: What is agreed with the merchant, as this pod knows it. Between pods the lowest counts.
    limit: int


@dataclass(frozen=True, slots=True)
class Grant:
    """What became of an ask."""

    #: What this pod holds from now on: what it asked with, or more.
    permits: int
    #: What it should hold. Less: others lack permits, and it is to give these back. More: it is
    #: owed these, as soon as others give them back.
    target: int
    #: Some pod lacks permits: ask again at every beat, so that everybody's wishes are known.
    contended: bool


@dataclass(frozen=True, slots=True)
class Report:
    """What a pod tells.

    A report does no harm when it is told twice, or when its answer is lost.
    """

    asks: Sequence[Ask] = ()
    #: Merchants whose breaker opened here, and for how many seconds from now.
    openings: Mapping[str, float] = field(default_factory=dict)
    #: Merchants whose breaker was closed here.
    closings: Collection[str] = ()
    #: The pod holds nothing but what it asks with: what Redis may remember of it is void.
    anew: bool = False
    #: The pod goes; what it still has under way counts until it is done, or for a lease.
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """What Redis tells."""

    #: One for each ask, in their order.
    grants: Sequence[Grant]
    #: Merchants of this pod of which another pod lacks permits.
    contended: Sequence[str]
    #: Merchants whose breaker opened elsewhere, and for how many seconds from now.
    opened: Mapping[str, float]
    #: Merchants whose breaker was closed elsewhere.
    closed: Sequence[str]
    #: Seconds for which nothing is granted yet: pods may hold what Redis does not know of.
    settling: float
    #: Redis has lost its memory: all that this pod holds is to be told again. It holds it still.
    forgotten: bool
    #: How many pods there are, about.
    pods: int


class Permits(Protocol):
    """Where the fleet's permits are kept."""

    def sync(self, report: Report) -> Answer:
        """One round trip, bounded in time.

        Raises:
            FleetUnavailable: it failed; what was told may or may not have been heard.
        """
        ...

    def close(self) -> None:
        """Let go of the connection. Idempotent; ``sync`` makes a new one."""
        ...
