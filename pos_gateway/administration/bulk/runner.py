"""Runs a bulk run: acts on one item after the other, at a rate, until all are done or it is stopped."""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from pos_gateway.administration.bulk.run import BulkItem, BulkRun, problem_of
from pos_gateway.administration.bulk.store import BulkStore, Finished, LeaseLost, RunClaim
from pos_gateway.administration.bulk.work import Task, Work
from pos_gateway.administration.refusal import Refusal
from pos_gateway.domain.errors import AdminError, BrokerUnavailable

#: Seconds between two renewals of the lease while no item is acted on.
RENEW = 3.0
#: Seconds of a wait, after which a stop is noticed.
_SLICE = 0.25
#: Seconds without a broker until the run stops, and between two attempts to reach it.
BROKER_TIMEOUT, RECONNECT_AFTER = 60.0, 1.0


@dataclass(slots=True)
class Watcher:
    """How the process that runs a run follows it, and stops it.

    Args:
        is_stopped: whether the process is to stop it.
        why_not: why it may not go on, for its record; None: it may.
        on_item: called after each item that was acted on.
    """

    is_stopped: Callable[[], bool] = lambda: False
    why_not: Callable[[], str | None] = lambda: None
    on_item: Callable[[BulkItem, Refusal | None], None] = lambda *_: None


class BulkRunner:
    """Runs one claimed run on this thread. Any process can: a command, or a thread of the server.

    Args:
        store: where the run is.
        claim: the run, leased to this process.
        work: what it acts on.
        rate: maximum items a second.
        watcher: follows the progress.
        clock: seconds that only rise.
    """

    def __init__(
        self,
        store: BulkStore,
        claim: RunClaim,
        work: Work,
        *,
        rate: float,
        watcher: Watcher,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._claim = claim
        self._work = work
        self._every = 1.0 / rate
        self._watcher = watcher
        self._clock = clock
        #: The item that was acted on, until it is recorded with the next one's beginning.
        self._finished: Finished | None = None
        self._next_at = self._renewed_at = clock()
        #: When the run stops unless the broker is back: a while after an item was last acted on.
        self._broker_until = clock() + BROKER_TIMEOUT

    def run(self) -> BulkRun:
        """Act on all items that are left; returns the run as it stands then.

        Raises:
            LeaseLost: another process has resumed it meanwhile.
            AdminError, PublishError: it had to stop; it is stored why, and it can be resumed.
        """
        try:
            while not self._is_through():
                pass
        except LeaseLost:
            raise
        except _Stopped:
            return self._store.end(self._claim, self._finished)
        except BaseException as error:
            self._store.end(self._claim, self._finished, problem=problem_of(error))
            raise
        return self._store.complete(self._claim, self._finished)

    def _is_through(self) -> bool:
        """Act on the items that are left; False: the broker was away, and some are still left."""
        run = self._claim.run
        note = f"run {run.id}; "
        if self._finished is not None:
            self._step(None)  # recorded first: it must not be among those that are left
        items = self._store.left(run.id)
        try:
            with closing(self._work.tasks(items, run.operator, note)) as tasks:  # type: ignore[type-var]
                for task in tasks:
                    if task is not None:
                        self._act(task)
                        self._broker_until = self._clock() + BROKER_TIMEOUT
                    self._require_going_on()
        except BrokerUnavailable:
            if self._clock() >= self._broker_until:
                raise
            self._pause(RECONNECT_AFTER, time.sleep)
            return False
        return True

    def _act(self, task: Task) -> None:
        while (wait := self._next_at - self._clock()) > 0:
            self._pause(min(wait, _SLICE), self._work.wait)
        self._next_at = max(self._next_at, self._clock()) + self._every
        self._require_not_stopped()
        self._step(task.item)
        refusal = task.act()
        self._finished = Finished(task.item.number, refusal)
        self._watcher.on_item(task.item, refusal)

    def _pause(self, seconds: float, wait: Callable[[float], None]) -> None:
        until = self._clock() + seconds
        while (left := until - self._clock()) > 0:
            wait(min(left, _SLICE))
            self._require_going_on()

    def _require_going_on(self) -> None:
        self._require_not_stopped()
        if self._clock() >= self._renewed_at + RENEW:
            self._step(None)

    def _require_not_stopped(self) -> None:
        if self._watcher.is_stopped():
            raise _Stopped
        if (why_not := self._watcher.why_not()) is not None:
            raise AdminError(why_not)

    def _step(self, begins: BulkItem | None) -> None:
        finished, at = self._finished, self._clock()
        goes_on = self._store.step(self._claim, finished, begins)
        self._finished, self._renewed_at = None, at
        if not goes_on:
            raise _Stopped


class _Stopped(AdminError):
    """Raised when the run is to stop: by an operator, or with its process."""

    def __init__(self) -> None:
        super().__init__("stopped")
