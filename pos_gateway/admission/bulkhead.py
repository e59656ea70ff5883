"""A merchant's bulkhead: how many of the merchant's orders may be in flight.

Never more than the concurrency limit, and fewer during an overload: halved on a timeout, a 429 or a 503, raised by one
for every full window of answers, as in TCP (additive increase, multiplicative decrease). A lowered limit is kept only
if failures decrease; see ``limit_trial.py``.
"""

from dataclasses import dataclass, field
from math import inf

from pos_gateway.admission.limit_trial import LimitTrial

#: The allotment of a merchant before the fleet's first answer.
UNASKED = -1


@dataclass(slots=True, eq=False)
class Bulkhead:
    """A merchant's bulkhead. ``concurrency_limit`` 0 starts no order."""

    concurrency_limit: int
    in_flight: int = 0
    #: How many may be in flight in this process, and the same without the fleet's limit.
    limit: int = field(init=False)
    here: int = field(init=False)
    #: The limit by additive increase, multiplicative decrease; inf: no less than the ceiling.
    _adapted: float = inf
    #: This process's part of the concurrency limit, by the fleet; None: the fleet sets no limit.
    allotment: int | None = None
    #: Answers in time since the limit last changed, and whether the limit was reached since.
    _answers: int = 0
    _reached: bool = False
    #: Time of the last halving: calls started before say nothing new.
    _halved: float = -inf
    #: Whether a lower limit helps; None: no call has failed for a long time.
    _trial: LimitTrial | None = None

    def __post_init__(self) -> None:
        self._adapt(self._adapted)

    def agree(self, concurrency_limit: int, allotment: int | None) -> None:
        """Set the merchant's concurrency limit, and this process's part of the limit."""
        self.concurrency_limit, self.allotment = concurrency_limit, allotment
        self._adapt(self._adapted)

    @property
    def part(self) -> float:
        """The fraction of the concurrency limit that the fleet allots to this worker."""
        if self.allotment is None or not self.concurrency_limit:
            return 1.0
        return min(1.0, max(0, self.allotment) / self.concurrency_limit)

    @property
    def is_full(self) -> bool:
        """Whether a limit is reached; waiting for the fleet's first answer does not count."""
        counts = self.allotment is not None and self.allotment != UNASKED
        return self.in_flight >= (self.limit if counts else self.here)

    @property
    def is_short(self) -> bool:
        """Whether only the allotment is full."""
        return self.allotment is not None and self.allotment <= self.in_flight < self.here

    @property
    def is_lowered(self) -> bool:
        """Whether the limit is at most half of the concurrency limit, or of the fleet's part."""
        full, allotment = self.concurrency_limit, self.allotment
        if allotment is not None and 0 < allotment < full:
            full = allotment
        return 2 * self._adapted <= full

    def enter(self) -> bool:
        """An order has started; returns whether the limit is lowered."""
        self.in_flight += 1
        self._reached = self._reached or self.in_flight >= self.here
        return self._adapted < inf and self.is_lowered  # usually the first part decides

    def leave(self) -> None:
        """An order has finished."""
        self.in_flight -= 1

    def answered(self, started: float, *, lowered: bool | None) -> None:
        """The merchant answered in time a call that started under a lowered limit, or a full limit.

        None: a probe, which says nothing about either limit.
        """
        if self._trial is not None and lowered is not None:
            self._trial.record(started, failed=False, lowered=lowered)
            if self._trial.is_over:
                self._trial = None
        self._answers += 1
        if self._reached and self._answers >= self.here:
            self._adapt(self.here + 1 if self.here < self.concurrency_limit else inf)
            self._answers, self._reached = 0, False

    def failed_or_late(self) -> None:
        """A late or failed call: the window of answers begins anew."""
        self._answers = 0

    def overloaded(self, started: float, now: float, *, lowered: bool | None) -> None:
        """A call started then timed out, or was refused as one too many: halve the limit.

        Unless a lowered limit does not help: then the full limit returns for good.
        """
        self._answers, self._reached = 0, False
        if not self.concurrency_limit:
            return
        if self._trial is None:
            self._trial = LimitTrial()
        if lowered is not None:
            self._trial.record(started, failed=True, lowered=lowered)
        if self._adapted < inf and self._trial.is_useless:
            self._adapt(inf)
            self._trial.give_up()
        elif started >= self._halved and (self._adapted < inf or self._trial.may_help):
            lower = max(1, (self.limit if self.limit > 0 else self.here) // 2)
            self._trial.lower(lower, now)
            self._adapt(lower)
            self._halved = now

    def forget(self) -> None:
        """Forget the adapted limit."""
        self._adapt(inf)
        self._trial = None

    def _adapt(self, limit: float) -> None:
        self._adapted = limit
        self.here = int(min(self.concurrency_limit, limit))
        self.limit = self.here if self.allotment is None else min(self.here, self.allotment)
