"""What operators do with the canary: change its split, move all merchants back, and ask how it does."""

import time
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Engine

from pos_gateway.broker.queue_state import QueueState, queue_states
from pos_gateway.canary.evidence import gather
from pos_gateway.canary.verdict import CanaryVerdict, Costs, judge
from pos_gateway.domain.errors import AdminError
from pos_gateway.domain.split import Split
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.routing import splits

#: Maximum seconds of orders that are compared; and seconds that an order may take until it counts.
LONGEST, SETTLE = 3600.0, 30.0


@dataclass(frozen=True, slots=True)
class Changed:
    """A change of the split."""

    before: Split
    after: Split

    def __str__(self) -> str:
        return f"{self.after} (before: {self.before})"


def change(
    broker_url: str,
    unset: float,
    operator: str,
    percent: float,
    *,
    pins: Collection[str] = (),
    unpins: Collection[str] = (),
    seen: datetime | bool | None = False,
) -> Changed:
    """Move merchants to the canary, or back.

    Args:
        unset: the percentage in force if no split was published yet.
        pins, unpins: pilots to add and to remove.
        seen: when the split was changed that the operator has seen; False: whatever it is.

    Raises:
        AdminError: no worker consumes ``orders.canary``, a merchant is no pilot, or another operator was faster.
        PublishError, InvalidSplit: it cannot be read, or written.
    """
    _, theirs = queue_states(broker_url)
    with splits.changing(broker_url) as publish:
        before = splits.in_force(broker_url, unset)
        if seen is not False and seen != before.changed_at:
            raise AdminError(
                f"{before.changed_by} has changed it meanwhile, to {before}: nothing was changed. Look at it again"
            )
        if strangers := sorted(set(unpins) - before.pins):
            raise AdminError(f"{', '.join(strangers)}: no pilot, so there is nothing to unpin")
        kept = (before.pins | set(pins)) - set(unpins)
        split = before.changed(operator, datetime.now(UTC), percent=percent, pins=kept)
        if split.takes_any and not theirs.consumers:
            raise AdminError(
                "no worker consumes orders.canary: start a canary worker first "
                "(pos-gateway worker -Q orders.canary)"
            )
        publish(split)
    return Changed(before, split)


def abort(broker_url: str, operator: str) -> None:
    """Move all merchants back at once. Raises PublishError."""
    with splits.changing(broker_url, at_once=True) as publish:
        publish(Split().changed(operator, datetime.now(UTC)))


def left_behind(broker_url: str) -> str | None:
    """What is in the canary's queue that no worker takes; None: nothing. Raises PublishError."""
    _, queue = queue_states(broker_url)
    if queue.consumers:
        return None
    return (
        f"no worker consumes orders.canary, where {queue.ready} messages are and others "
        "may come back to: start a worker without -Q"
    )


def verdict(
    split: Split,
    queues: tuple[QueueState, QueueState],
    database: Engine,
    payloads: Payloads,
    cpu: tuple[Costs, Costs] | None = None,
) -> CanaryVerdict:
    """Whether the canary does as well as the stable workers. Raises AdminError: it cannot be judged."""
    if (why_not := unjudged(split)) is not None:
        raise AdminError(why_not)
    assert split.changed_at is not None  # noqa: S101  (``unjudged`` has looked)
    now, changed_at = time.time(), split.changed_at.timestamp()
    since = max(changed_at, now - LONGEST)
    times = {"changed_at": changed_at, "since": since, "until": now - SETTLE}
    sides = gather(database, payloads, split, **times)
    stable, canary = queues
    return judge(
        *sides,
        cpu,
        own_workers=canary.consumers - stable.consumers,
        stranded=0 if canary.consumers else canary.ready,
    )


def unjudged(split: Split) -> str | None:
    """Why there is nothing to judge; None: there is."""
    if not split.takes_any:
        return "no merchant's orders go to the canary"
    if split.changed_at is None:
        return "since when they do is not known; a change of its share notes it (pos-gateway canary set)"
    return None
