"""The ledger: each order's request, attempts and outcome, outliving any worker.

An attempt claims its order, sends only once SENDING is durable, and commits its outcome and the
status event in one transaction, before the message is acknowledged. A claim depends on the worker's
lease (``lease.py``) and carries an epoch, a growing fencing token: writes under an earlier
epoch change nothing. A message may be delivered any number of times, to any workers.
"""

import itertools
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

import structlog
from sqlalchemy import Engine, Select, select
from sqlalchemy.exc import SQLAlchemyError

from pos_gateway.database.schema import orders
from pos_gateway.domain.errors import (
    EventIdTaken,
    LedgerLocked,
    LedgerUnavailable,
    LedgerUnreachable,
)
from pos_gateway.domain.outcome import RESOLVED, Lifecycle, Reason
from pos_gateway.ledger import attempts
from pos_gateway.ledger.batch import (
    Batch,
    Claiming,
    Finishing,
    Looking,
    Operation,
    Recording,
    Sending,
    order_of,
    ticket_of,
)
from pos_gateway.ledger.commits import GroupCommit, at_once
from pos_gateway.ledger.event_ids import with_another_id
from pos_gateway.ledger.event_notices import EventNotices
from pos_gateway.ledger.journal import Journal
from pos_gateway.ledger.lease import BEAT, Beat, Lease, PeerLeases
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import (
    FINAL,
    Abandoned,
    Action,
    AttemptHistory,
    Claim,
    ClaimResult,
    Ended,
    Entry,
    Key,
    State,
    StepMark,
)
from pos_gateway.ledger.writer import Writer
from pos_gateway.runtime import failpoints
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock
from pos_gateway.runtime.vault import Vault
from pos_gateway.telemetry import metrics

log = structlog.get_logger(__name__)

#: Seconds for a claim while the database is away, before the attempt's retry.
CLAIM_TIMEOUT = 10.0
#: Session settings of PostgreSQL: a batch waits for a worker's commit, and no longer. A
#: forgotten session may lock an order's row for hours.
_SESSION = "set lock_timeout = '50ms'"
#: Seconds between reads of peers' leases.
LOOK = 1.0
#: Lease lengths without a beat after which a lease's row is removed.
FORGOTTEN = 50.0
#: Maximum abandoned claims released with one beat.
RELEASED = 256
#: Seconds for ``close`` to wait for the lease's release.
_RELEASE_TIMEOUT = 2.0
#: Runs a blocking call without stopping this process's green threads.
Run = Callable[[Callable[[], Any]], Any]


def here(do: Callable[[], Any]) -> Any:
    """Run a call in the calling thread."""
    return do()


