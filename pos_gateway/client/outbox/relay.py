"""The relay: submits what the backend's transactions committed, and removes what is confirmed."""

import logging
import os
import random
import threading
from contextlib import closing
from itertools import accumulate
from typing import Self

from pos_gateway.client.outbox.listening import Listener
from pos_gateway.client.outbox.opening import Connect, connector
from pos_gateway.client.outbox.publishing import Published, publish
from pos_gateway.client.outbox.sole_relay import SoleRelay
from pos_gateway.client.outbox.store import (
    LONGEST_DELAY,
    Delay,
    Lag,
    PendingRow,
    RefusedRow,
    Store,
)
from pos_gateway.client.outbox.table import Dialect
from pos_gateway.client.protocols import SubmittingClient
from pos_gateway.domain.http_limits import BATCH_BYTES
from pos_gateway.runtime import failpoints
from pos_gateway.runtime.wakeup import Wakeup

#: Python's: the program is the backend's.
logger = logging.getLogger(__name__)

#: Seconds between two tries while the gateway or the database is away: at random, up to the first,
#: doubling up to the second.
_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
#: How often a row may fail alone while others are published, before it is refused: eight minutes after the first.
ATTEMPTS = 8
#: What may be away.
_GATEWAY, _DATABASE = "the gateway", "the outbox's database"
#: Batches that fail one after the other until ``drain`` gives up: a batch, a row that is the cause of
#: it, and another row.
_DRAINING = 3


