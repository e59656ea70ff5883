"""Threads of a server that preview bulk runs, and run them.

A run is leased in the database to the process that has it: another server, or a command, can resume it
once this one has stopped it, or has died.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from pos_gateway.administration.bulk.filter import BulkFilter
from pos_gateway.administration.bulk.operations import BulkOperations
from pos_gateway.administration.bulk.options import BulkOptions
from pos_gateway.administration.bulk.run import BulkAction, BulkRun
from pos_gateway.administration.bulk.runner import Watcher
from pos_gateway.domain.errors import AdminError, PosGatewayError

log = structlog.get_logger(__name__)

#: Previews of a server that wait or are made; another one is refused.
PREVIEWS = 4
#: Seconds for which a stop waits for runs and previews to end.
STOP_TIMEOUT = 10.0


class BulkThreads:
    """Starts previews and runs, which go on in the background. Safe from threads.

    Args:
        operations: previews and runs them.
    """

    def __init__(self, operations: BulkOperations) -> None:
        self._operations = operations
        self.store = operations.store
        self._stopping = threading.Event()
        #: RabbitMQ gives a letter to one reader at a time: two would each miss some.
        self._reading = threading.Lock()
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()
        self._previews = 0

    @property
    def is_stopping(self) -> bool:
        """Whether the server stops."""
        return self._stopping.is_set()

    def preview(
        self,
        action: BulkAction,
        filter_: BulkFilter,
        options: BulkOptions,
        operator: str,
        *,
        limit: int | None = None,
    ) -> int:
        """Begin a preview; returns its run's id at once.

        Raises:
            AdminError: another run has the letters, or orders; or too many previews are being made.
        """
        self.store.require_idle(action.subject)
        with self._lock:
            if self._previews >= PREVIEWS:
                raise AdminError(
                    f"{PREVIEWS} previews are being made at this moment; wait for one to end"
                )
            self._previews += 1
        try:
            run_id = self.store.previews.prepare(
                action, operator=operator, filter_=filter_.record, options=options.record
            )
            self._start(f"preview-{run_id}", lambda: self._fill(run_id, limit))
        except BaseException:
            self._preview_ended()
            raise
        return run_id

    def start(
        self,
        run_id: int,
        operator: str,
        *,
        total: int | None = None,
        refused: int | None = None,
        reason: str | None = None,
        may_go_on: Callable[[], bool] = lambda: True,
    ) -> BulkRun:
        """Begin or resume a run, with the preview's numbers as confirmed; returns it as it began.

        Args:
            reason: why, in the operator's words.
            may_go_on: whether the operator may still act: else it stops before the next item.

        Raises:
            AdminError: it cannot start.
        """
        if self.is_stopping:
            raise AdminError("this server is being stopped; try again in a moment")
        claim = self.store.take(
            run_id, operator=operator, total=total, refused=refused, reason=reason
        )
        why_not = _no_operator(operator)
        watcher = Watcher(
            is_stopped=self._stopping.is_set, why_not=lambda: None if may_go_on() else why_not
        )
        self._start(f"run-{run_id}", lambda: self._operations.go_on(claim, watcher))
        return claim.run

    @contextmanager
    def reading(self) -> Iterator[bool]:
        """Keeps dead letters for the one reader of this process; False: another one has them."""
        has_it = self._reading.acquire(blocking=False)
        try:
            yield has_it
        finally:
            if has_it:
                self._reading.release()

    def in_background(self, name: str, work: Callable[[], object]) -> None:
        """Do this on a thread of its own, whose problems are logged."""
        self._start(name, work)

    def stop(self) -> None:
        """Stop runs after their present items, and previews. Idempotent."""
        self._stopping.set()
        with self._lock:
            threads = list(self._threads)
        until = time.monotonic() + STOP_TIMEOUT
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _fill(self, run_id: int, limit: int | None) -> None:
        try:
            with self._reading:
                self._operations.fill(run_id, limit=limit, is_stopped=self._stopping.is_set)
        finally:
            self._preview_ended()

    def _preview_ended(self) -> None:
        with self._lock:
            self._previews -= 1

    def _start(self, name: str, work: Callable[[], object]) -> None:
        def run() -> None:
            try:
                work()
            except PosGatewayError as error:
                log.warning("bulk.problem", thread=name, error=str(error))
            except Exception as error:
                log.error("bulk.failed", thread=name, exc_info=error)
            finally:
                with self._lock:
                    self._threads.discard(thread)

        # A daemon: a broker that does not answer keeps no server from its end; the lease expires.
        thread = threading.Thread(target=run, name=name, daemon=True)
        with self._lock:
            self._threads.add(thread)
        thread.start()


def _no_operator(name: str) -> str:
    return f"{name} may not act any more: the token was revoked, or has another role. Another operator can resume it"