class Ledger:
    """Claims orders and commits outcomes, many per transaction. Safe from green threads.

    Args:
        engine: the database.
        payloads: seals personal data; default: stored in clear.
        run: runs blocking calls; a green worker with an embedded database passes its hub's native
            thread pool: a disk write must not stop the loop.
    """

    def __init__(
        self,
        engine: Engine,
        payloads: Payloads | None = None,
        *,
        run: Run = here,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._engine = engine
        self._payloads = payloads or Payloads(Vault())
        self._run = run
        self._clock = clock
        self._writer = Writer(engine, session=_SESSION)
        self._notices = EventNotices(engine, clock)
        #: Whether to notify the events' leader elsewhere. Set by leadership.
        self.notifies = True
        self._group: GroupCommit | None = None
        self._commit: Callable[..., Any] = at_once(self._write)
        self._stopping = threading.Event()
        self._beater: threading.Thread | None = None
        self._tickets = itertools.count(1)
        #: Number of orders first claimed by this worker.
        self.new_orders = 0
        #: This worker's abandoned claims, by ticket.
        self._abandoned: dict[int, Abandoned] = {}
        #: Tickets of claims whose commit may or may not have succeeded.
        self._unknown: set[int] = set()
        self.lease = Lease(clock=clock)
        self._journal = Journal(self._clock)
        #: Number of the writer's connection on which the journal was last replayed.
        self._caught_up = 0
        self._peers = PeerLeases(self._clock)
        self._looked_at = -inf
        #: Start of an outage of the database, if known.
        self._away_since: float | None = None

    def claim(
        self,
        key: Key,
        *,
        send: bool,
        deliver_by: float | None = None,
        order: bytes | None = None,
        endpoint: str | None = None,
        adapted: str | None = None,
        unless_suspect: bool = False,
    ) -> ClaimResult:
        """Claim the order; or return its end, or its lease elsewhere.

        Args:
            key: the order and the action.
            send: the order will be sent at once: a new order is then claimed in SENDING.
            deliver_by: the order's expiry (Unix time).
            order: the order's JSON, kept for later reads.
            endpoint: the POS for sending.
            adapted: the fields adapted for that POS, as JSON for the event.
            unless_suspect: return Suspected for an order suspected of ``SUSPECT`` deaths.

        Raises:
            LedgerUnavailable: the database is away; nothing may be sent.
        """
        ticket = next(self._tickets)
        payload = None if order is None else self._payloads.seal(key, order)
        failpoints.reach("claim.before")
        try:
            claimed: ClaimResult = self._commit(
                Claiming(key, ticket, send, deliver_by, payload, endpoint, adapted, unless_suspect),
                timeout=CLAIM_TIMEOUT,
            )
            failpoints.reach("claim.after")
        except BaseException as error:
            # A claim certainly not written needs no release: an outage has thousands.
            given_up = isinstance(error, LedgerUnavailable)
            if ticket in self._unknown or not given_up:
                self._abandoned[ticket] = Abandoned(key, False, self.lease.clock())
            self._unknown.discard(ticket)
            raise
        if isinstance(claimed, Claim):
            self.new_orders += claimed.epoch == 1 and key.action is Action.SUBMIT
        if isinstance(claimed, Ended) and claimed.reason is not None:
            return replace(claimed, reason=self._payloads.open_reason(key, claimed.reason))
        return claimed

    def sending(
        self,
        claim: Claim,
        endpoint: str | None = None,
        *,
        step: StepMark | None = None,
        progress: str | None = None,
        external_id: str | None = None,
    ) -> Claim | None:
        """Commit SENDING, and return the new claim. None: the claim is lost.

        Without SENDING in the new claim nothing may be sent: a cancel request for the order is
        open.

        Args:
            claim: the attempt's claim.
            endpoint: the POS for sending.
            step: the step to send or to undo; None: the order's only step.
            progress: through the steps before, kept with the step; None: as in the row.
            external_id: the POS's id of the order, if known.

        Raises:
            LedgerUnavailable: the database is away; nothing may be sent.
        """
        history = claim.history
        if step is not None:
            sealed = None if progress is None else self._payloads.seal(claim.key, progress.encode())
            history = history.at(step, sealed or history.facts, external_id)
        if claim.key.action is Action.CANCEL:  # in doubt until it ends, once it has undone a step
            history = replace(history, doubt_since=claim.history.doubt_since)
        sent = claim._replace(sending=True, endpoint=endpoint, history=history)
        held = self._commit(Sending(sent, claim.history.step), timeout=CLAIM_TIMEOUT)
        if held is None:
            return sent._replace(sending=False, history=replace(history, cancelling=True))
        return sent if held else None

    def progress(self, key: Key, history: AttemptHistory) -> bytes | None:
        """The progress of an order through its steps, if kept. Raises CannotOpen."""
        return None if history.facts is None else self._payloads.open(key, history.facts)

    @property
    def problem(self) -> str | None:
        """The obstacle to any claim now, if any. Read from the lease, without I/O."""
        holds = self.lease.holds(self.lease.id)
        return None if holds else "the database has not answered for seconds, or was not asked yet"

    def holds(self, claim: Claim) -> bool:
        """Whether the claim certainly still holds. Checked before the first byte is sent."""
        return self.lease.holds(claim.owner)

    def last_reason(self, claim: Claim) -> Reason | None:
        """The reason of the order's last attempt, if any."""
        reason = claim.history.reason
        if reason is None or reason.code == RESOLVED:  # an operator's, not an attempt's
            return None
        return self._payloads.open_reason(claim.key, reason)

    def abandon(self, claim: Claim, *, sent: bool) -> None:
        """Abandon the claim of a killed green thread: the order's next attempt takes over.

        Without a next attempt, the next beats release the claim.

        Args:
            sent: whether bytes may have been sent under the claim.
        """
        abandoned = Abandoned(claim.key, sent, self.lease.clock())
        self._abandoned.setdefault(claim.ticket, abandoned)

    def finish(self, claim: Claim, entry: Entry, *, timeout: float = inf) -> bool:
        """Commit the outcome, its event and the attempt; False: the claim is lost.

        Raises:
            LedgerUnavailable: the database was away for ``timeout`` seconds, or this process is
                stopping.
        """
        failpoints.reach("outcome.before")
        sealed = self._sealed(claim.key, entry)
        recorded = None
        if entry.attempts > claim.history.attempts:
            recorded = self._with_attempt(claim, entry, sealed)
        # Patient: the slot is released, and the acknowledgement and the event alone wait for the outcome.
        commit = partial(self._commit, timeout=timeout, is_patient=True)
        try:
            written: bool = commit(Finishing(claim, sealed, recorded))
        except EventIdTaken:
            if sealed.event is None:
                raise
            sealed = replace(sealed, event=with_another_id(claim.key, sealed.event, claim.epoch))
            written = commit(Finishing(claim, sealed, recorded))
        failpoints.reach("outcome.committed")
        return written

    def record_event(
        self, key: Key, entry: Entry, body: bytes | None, *, timeout: float = inf
    ) -> None:
        """Record an event alone, once by its id: for an invalid message, or a pruned order.

        Args:
            key: the ids in the message.
            entry: the outcome.
            body: the message's body; None: the order in the row, if any.
            timeout: seconds to wait for the database.

        Raises:
            LedgerUnavailable: as ``finish``.
        """
        payload = None if body is None else self._payloads.seal(key, body)
        recording = Recording(key, self._sealed(key, entry), payload)
        with suppress(EventIdTaken):  # another worker recorded it at the same moment
            self._commit(recording, timeout=timeout)

    def ends(self, key: Key) -> list[tuple[Key, Ended]]:
        """The ends of the order and of its cancel request, if terminal and with an event.

        Raises:
            LedgerUnavailable: the database is away.
        """
        query = (
            select(orders, orders.c.last_event.label("last_event"))
            .where(orders.c.merchant_id == key.merchant_id, orders.c.order_id == key.order_id)
            .where(orders.c.last_event.is_not(None), orders.c.state.in_(FINAL))
            .order_by(orders.c.action.desc())  # the submission, then the cancel request
        )
        return [
            (replace(key, action=Action(row.action)), self._ended(key, row))
            for row in self._rows(query)
        ]

    def _ended(self, key: Key, row: Any) -> Ended:
        reason = None
        if row.reason_code is not None:
            sealed = Reason(row.reason_code, row.reason_message or "")
            reason = self._payloads.open_reason(key, sealed)
        history = AttemptHistory(row.attempts, last_event=row.last_event, reopened=row.reopened)
        return Ended(State(row.state), row.updated_at, reason, row.external_id, history)

    def is_cancelled_by_pos(self, key: Key) -> bool:
        """Whether the POS has cancelled the order after accepting. Raises LedgerUnavailable."""
        is_cancelled = orders.c.lifecycle == Lifecycle.CANCELLED_BY_POS
        return bool(self._rows(_of(key, Action.SUBMIT).where(is_cancelled)))

    def knows(self, key: Key) -> bool:
        """Whether the order has a row. Raises LedgerUnavailable."""
        return bool(self._rows(_of(key, key.action)))

    def order(self, key: Key) -> bytes | None:
        """The order's JSON, if kept.

        Raises:
            LedgerUnavailable: the database is away.
            CannotOpen: no key opens the order.
        """
        found = self._rows(_of(key, Action.SUBMIT))
        payload = found[0].payload if found else None
        return None if payload is None else self._payloads.open(key, payload)

    def _rows(self, query: Select[Any]) -> Sequence[Any]:
        def read() -> Sequence[Any]:
            with self._engine.connect() as connection:
                return connection.execute(query).all()

        try:
            rows: Sequence[Any] = self._run(read)
        except SQLAlchemyError as error:
            raise LedgerUnavailable(str(error)) from error
        return rows

    def _sealed(self, key: Key, entry: Entry) -> Entry:
        if entry.progress is not None:
            entry = replace(entry, progress=self._payloads.seal(key, entry.progress.encode()))
        if entry.reason is None:
            return entry
        # An adapter may have built the reason from a POS's raw text.
        reason = Reason.of(entry.reason.code, entry.reason.message)
        return replace(entry, reason=self._payloads.seal_reason(key, reason))

    def _with_attempt(self, claim: Claim, entry: Entry, sealed: Entry) -> str:
        """The order's last attempts, with this attempt."""
        message = None
        if entry.reason is not None and sealed.reason is not None:
            message = attempts.kept_message(self._payloads, claim.key, entry.reason, sealed.reason)
        return attempts.with_outcome(claim, sealed, message)

    def catch_up(self) -> None:
        """Return once all writes queued before this call are durable.

        Raises:
            LedgerUnavailable: the database is away.
        """
        self._commit(Looking(), timeout=CLAIM_TIMEOUT)

    def start(self) -> None:
        """Start the beat and group commit. Idempotent."""
        if self._beater is None:
            self._group = self._commit = GroupCommit(self._write, _size, order_of)
            self._beater = threading.Thread(target=self._beat, name="lease", daemon=True)
            self._beater.start()

    def close(self) -> None:
        """Release the lease, once nothing is in flight. Idempotent."""
        self._stopping.set()
        if self._group is not None and not self._group.close():
            log.warning("lease.not_released", error="the database does not answer")
            return  # the lease expires by itself
        releasing = threading.Thread(target=self._release_lease, name="lease", daemon=True)
        self.lease.end()  # first: an unfinished attempt may not send any more
        releasing.start()
        releasing.join(_RELEASE_TIMEOUT)  # connecting to a database that is away may take longer
        if releasing.is_alive():
            log.warning("lease.not_released", error="the database does not answer")

    def release(self) -> None:
        """Release the lease and abandoned claims, and disconnect, until the next claim.

        For a synchronous worker's parent, without a beat: its lease would end as a dead
        worker's. No outcome from before is replayed: the next claim may be hours later, with an
        order pruned.
        """
        if self._beater is None and (self._writer.is_connected or self._abandoned):
            self.lease.end()
            self._release_lease()
            self._journal = Journal(self._clock)

    def _beat(self) -> None:
        while not self._stopping.wait(BEAT / 2):
            try:
                self._commit(Looking(), timeout=BEAT)
            except LedgerUnavailable:
                continue  # logged by the commit; without a lease nothing is sent
            except Exception:  # a row that makes no sense, say: the next beat may succeed
                log.exception("lease.mistake")

    def _write(self, operations: Sequence[Operation]) -> list[Any]:
        results: list[Any] = self._run(lambda: self._transact(operations))
        return results

    def _transact(self, operations: Sequence[Operation]) -> list[Any]:
        """Write the operations in one transaction, after a due beat."""
        started = self._clock.monotonic()
        if self._away_since is not None:
            self._peers.excuse(started - self._away_since)
            self._away_since = None
        is_due = self.lease.is_due

        def write(cursor: Any) -> tuple[list[Any], list[int]]:
            now = self._clock.now().timestamp()
            if self._caught_up != self._writer.connects:
                self._catch_up(cursor, now)
            batch = self._batch(cursor, now)
            results = batch.run(operations)
            _say_restored(batch.restored)
            if is_due and self._abandoned:
                batch.release(self._releasable(operations))
            if batch.has_read:
                # A restarted primary cut off from its synchronous standby shows commits that the
                # standby lacks. By confirming this write, the standby confirms all of them.
                again = Beat(self.lease.id, self.lease.clock(), 0.0)
                if not self._writer.sql.beat(cursor, again, self.lease.seconds, now):
                    raise LedgerLocked("another session has locked this worker's lease")
            return results, batch.resumed

        results: list[Any]
        try:
            if is_due:  # first: no claim may be visible without its lease
                self._renew()
            results, resumed = self._writer.write(write)
        except LedgerLocked as error:
            self._unknown.update(_tickets(operations))
            raise LedgerLocked(str(error), self._locked(operations)) from error
        except LedgerUnavailable as error:
            self._away_since = started
            if not isinstance(error, LedgerUnreachable):
                self._unknown.update(_tickets(operations))
            raise
        except EventIdTaken as error:
            if self._caught_up == self._writer.connects:
                raise
            # The journal's: another worker has replayed the same event at this moment.
            raise LedgerUnreachable(f"the journal could not be replayed: {error}") from error
        self._journal.add(operations, results)
        for ticket in resumed:
            self._abandoned.pop(ticket, None)
        if self._unknown:
            self._unknown.difference_update(_tickets(operations))
        if self.notifies and _records(operations):
            with suppress(LedgerUnavailable):  # it is written, and the leader polls
                self._writer.read(self._notices.recorded)
        return results

    def _renew(self) -> None:
        """Renew the lease in a transaction of its own: the rest of the batch may fail."""
        beat, now = self.lease.beating(), self._clock.now().timestamp()
        try:
            is_durable = self._writer.write(
                lambda cursor: self._writer.sql.beat(cursor, beat, self.lease.seconds, now)
            )
        except LedgerLocked as error:  # the table
            raise LedgerUnavailable(str(error)) from error
        if is_durable:
            self.lease.beaten(beat)

    def _locked(self, operations: Sequence[Operation]) -> list[Operation]:
        """Operations on rows under another session's lock. Raises LedgerUnavailable."""
        now = self._clock.now().timestamp()

        def search(cursor: Any) -> list[Operation]:
            self._writer.sql.write(cursor, ())  # needs the tables, and none of their rows
            return self._batch(cursor, now).locked(operations)

        try:
            locked: list[Operation] = self._writer.write(search)
        except LedgerLocked as error:  # a table: all operations wait alike
            raise LedgerUnavailable(str(error)) from error
        if locked:
            keys = [order_of(each) for each in locked[:3]]
            first = [f"{key.merchant_id}/{key.order_id}" for key in keys if key is not None]
            log.warning("ledger.locked", operations=len(locked), first=first)
        return locked

    def _releasable(self, operations: Sequence[Operation]) -> list[int]:
        """The oldest abandoned claims, except claims with a queued write."""
        abandoned = tuple(self._abandoned)
        queued = () if self._group is None else self._group.operations
        busy = {ticket_of(each) for each in (*operations, *queued)}
        return [each for each in abandoned if each not in busy][:RELEASED]

    def _batch(self, cursor: Any, now: float) -> Batch:
        return Batch(
            self._writer.sql,
            cursor,
            lease=self.lease,
            abandoned=self._abandoned,
            others=lambda owners: self._look(cursor, owners),
            now=now,
        )

    def _catch_up(self, cursor: Any, now: float) -> None:
        """Replay the journal on a new connection: after a failover outcomes may be missing."""
        restored, group = 0, self._group
        for operations in self._journal.batches():
            batch, locked = self._batch(cursor, now), []
            if group is not None and (locked := batch.locked(operations)):
                group.later(locked)
            batch.replay([each for each in operations if each not in locked])
            restored += len(batch.written)
        _say_restored(restored)
        self._caught_up = self._writer.connects

    def _look(self, cursor: Any, owners: Collection[str]) -> PeerLeases:
        now = self._clock.monotonic()
        if now - self._looked_at >= LOOK or not self._peers.know(owners):
            self._peers.look(self._writer.sql.leases(cursor), asked=now)
            self._looked_at = now
            self._writer.sql.forget(cursor, self._peers.long_over(FORGOTTEN))
        return self._peers

    def _release_lease(self) -> None:
        def write(cursor: Any) -> list[int]:
            now = self._clock.now().timestamp()
            # After a failover no other process remembers.
            if self._caught_up != self._writer.connects:
                self._catch_up(cursor, now)
            batch = self._batch(cursor, now)
            if self._abandoned:
                batch.release(tuple(self._abandoned)[:RELEASED])
            self._writer.sql.release(cursor, self.lease.worker)
            return batch.resumed

        def release() -> None:
            for ticket in self._writer.write(write):
                self._abandoned.pop(ticket, None)
            self._writer.close()

        try:
            self._run(release)
        except LedgerUnavailable as error:
            log.warning("lease.not_released", error=str(error))


def _say_restored(outcomes: int) -> None:
    if outcomes:
        log.error("ledger.outcomes_restored", outcomes=outcomes)
        metrics.ledger_restored.inc(outcomes)


def _of(key: Key, action: Action) -> Select[Any]:
    of_order = orders.c.merchant_id == key.merchant_id, orders.c.order_id == key.order_id
    return select(orders.c.payload).where(*of_order, orders.c.action == action)


def _records(operations: Sequence[Operation]) -> bool:
    """Whether an operation records an event."""
    return any(
        isinstance(each, Finishing | Recording) and each.entry.event is not None
        for each in operations
    )


def _size(operation: Operation) -> int:
    if type(operation) is Finishing:
        return len(operation.attempts or "")
    return len(getattr(operation, "payload", None) or "")


def _tickets(operations: Sequence[Operation]) -> list[int]:
    return [each.ticket for each in operations if isinstance(each, Claiming)]
