"""The report of a pod and the answer of Redis in one sync."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

#: Maximum merchants in one sync, so that no sync blocks Redis for long.
MAX_ASKS = 500
#: Permits, calls and limits above this are invalid.
MAX_PERMITS = 10**9


@dataclass(frozen=True, slots=True)
class Ask:
    """The permits of a merchant that this pod holds, and that it could use."""

    merchant_id: str
    #: Its allotment, against which it may start calls now.
    permits: int
    #: Calls in flight; more than ``permits`` if its allotment was larger before.
    in_flight: int
    #: Permits it could use.
    wanted: int
    #: The merchant's concurrency limit, as this pod knows it. The lowest of all pods counts.
    limit: int


@dataclass(frozen=True, slots=True)
class Grant:
    """The answer to an ask."""

    #: What this pod holds from now on: what it asked with, or more.
    permits: int
    #: What it should hold. Less: other pods lack permits, so it releases the rest. More: it is
    #: owed these, as soon as other pods release them.
    target: int
    #: Some pod lacks permits: ask again at every beat, so that all pods' wishes are known.
    contended: bool


@dataclass(frozen=True, slots=True)
class Report:
    """A pod's report to Redis.

    It does no harm if it is sent twice, or if its answer is lost.
    """

    asks: Sequence[Ask] = ()
    #: Merchants whose breaker opened here, and for how many seconds from now.
    openings: Mapping[str, float] = field(default_factory=dict)
    #: Merchants whose breaker was closed here.
    closings: Collection[str] = ()
    #: The pod holds nothing but what it asks with: Redis drops its earlier record.
    anew: bool = False
    #: The pod leaves; its calls in flight count until they end, or for a lease.
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """Redis's answer to a report."""

    #: One for each ask, in their order.
    grants: Sequence[Grant]
    #: Merchants of this pod for which another pod lacks permits.
    contended: Sequence[str]
    #: Merchants whose breaker opened elsewhere, and for how many seconds from now.
    opened: Mapping[str, float]
    #: Merchants whose breaker was closed elsewhere.
    closed: Sequence[str]
    #: Seconds for which nothing is granted yet: pods may hold permits unknown to Redis.
    settling: float
    #: Redis has lost its data: this pod still holds its permits, and reports all of them again.
    forgotten: bool
    #: How many pods there are, about.
    pods: int


class Permits(Protocol):
    """Where the fleet's permits are kept."""

    def sync(self, report: Report) -> Answer:
        """One round trip, bounded in time.

        Raises:
            FleetUnavailable: it failed; Redis may or may not have received the report.
        """
        ...

    def close(self) -> None:
        """Close the connection. Idempotent; ``sync`` makes a new one."""
        ...