class Relay:
    """Submits the rows of an outbox, each at least once, an order's in the order they were written.

    Several may run on one outbox, in one process or many; on SQLite one works, and the others
    wait. A relay that is killed loses nothing: what it had not removed is submitted again, which is
    harmless.

    Args:
        client: an ``OrderClient``, or an ``HttpOrderClient``.
        database: the backend's, as a URL like SQLAlchemy's, or a function that opens a DB-API
            connection for the relay alone (``engine.raw_connection``).
        batch: rows that are submitted together at most.
        poll: seconds between two looks at the table, where nothing wakes the relay.

    Raises:
        InvalidSettings: the URL is invalid, or its driver is not installed.
    """

    def __init__(
        self,
        client: SubmittingClient,
        database: str | Connect,
        *,
        batch: int = 200,
        poll: float = 1.0,
    ) -> None:
        self._client = client
        self._connect = connector(database)
        self._batch = batch
        self._poll = poll
        self._stopping = Wakeup()
        self._woken = Wakeup()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        #: Rows of the next batch: one after a batch failed, to find out whether a row is the cause.
        self._limit = batch
        #: Whether a row was published since one last failed alone.
        self._was_up = True
        #: ``_GATEWAY`` or ``_DATABASE``, while it does not answer.
        self._away: str | None = None
        self._failures = 0
        #: Rows that the gateway has confirmed and the database not removed, by id.
        self._confirmed: dict[int, PendingRow] = {}

    def start(self) -> Self:
        """Run in a thread, until ``stop``. After a fork, start it in the child."""
        if self._process != os.getpid():
            self._thread, self._process = None, os.getpid()
        if self._thread is None or not self._thread.is_alive():
            self._stopping.clear()
            self._thread = threading.Thread(target=self.run, name="outbox-relay", daemon=True)
            self._thread.start()
        return self

    def stop(self, timeout: float = 15.0) -> None:
        """Finish the batch, and end. For any thread, and for signal handlers with 0. Idempotent."""
        self._stopping.notify()
        self._woken.notify()
        if self._thread is not None and timeout > 0:
            self._thread.join(timeout)

    def wake(self) -> None:
        """Look at the table now: after a commit, where the database does not notify."""
        self._woken.notify()

    def lag(self) -> Lag:
        """How far the relays of this outbox are behind. Raises the driver's errors."""
        with closing(Store(self._connect())) as store:
            return store.lag()

    def run(self) -> None:
        """Submit rows until ``stop``."""
        listener: Listener | None = None
        logger.info("the outbox's relay has started")
        try:
            while not self._stopping.is_notified:
                try:
                    with closing(Store(self._connect(), self._poll)) as store:
                        if listener is None and store.dialect is Dialect.POSTGRESQL:
                            listener = Listener(self._connect, self.wake)
                        self._serve(store)
                except Exception as error:  # noqa: BLE001
                    # Any error of the driver's: a relay that ends submits nothing any more.
                    self._warn(_DATABASE, f"{type(error).__name__}: {error}")
                    self._stopping.wait(self._pause())
        finally:
            if listener is not None:
                listener.close()
            logger.info("the outbox's relay has stopped")

    def drain(self) -> int:
        """Submit all that may be submitted now, and return; how many rows. For a cron job, or tests.

        Raises:
            The driver's errors. What the gateway does not take is left for the next time.
        """
        number = failures = 0
        with closing(Store(self._connect())) as store, closing(_permit(store)) as permit:
            while failures < _DRAINING and permit.take():
                step = self._step(store)
                if step is None:
                    break
                number += len(step.confirmed)
                failures = failures + 1 if step.unconfirmed and not step.confirmed else 0
        return number

    def _serve(self, store: Store) -> None:
        with closing(_permit(store)) as permit:
            while not self._stopping.is_notified:
                self._woken.clear()
                step = self._step(store) if permit.take() else None
                if step is None:
                    self._woken.wait(self._poll)
                elif step.unconfirmed and not step.confirmed:
                    self._stopping.wait(self._pause())

    def _step(self, store: Store) -> Published | None:
        """Publish a batch; None: there is none."""
        batch = _together(store.take(self._limit))
        if not batch:
            store.finish([])
            self._report(Published())
            return None
        failpoints.reach("outbox.taken")
        # The whole row is compared: a table that is made anew gives its ids again.
        if confirmed := [row.id for row in batch if self._confirmed.get(row.id) == row]:
            store.finish(confirmed)
            for each in confirmed:
                del self._confirmed[each]
            return Published()
        published = publish(self._client, batch)
        failpoints.reach("outbox.confirmed")
        delayed = self._delayed(batch, published)
        self._confirmed = {row.id: row for row in batch if row.id in {*published.confirmed}}
        store.finish(published.confirmed, published.refused, delayed)
        self._confirmed = {}
        failpoints.reach("outbox.removed")
        self._report(published)
        return published

    def _delayed(self, batch: list[PendingRow], published: Published) -> list[Delay]:
        """Which rows to try later, alone. Refuses those that fail while others do not."""
        if published.confirmed:
            self._limit, self._failures = self._batch, 0
        elif published.unconfirmed:
            self._limit = 1
        is_up = bool(published.confirmed) or (len(batch) == 1 and self._was_up)
        if not published.confirmed and len(batch) > 1:
            return []  # one of them may be the cause: they are tried one by one
        if published.unconfirmed or published.confirmed:
            self._was_up = bool(published.confirmed)
        delayed = []
        for row in published.unconfirmed:
            attempts = row.attempts + is_up
            if attempts >= ATTEMPTS:
                reason = f"failed {attempts} times while others were published: {published.problem}"
                published.refused.append(RefusedRow(row.id, reason))
            else:
                seconds = min(LONGEST_DELAY, 2.0 ** max(1, attempts))
                delayed.append(Delay(row.id, attempts, seconds, published.problem))
        return delayed

    def _report(self, published: Published) -> None:
        for row in published.refused:
            # Not its reason, which may quote the order.
            logger.warning(
                "row %d of the outbox is refused (%s); pos-gateway outbox list has its reason",
                row.id,
                row.reason.partition(":")[0],
            )
        if published.unconfirmed:
            self._warn(_GATEWAY, published.problem)
        elif self._away == _DATABASE or (self._away and published.confirmed):
            logger.info("%s answers again", self._away)
            self._away = None

    def _warn(self, away: str, problem: str) -> None:
        """Log the first problem of an outage."""
        if self._away != away:
            self._away = away
            logger.warning(
                "the outbox is not submitted: %s: %s; it is tried again until it is", away, problem
            )

    def _pause(self) -> float:
        """Exponential backoff with full jitter."""
        self._failures = min(self._failures + 1, 10)
        return random.random() * min(_LONGEST_PAUSE, _PAUSE * 2.0**self._failures)


class _AnyRelay:
    """Where row locks let several relays work."""

    def take(self) -> bool:
        return True

    def close(self) -> None:
        pass


def _permit(store: Store) -> SoleRelay | _AnyRelay:
    """Whether this relay may work now."""
    return SoleRelay(store.driver) if store.dialect is Dialect.SQLITE else _AnyRelay()


def _together(rows: list[PendingRow]) -> list[PendingRow]:
    """Those to publish together: a row that has failed before goes alone.

    Over HTTP more than a request may have would be several, each with the client's time limit, and
    outlast the transaction.
    """
    if rows and rows[0].attempts:
        return rows[:1]
    size = accumulate(len(row.body) + 1 for row in rows)  # a line each
    return [
        row
        for position, (row, so_far) in enumerate(zip(rows, size, strict=True))
        if not row.attempts and (position == 0 or so_far <= BATCH_BYTES)
    ]
