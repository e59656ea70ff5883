"""Group commit: what many orders have to write at one moment shares one transaction.

A commit costs the database a write to disk and both sides a few round trips, whether it is one
order's or fifty's. Whoever comes while one is under way, or soon after it began, is in the next.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import structlog

from pos_gateway.domain.errors import LedgerUnavailable
from pos_gateway.telemetry import metrics

log = structlog.get_logger(__name__)

#: Operations in a transaction at most, and the bytes after which no other one comes into it.
MOST, MOST_BYTES = 256, 2**20
#: Seconds from the beginning of one transaction to that of the next, at least. Most of what one costs
#: this process is a round trip's, whatever is in it. The first to come after a pause does not wait.
GATHER = 0.0022
#: Seconds between two tries while the database is away, doubling up to the second.
RETRY_AFTER = (0.05, 1.0)
#: Seconds that closing waits for the database.
CLOSING = 5.0


class _Waiting:
    """One caller's operation, and its wait."""

    __slots__ = ("_settled", "error", "operation", "result", "until")

    def __init__(self, operation: Any, until: float) -> None:
        self.operation = operation
        self.until = until
        self.result: Any = None
        self.error: BaseException | None = None
        self._settled = threading.Event()

    def settle(self, result: Any = None, error: BaseException | None = None) -> None:
        self.result, self.error = result, error
        self._settled.set()

    def wait(self) -> Any:
        self._settled.wait()
        if self.error is not None:
            raise self.error
        return self.result


class GroupCommit:
    """Writes operations, many at once, on a thread of its own (a green one in a green worker).

    Args:
        write: writes operations in one go and returns the result of each. It raises
            LedgerUnavailable when the database is away, and is then called with the same again:
            it must find out what of it was written after all. Anything else: one is to blame.
        size: bytes that an operation takes in a transaction, as far as they count.
    """

    def __init__(
        self,
        write: Callable[[Sequence[Any]], Sequence[Any]],
        size: Callable[[Any], int] = lambda _: 0,
    ) -> None:
        self._write = write
        self._size = size
        self._waiting: deque[_Waiting] = deque()
        #: What the present transaction is made of.
        self._writing: list[_Waiting] = []
        self._something = threading.Event()
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def __call__(self, operation: Any, *, patience: float = inf) -> Any:
        """Return the operation's result once it is durable.

        Raises:
            LedgerUnavailable: the database was away for so many seconds, or this process is going
                down; whether it was written is not known.
            Exception: it cannot be written, a mistake of ours.
        """
        waiting = _Waiting(operation, time.monotonic() + patience)
        with self._lock:  # what is appended now is seen by the thread before it ends
            if self._closing.is_set():
                raise LedgerUnavailable("this process is going down")
            self._waiting.append(waiting)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
                self._thread.start()
        self._something.set()
        return waiting.wait()

    @property
    def operations(self) -> list[Any]:
        """What is being written, or will be: also what nobody waits for any more."""
        return [each.operation for each in (*self._writing, *self._waiting)]

    def close(self) -> bool:
        """Write what is there, if the database is; end the others' wait. Idempotent.

        Returns:
            Whether it has come to its end; the database may not answer at all.
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
        while True:
            closing = self._closing.is_set()  # looked at first: nobody appends after it
            if not self._waiting:
                if closing:
                    return
                self._something.wait()
                self._something.clear()
                continue
            # The order that gets an outcome's place claims in the same turn of the loop, after it.
            time.sleep(0)
            began = time.monotonic()
            batch = self._writing = self._batch()
            writes = len(batch)
            try:
                self._commit(batch)
            except LedgerUnavailable as error:
                metrics.ledger_failures.inc()
                if pause == RETRY_AFTER[0]:
                    log.warning("ledger.unavailable", error=str(error), operations=len(batch))
                self._waiting.extendleft(reversed(batch))
                self._end_waits(error)
                self._closing.wait(pause)
                pause = min(longest, pause * 2)
            else:
                metrics.ledger_commit_seconds.observe(time.monotonic() - began)
                metrics.ledger_commit_writes.observe(writes)
                pause = RETRY_AFTER[0]
                time.sleep(max(0.0, began + GATHER - time.monotonic()))

    def _batch(self) -> list[_Waiting]:
        """What goes into one transaction: at least one, and no more than may be written in one go."""
        batch: list[_Waiting] = []
        size = 0
        while self._waiting and len(batch) < MOST and size < MOST_BYTES:
            batch.append(self._waiting.popleft())
            size += self._size(batch[-1].operation)
        return batch

    def _commit(self, batch: list[_Waiting]) -> None:
        try:
            results = self._write([each.operation for each in batch])
        except LedgerUnavailable:
            raise
        except Exception as error:  # noqa: BLE001  (each of them has somebody waiting)
            if len(batch) == 1:
                batch[0].settle(error=error)
                return
            while batch:  # one is to blame, and the others are not to go without
                self._commit(batch[:1])
                del batch[0]
        else:
            for each, result in zip(batch, results, strict=True):
                each.settle(result)

    def _end_waits(self, error: LedgerUnavailable) -> None:
        """The database is away; whoever has no more patience is told."""
        now = time.monotonic()
        for _ in range(len(self._waiting)):  # others may append meanwhile
            each = self._waiting.popleft()
            if self._closing.is_set() or now >= each.until:
                each.settle(error=error)
            else:
                self._waiting.append(each)


def at_once(write: Callable[[Sequence[Any]], Sequence[Any]]) -> Callable[..., Any]:
    """The same without a thread, for a process that has one order at a time."""

    def commit(operation: Any, *, patience: float = inf) -> Any:
        until = time.monotonic() + patience
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
