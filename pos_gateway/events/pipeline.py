"""The leader's loop: assigns positions in row order, publishes batches in position order.

A batch is published when all of the batch before is confirmed. Progress is durable with the next
positions, and after a leader's death the next leader publishes the last batch again: at least once.

When the broker refuses a message in the middle, it may have stored some later messages. All
messages from the refused on are published again, and later messages come twice. The next messages
are published singly, for a refusal is seldom alone.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import structlog
from prometheus_client import Histogram

from pos_gateway.broker.message import Message
from pos_gateway.domain.errors import BatchCutShort, LedgerUnavailable
from pos_gateway.events.hydration import YIELD_EVERY, weight
from pos_gateway.events.lag import EventLag
from pos_gateway.events.leadership import LOOK, Leadership
from pos_gateway.events.outbox import Outbox, Row, Term
from pos_gateway.runtime import failpoints
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock
from pos_gateway.runtime.green import cooperatively
from pos_gateway.telemetry import metrics

log = structlog.get_logger(__name__)

#: Maximum events in a batch.
BATCH = 500
#: Seconds between polls for other processes' events, doubling up to the second number without
#: events: thirty polls a second were the greater part of an idle worker's CPU. This process's
#: events wake the leader at once.
POLL = (0.03, 0.24)
#: Maximum seconds between polls where notices also wake the leader, after a silence
#: (``ledger.event_notices.SILENCE``).
SELDOM = 1.0
#: Seconds between two batches that are not full: events recorded in between share the next batch,
#: and a batch costs a hundred times as much as another event in a batch.
GATHER = 0.05
#: Seconds until the first retry while the database or the broker is away, doubling up to the
#: second number.
RETRY_AFTER = (0.05, 5.0)
#: Seconds without the broker after which a leader steps down: a peer may reach the broker.
CUT_OFF = 30.0


class Pipeline:
    """Publishes every event at least once, in the same order, while this worker leads.

    Args:
        outbox: the events; not shared.
        leadership: whether this worker leads.
        hydrate: makes the message to publish from a row. Does not raise.
        publish: publishes messages in order, calls its second argument when all are sent, and
            returns how many from the front are stored; raises BatchCutShort when the broker goes
            away.
        batch: maximum number of events in a batch.
    """

    def __init__(
        self,
        outbox: Outbox,
        leadership: Leadership,
        *,
        hydrate: Callable[[Row], Message],
        publish: Callable[[Sequence[Message], Callable[[], None]], int],
        clock: Clock = SYSTEM_CLOCK,
        batch: int = BATCH,
    ) -> None:
        self._outbox = outbox
        self._leadership = leadership
        self._hydrate = hydrate
        self._publish = publish
        #: Returns the minimum seconds between two pieces of a batch being hydrated.
        self.pause: Callable[[], float] = float
        self._clock = clock
        self._batch = batch
        #: The lag, while this worker leads.
        self.lag = EventLag()
        #: The last batch was full, and is stored: more events may follow.
        self._has_more = False
        #: The last batch left out events with a position, for their bytes.
        self._is_cut = False
        #: The highest position that the broker may have.
        self._sent = 0
        #: Number of events left to publish singly.
        self._singly = 0
        #: Seconds until the next step is useful.
        self.rest = 0.0
        #: The database or the broker is away, or refuses: a new event does not cut ``rest`` short.
        self.in_trouble = False
        self._retry_after = RETRY_AFTER[0]
        self._poll_after = POLL[0]
        #: Start of an outage of the broker.
        self._away_since: float | None = None
        self._stopping = threading.Event()
        self._something = threading.Event()

    def run(self) -> None:
        """Step until ``stop``, and once more for the events recorded until then."""
        while not self._stopping.is_set():
            self._something.clear()  # a later event is seen by this step, or the next
            stored = self._stepped()
            if stored and not self._has_more and not self.in_trouble:
                self._show_progress()
                self._stopping.wait(GATHER)
            elif stored == 0 and self._leadership.leads and not self.in_trouble:
                self._something.wait(self.rest)
            else:
                self._stopping.wait(self.rest)
        if self._leadership.leads and not self.in_trouble:
            self._stepped()
            self._write_down()

    def _stepped(self) -> int:
        try:
            return self.step()
        except LedgerUnavailable as error:
            self._trouble("events.database_unavailable", str(error))
            return 0

    def wake(self) -> None:
        """Announce a new event. Safe from threads."""
        self._poll_after = POLL[0]  # more may follow without a notice
        self._something.set()

    def stop(self) -> None:
        """End ``run`` after the batch in flight. Safe from threads, idempotent."""
        self._stopping.set()
        self._something.set()

    def step(self) -> int:
        """Publish the next batch, if this worker leads; returns the number of stored events.

        Raises:
            LedgerUnavailable: the database is away; call again.
        """
        self.rest, self.in_trouble = LOOK, False
        term = self._leadership.term()
        if term is None:
            self.lag.nothing_left()
            self.rest = self._leadership.read_every
            return 0
        if term.assigned < (known := max(self._sent, self._leadership.seen)):
            term = self._skipped(term, known)
        else:
            # Also without events to assign: tells whether this worker still leads.
            most, self._is_cut = 0 if self._is_cut else self._batch, False
            term = self._outbox.assign(term, most)
        self._leadership.go_on(term)
        if term is None:
            log.info("events.leader_replaced")
            return 0
        failpoints.reach("events.assigned")
        rows: list[Row] = []
        if term.published < term.assigned:
            rows = self._outbox.read(term.published, self._batch)
        if not rows:
            self.lag.nothing_left()
            self.rest, self._retry_after = self._poll_after, RETRY_AFTER[0]
            longest = SELDOM if self._outbox.has_notices else POLL[1]
            self._poll_after = min(longest, 2 * self._poll_after)
            return 0
        self._poll_after = POLL[0]
        self.lag.are_left(term, rows)
        now, watch = self._clock.now().timestamp(), _Watch(self._clock)
        messages = []
        for row in cooperatively(rows, YIELD_EVERY, weight, self.pause):
            metrics.event_picked_up.observe(max(0.0, now - row.occurred_at))
            messages.append(self._hydrate(row))
        watch.lap(metrics.event_hydrated)
        failpoints.reach("events.hydrated")
        self.rest = 0.0
        last = rows[-1].position or 0
        self._is_cut = len(rows) < self._batch and last < term.assigned
        self._has_more = self._is_cut or len(rows) == self._batch
        self._sent = max(self._sent, last)
        stored = self._stored(messages, watch)
        failpoints.reach("events.confirmed")
        if stored:
            term = replace(term, published=rows[stored - 1].position or term.published)
            self._leadership.go_on(term)
            self._has_more = self._has_more and stored == len(rows)
            self.lag.are_stored(term, rows, stored, more=self._has_more)
        self._step_down_if_cut_off()
        return stored

    def _skipped(self, term: Term, known: int) -> Term | None:
        """Skip the positions that the broker may have: the database has gone back in time.

        A lagging standby was promoted, or a backup was restored.
        """
        log.error("events.positions_lost", first=term.assigned + 1, last=known)
        metrics.event_positions_lost.inc(known - term.assigned)
        return self._outbox.skip(term, known)

    def _step_down_if_cut_off(self) -> None:
        now = self._clock.monotonic()
        if self._away_since is not None and now - self._away_since >= CUT_OFF:
            self._away_since = None
            self._leadership.step_down()

    def _show_progress(self) -> None:
        """Let readers of the table, like a server's streams, have this batch before the next."""
        with suppress(LedgerUnavailable):  # the next step notices, too
            term = self._leadership.term()
            if term is not None:
                self._outbox.show(term)

    def _write_down(self) -> None:
        """Store the progress: the next leader need not publish the last batch again."""
        try:
            term = self._leadership.term()
            if term is not None:
                self._outbox.assign(term, 0)
        except LedgerUnavailable as error:
            log.warning("events.database_unavailable", error=str(error))

    def _stored(self, messages: Sequence[Message], watch: "_Watch") -> int:
        """Publish; returns how many from the front are certainly stored."""

        def on_sent() -> None:
            watch.lap(metrics.event_published)
            failpoints.reach("events.sent")

        stored = 0
        while stored < len(messages):
            part = messages[stored : stored + 1] if self._singly else messages[stored:]
            try:
                done, away = self._publish(part, on_sent), None
                watch.lap(metrics.event_confirmed)
            except BatchCutShort as error:
                done, away = error.confirmed, error
            stored += done
            self._singly = max(0, self._singly - done)
            if away is not None:
                if self._away_since is None or done:
                    self._away_since = self._clock.monotonic()
                self._trouble("events.broker_unavailable", str(away))
                return stored
            self._away_since = None
            if done < len(part):
                self._singly = self._batch
                self._trouble("events.refused", f"message {messages[stored].message_id}")
                return stored
        self._retry_after = RETRY_AFTER[0]
        return stored

    def _trouble(self, what: str, error: str) -> None:
        log.warning(what, error=error)
        self.rest, self.in_trouble = self._retry_after, True
        self._retry_after = min(RETRY_AFTER[1], 2 * self._retry_after)


class _Watch:
    """Measures the time of each part of a batch."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = clock.monotonic()

    def lap(self, part: Histogram) -> None:
        """Record the time since the last lap for this part."""
        before, self._last = self._last, self._clock.monotonic()
        part.observe(self._last - before)
