"""A process's part in the event pipeline: leads if possible, and else helps the leader.

The leader also prunes old events, orders and reports, to bound the tables.
"""

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING

import structlog
from sqlalchemy import Engine

from pos_gateway.broker.message import Message
from pos_gateway.broker.publisher import Publisher
from pos_gateway.database.schema import events, worker_minutes, worker_reports
from pos_gateway.domain.errors import LedgerUnavailable, PublishError
from pos_gateway.events.helping import Helping
from pos_gateway.events.hydration import Hydration
from pos_gateway.events.leadership import LOOK, Leadership
from pos_gateway.events.outbox import Outbox
from pos_gateway.events.pipeline import Pipeline
from pos_gateway.events.traced import traced
from pos_gateway.ledger.ledger import Ledger, Run, here
from pos_gateway.ledger.pruning import present, prune_orders
from pos_gateway.reports.store import prune_reports
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock
from pos_gateway.runtime.limits import return_large_blocks
from pos_gateway.telemetry import metrics

if TYPE_CHECKING:
    from pos_gateway.telemetry.tracing import Tracing

log = structlog.get_logger(__name__)

#: Seconds for ``stop`` to wait until the broker confirms the batch in flight.
GRACE = 2.0
#: Seconds for ``stop`` to then wait for the publisher to close, and for the threads to end.
_LAST = 1.0
#: Seconds until the retry after a bug.
_AFTER_MISTAKE = 5.0
#: Old events removed per batch, and seconds between checks for them.
PRUNED, PRUNE_EVERY = 1000, 60.0
#: Seconds between two prunings of the workers' reports.
PRUNE_REPORTS_EVERY = 60.0
#: Seconds between two passes over the terminal orders.
PRUNE_ORDERS_EVERY = 3600.0


