"""Group commit: the writes of many orders share a transaction.

A commit costs the database a write to disk and both sides a few round trips, for a single order or for
fifty. Operations that arrive during a transaction, or soon after its beginning, share the next transaction.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from math import inf
from typing import Any

import structlog

from pos_gateway.domain.errors import LedgerLocked, LedgerUnavailable, copy_of
from pos_gateway.telemetry import metrics

log = structlog.get_logger(__name__)

#: Maximum operations in a transaction, and the bytes after which it is full.
MAX_OPERATIONS, MAX_BYTES = 256, 2**20
#: Minimum seconds from the start of a transaction to the start of the next. The round trip is most
#: of a transaction's cost to this process. The first operation after a pause does not wait.
GATHER = 0.0022
#: Maximum seconds of a patient operation's wait for the next impatient operation, to share a
#: transaction; and the seconds since the last impatient operation but one during which a patient
#: operation waits at all.
LINGER, RECENT = 0.02, 0.04
#: Seconds until the first retry while the database is away, doubling up to the second number.
RETRY_AFTER = (0.05, 1.0)
#: Seconds for ``close`` to wait for the database.
CLOSING = 5.0


class _Waiting:
    """A caller's operation, and the caller's wait."""

    __slots__ = ("error", "operation", "result", "settled", "until")

    def __init__(self, operation: Any, until: float) -> None:
        self.operation = operation
        self.until = until
        self.result: Any = None
        self.error: BaseException | None = None
        self.settled = threading.Event()

    def settle(self, result: Any = None, error: BaseException | None = None) -> None:
        self.result, self.error = result, error
        self.settled.set()

    def is_settled_within(self, seconds: float) -> bool:
        return self.settled.wait(seconds)


class GroupCommit:
    """Writes operations in batches, on its own thread (a green thread in a green worker).

    Args:
        write: writes operations in a transaction and returns their results. After LedgerUnavailable
            (the database is away), ``write`` gets the same operations again, and must detect
            operations already written. After LedgerLocked, the operations named by the error are
            written later, and the rest at once. After any other exception, or without names,
            operations are written singly.
        size: bytes that an operation adds to a transaction.
        order_of: the order that an operation writes. Operations of an order keep their sequence.
    """

    def __init__(
        self,
        write: Callable[[Sequence[Any]], Sequence[Any]],
        size: Callable[[Any], int] = lambda _: 0,
        order_of: Callable[[Any], Hashable] = lambda _: None,
    ) -> None:
        self._write = write
        self._order_of = order_of
        self._size = size
        #: The arrivals of the last two impatient operations.
        self._came = (-inf, -inf)
        #: An operation is to be written now, together with all waiting operations.
        self._is_due = False
        self._waiting: deque[_Waiting] = deque()
        #: The present transaction's operations.
        self._writing: list[_Waiting] = []
        #: Operations on rows under another session's lock, and the time of their next try.
        self._locked: deque[_Waiting] = deque()
        self._locked_until = inf
        self._something = threading.Event()
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def __call__(self, operation: Any, *, timeout: float = inf, is_patient: bool = False) -> Any:
        """Return the operation's result once durable.

        Nothing but an acknowledgement waits for a patient operation, which is written together with
        the next impatient operation.

        Raises:
            LedgerUnavailable: the database was away for ``timeout`` seconds, or this process is
                stopping; the write may or may not have succeeded.
            Exception: the operation cannot be written: a bug.
        """
        now = time.monotonic()
        waiting = _Waiting(operation, now + timeout)
        is_settled = False
        with self._lock:  # before its end the thread sees all operations appended here
            if self._closing.is_set():
                raise LedgerUnavailable("this process is going down")
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="ledger", daemon=True)
                thread.start()  # may fail: the next caller tries again
                self._thread = thread
            self._waiting.append(waiting)
        try:
            if not is_patient:
                self._came = self._came[1], now
            elif now - self._came[0] < RECENT:
                is_settled = waiting.is_settled_within(LINGER)
        finally:
            if not is_settled:  # also when the caller is killed
                self._is_due = True
                self._something.set()
        waiting.settled.wait()
        if waiting.error is not None:
            raise copy_of(waiting.error)
        return waiting.result

    @property
    def operations(self) -> list[Any]:
        """Operations being written or queued, with or without a caller."""
        return [each.operation for each in (*self._writing, *self._waiting, *self._locked)]

    def later(self, operations: Sequence[Any]) -> None:
        """Write operations on locked rows later, for no caller. Called by ``write`` only."""
        self._locked += [_Waiting(each, inf) for each in operations]
        self._locked_until = min(self._locked_until, time.monotonic() + RETRY_AFTER[1])

    def close(self) -> bool:
        """Write the queued operations; if the database is away, fail the operations. Idempotent.

        Returns:
            Whether the thread has ended; the database may not answer at all.
        """
        with self._lock:
            self._closing.set()
        self._something.set()
        if self._thread is None:
            return True
        self._thread.join(CLOSING)
        return not self._thread.is_alive()

    def _run(self) -> None:
        pause, longest = RETRY_AFTER
        not_before = -inf
        while True:
            closing = self._closing.is_set()  # read first: no operation is appended after closing
            if self._locked and (closing or time.monotonic() >= self._locked_until):
                self._waiting.extendleft(reversed(self._locked))
                self._locked.clear()
                self._locked_until, self._is_due = inf, True
            if closing and not self._waiting:
                return
            if not (self._waiting and (closing or self._is_due)):
                left = self._locked_until - time.monotonic() if self._locked else None
                self._something.wait(left)
                self._something.clear()
                continue
            # Yield, at least: the order that gets a finished order's slot claims in the same turn
            # of the loop. Sleep here, where an operation waits: a sleep after a commit would wake
            # an idle process for nothing.
            time.sleep(max(0.0, not_before - time.monotonic()))
            began = time.monotonic()
            self._is_due = False  # first: an operation that arrives later may miss this batch
            batch = self._writing = self._batch()
            if self._waiting:
                self._is_due = True
            if not batch:
                continue
            writes = len(batch)
            try:
                self._commit(batch)
            except LedgerLocked as error:
                self._put_aside(batch, error)
            except LedgerUnavailable as error:
                metrics.ledger_failures.inc()
                if pause == RETRY_AFTER[0]:
                    log.warning("ledger.unavailable", error=str(error), operations=len(batch))
                self._waiting.extendleft(reversed(batch))
                self._is_due = True
                self._end_waits(self._waiting, error)
                self._closing.wait(pause)
                pause = min(longest, pause * 2)
            else:
                metrics.ledger_commit_seconds.observe(time.monotonic() - began)
                metrics.ledger_commit_writes.observe(writes)
                pause, not_before = RETRY_AFTER[0], began + GATHER

    def _batch(self) -> list[_Waiting]:
        """The next transaction's operations, within the limits; no operation if all wait for a lock."""
        batch: list[_Waiting] = []
        size = 0
        locked = self._locked_orders()
        while self._waiting and len(batch) < MAX_OPERATIONS and size < MAX_BYTES:
            each = self._waiting.popleft()
            if locked and self._order_of(each.operation) in locked:
                self._locked.append(each)
                continue
            batch.append(each)
            size += self._size(each.operation)
        return batch

    def _locked_orders(self) -> set[Hashable]:
        return {self._order_of(each.operation) for each in self._locked} - {None}

    def _put_aside(self, batch: list[_Waiting], error: LedgerLocked) -> None:
        """Have the locked operations wait, and the rest written at once."""
        metrics.ledger_failures.inc()
        named = {id(each) for each in error.operations}
        locked = [each for each in batch if id(each.operation) in named or len(batch) == 1]
        self._locked_until = min(self._locked_until, time.monotonic() + RETRY_AFTER[1])
        self._locked += locked
        self._waiting.extendleft(each for each in reversed(batch) if each not in locked)
        self._is_due = True
        self._end_waits(self._locked, error)

    def _commit(self, batch: list[_Waiting]) -> None:
        try:
            results = self._write([each.operation for each in batch])
        except LedgerUnavailable as error:
            if not isinstance(error, LedgerLocked) or error.operations or len(batch) == 1:
                raise
            self._commit_singly(batch)
        except Exception as error:  # noqa: BLE001  (each has a waiting caller)
            if len(batch) == 1:
                batch[0].settle(error=error)
            else:
                self._commit_singly(batch)
        else:
            for each, result in zip(batch, results, strict=True):
                each.settle(result)

    def _commit_singly(self, batch: list[_Waiting]) -> None:
        """Write operations singly: one is to blame, and the rest are written."""
        while batch:
            try:
                if self._order_of(batch[0].operation) in self._locked_orders():
                    self._locked.append(batch[0])
                else:
                    self._commit(batch[:1])
            except LedgerLocked as error:
                self._put_aside(batch[:1], error)
            del batch[0]

    def _end_waits(self, waiting: deque[_Waiting], error: LedgerUnavailable) -> None:
        """Fail the operations at the end of their wait: the database is away, or rows are locked."""
        now = time.monotonic()
        for _ in range(len(waiting)):  # callers may append meanwhile
            each = waiting.popleft()
            if self._closing.is_set() or now >= each.until:
                each.settle(error=error)
            else:
                waiting.append(each)


def at_once(write: Callable[[Sequence[Any]], Sequence[Any]]) -> Callable[..., Any]:
    """Commits in the calling thread, for a process with a single caller: a prefork worker's parent."""

    def commit(operation: Any, *, timeout: float = inf, is_patient: bool = False) -> Any:
        until = time.monotonic() + timeout
        pause, longest = RETRY_AFTER
        while True:
            try:
                return write([operation])[0]
            except LedgerUnavailable:
                if time.monotonic() >= until:
                    raise
                time.sleep(pause)
                pause = min(longest, pause * 2)

    return commit