class EventRelay:
    """Publishes the outbox's events, on two threads (green threads in a green worker).

    Reconnects forever, to the database and to the broker. The constructor does no I/O.

    Args:
        engine: the database; two connections are used.
        hydration: hydrates rows.
        ledger: renews this process's lease until the relay is stopped.
        broker_url: of the broker, for a connection of the relay's own.
        to_broker: publish events; else events get positions, and are read over HTTP alone.
        keep: seconds to keep events; 0: forever.
        keep_orders: seconds to keep terminal orders; 0: forever.
        run: runs blocking calls, as for the ledger.
        tracing: makes a span for each event's publishing.
    """

    def __init__(
        self,
        engine: Engine,
        hydration: Hydration,
        ledger: Ledger,
        *,
        broker_url: str,
        to_broker: bool = True,
        keep: float = 0.0,
        keep_orders: float = 0.0,
        run: Run = here,
        tracing: "Tracing | None" = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.publisher = Publisher(broker_url)
        # One per thread: the helper's statements must not hold up the leader.
        self._outboxes = Outbox(engine, run=run), Outbox(engine, run=run)
        self._leadership = Leadership(self._outboxes[0], ledger, clock)
        publish = self._publish if to_broker else _read_over_http
        self._pipeline = Pipeline(
            self._outboxes[0],
            self._leadership,
            hydrate=hydration.message,
            publish=publish if tracing is None else traced(publish, tracing),
            clock=clock,
        )
        #: Announces a new event. Safe from threads.
        self.wake = self._pipeline.wake
        self._helping = Helping(
            self._outboxes[1], lambda: ledger.lease, seal=hydration.sealed, clock=clock
        )
        self._keep = keep
        self._clock = clock
        self._prune_at = -inf
        self._engine, self._run = engine, run
        self._keep_orders = keep_orders
        self._prune_orders_at = -inf
        self._prune_reports_at = -inf
        #: The present pass over the terminal orders, a batch at a time.
        self._pass: Iterator[tuple[int, int]] = iter(())
        self._prune_again_at = -inf
        self._stopping = threading.Event()
        #: Ends a wait for notices.
        self._bell = os.pipe()
        weakref.finalize(self, _close, self._bell)
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start the threads. Idempotent."""
        if not self._threads:
            return_large_blocks()
            self._threads = [
                threading.Thread(target=self._for_ever, args=(part,), name=name, daemon=True)
                for name, part in (("events", self._pipeline.run), ("beside events", self._beside))
            ]
            for thread in self._threads:
                thread.start()

    def yield_by(self, pause: Callable[[], float]) -> None:
        """Leave at least ``pause()`` seconds between pieces of hydration: orders lack CPU."""
        self._pipeline.pause = self._helping.pause = pause

    @property
    def leads(self) -> bool:
        """Whether this process publishes the events. Safe from threads."""
        return self._leadership.leads

    def show(self) -> None:
        """Set the gauges."""
        metrics.events_leading.set(self.leads)
        metrics.events_unpublished.set(self._pipeline.lag.unpublished)
        metrics.events_age.set(self._pipeline.lag.age(self._clock.now().timestamp()))

    @property
    def age(self) -> float | None:
        """Seconds since the oldest unpublished event was recorded; None: another process leads."""
        if not self.leads:
            return None
        return self._pipeline.lag.age(self._clock.now().timestamp())

    def stop(self) -> None:
        """End after the batch in flight, if the broker confirms it soon. Idempotent.

        Call before the lease is released: the next leader then begins at once.
        """
        self._stopping.set()
        self._pipeline.stop()
        os.write(self._bell[1], b"!")
        has_ended = self._join(GRACE)
        # Ends a wait for the broker's confirms. On a thread: blocks while the publisher connects.
        closing = threading.Thread(target=self.publisher.close, name="events-closing", daemon=True)
        closing.start()
        closing.join(_LAST)
        if has_ended or self._join(_LAST):
            for outbox in self._outboxes:
                outbox.close()

    def _join(self, seconds: float) -> bool:
        """Whether both threads end within the time."""
        until = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _publish(self, messages: Sequence[Message], on_sent: Callable[[], None]) -> int:
        return self.publisher.publish_batch(messages, on_sent=on_sent, on_trouble=_trouble)

    def _beside(self) -> None:
        while not self._stopping.is_set():
            # Helping would take CPU from the leader's own thread.
            parts = (self._prune_all, self._hear) if self.leads else (self._help,)
            if not any(self._succeeds(part) for part in parts):
                self._stopping.wait(LOOK)

    @staticmethod
    def _succeeds(part: Callable[[], bool | None]) -> bool:
        """Whether the part has worked or waited; False while the database is away."""
        try:
            return bool(part())
        except LedgerUnavailable as error:
            log.debug("events.database_unavailable", error=str(error))  # the other thread warns
            return False

    def _help(self) -> bool:
        return bool(self._helping.step())

    def _hear(self) -> bool:
        outbox = self._outboxes[1]
        if outbox.has_notices and outbox.hear(LOOK, self._bell[0]):
            self._pipeline.wake()
        return outbox.has_notices

    def _prune_all(self) -> bool:
        """Prune a batch of each kind, at most once a second."""
        now = self._clock.monotonic()
        if now >= self._prune_again_at:
            self._prune_again_at = now + LOOK
            for part in (self._prune, self._prune_orders, self._prune_reports):
                self._succeeds(part)
        return False

    def _prune(self) -> None:
        now = self._clock.monotonic()
        if self._keep and now >= self._prune_at:
            present_time = self._present()
            try:
                removed = self._outboxes[1].prune(present_time - self._keep, PRUNED, present_time)
            except LedgerUnavailable as error:
                self._prune_at = now + PRUNE_ORDERS_EVERY
                _not_pruned(f"the table {events.name}: {error}")
                return
            # A few may be locked.
            self._prune_at = now if removed > PRUNED // 2 else now + PRUNE_EVERY

    def _prune_orders(self) -> None:
        try:
            if not self._keep_orders or self._run(lambda: next(self._pass, None)) is not None:
                return
        except LedgerUnavailable as error:  # of one table: the pass has pruned the others
            _not_pruned(str(error))
        now = self._clock.monotonic()
        if now >= self._prune_orders_at:
            before = self._present() - self._keep_orders
            self._prune_orders_at = now + PRUNE_ORDERS_EVERY
            self._pass = prune_orders(self._engine, before)

    def _prune_reports(self) -> None:
        now = self._clock.monotonic()
        if now >= self._prune_reports_at:
            self._prune_reports_at = now + PRUNE_REPORTS_EVERY
            try:
                self._run(lambda: prune_reports(self._engine))
            except LedgerUnavailable as error:
                self._prune_reports_at = now + PRUNE_ORDERS_EVERY
                _not_pruned(f"the tables {worker_reports.name} and {worker_minutes.name}: {error}")

    def _present(self) -> float:
        now = self._clock.now().timestamp()
        earlier: float = self._run(lambda: present(self._engine, now))
        return earlier

    def _for_ever(self, part: Callable[[], None]) -> None:
        """Repeat after any exception: while the lease beats, no other process takes over."""
        while not self._stopping.is_set():
            try:
                part()
            except Exception:  # a bug
                log.exception("events.mistake")
                self._stopping.wait(_AFTER_MISTAKE)


def _not_pruned(problem: str) -> None:
    problem = problem.partition("\n")[0]
    log.warning("orders.not_pruned", error=problem, again_in=PRUNE_ORDERS_EVERY)


def _close(files: Iterable[int]) -> None:
    for each in files:
        os.close(each)


def _read_over_http(messages: Sequence[Message], on_sent: Callable[[], None]) -> int:
    """Publish nothing: events with a position can be read over HTTP."""
    on_sent()
    return len(messages)


def _trouble(error: PublishError) -> None:
    metrics.publish_trouble.inc()
    log.warning("events.publish_refused", error=str(error))
