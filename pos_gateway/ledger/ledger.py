"""What was asked for each order, and what came of it: the memory that outlives a worker.

An attempt claims its order, sends only after SENDING is durable, and writes its outcome and the
event that tells of it in one transaction, before the message is acknowledged. A claim hangs on its
worker's lease (``lease.py``) and has a number, the epoch, that only grows: what is written under
an earlier one changes nothing. So a message may be delivered any number of times, to any workers.
"""

import itertools
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

import structlog
from sqlalchemy import Engine, Select, select
from sqlalchemy.exc import SQLAlchemyError

from pos_gateway.database.schema import orders
from pos_gateway.domain.errors import EventIdTaken, LedgerUnavailable, LedgerUnreachable, Unfinished
from pos_gateway.domain.outcome import Reason
from pos_gateway.ledger.batch import (
    Batch,
    Claiming,
    Finishing,
    Looking,
    Operation,
    Recording,
    Sending,
)
from pos_gateway.ledger.commits import GroupCommit, at_once
from pos_gateway.ledger.event_ids import with_another_id
from pos_gateway.ledger.journal import Journal
from pos_gateway.ledger.lease import BEAT, LEASE, Beat, Lease, Others
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import (
    FINAL,
    Abandoned,
    Action,
    AttemptHistory,
    Claim,
    Ended,
    Entry,
    Key,
    LeasedElsewhere,
    State,
)
from pos_gateway.ledger.writer import Writer
from pos_gateway.runtime import failpoints
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock
from pos_gateway.runtime.vault import Vault
from pos_gateway.telemetry import metrics

log = structlog.get_logger(__name__)

#: Seconds that an attempt waits for its claim while the database is away; it can be tried again.
CLAIM_PATIENCE = 10.0
#: Seconds of the lease of a process that has no thread to beat: as long as a call may take at
#: most, and waiting for the ledger and the broker before and after it.
ALONE = 180.0
#: Seconds between two looks at the leases of others.
LOOK = 1.0
#: Lengths of a lease after which nobody asks for it any more, and its row is removed.
FORGOTTEN = 50.0
#: Abandoned claims that are released with a beat, at most.
RELEASED = 256
#: Seconds that closing waits until the lease is given back.
_GIVING_BACK = 2.0
#: Runs something that blocks without stopping this process's green threads.
Run = Callable[[Callable[[], Any]], Any]


def here(do: Callable[[], Any]) -> Any:
    """Runs it where it is called."""
    return do()


class Ledger:
    """Claims and outcomes, many orders' in one transaction. Safe from green threads.

    Args:
        engine: the database.
        payloads: seals what people's names may be in; None: it is kept as it is.
        run: runs what blocks; a green worker whose database is embedded hands in its hub's pool
            of native threads, so that a write to disk does not stop its loop.
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
        self._writer = Writer(engine)
        self._group: GroupCommit | None = None
        self._commit: Callable[..., Any] = at_once(self._write)
        self._begin()
        self._stopping = threading.Event()
        self._beater: threading.Thread | None = None

    def _begin(self) -> None:
        """Be a worker of which the database knows nothing."""
        self._tickets = itertools.count(1)
        #: Claims of this worker's that nobody deals with any more, by ticket.
        self._abandoned: dict[int, Abandoned] = {}
        #: Claims that may have been written, by tickets, and no answer has come yet.
        self._unheard: set[int] = set()
        self.lease = Lease(ALONE, self._clock)
        self._journal = Journal(self._clock)
        #: The writer's connection whose database has all that is in the journal.
        self._caught_up = 0
        self._others = Others(self._clock)
        self._looked_at = -inf
        #: Since when the database is known to be away.
        self._away_since: float | None = None

    def claim(
        self,
        key: Key,
        *,
        send: bool,
        deliver_by: float | None = None,
        order: bytes | None = None,
        endpoint: str | None = None,
    ) -> Claim | Ended | LeasedElsewhere:
        """The right to deal with the order; or what is known of it, or that somebody else has it.

        Args:
            key: which order, and what is to be done.
            send: it will be sent at once: an order without a past is then SENDING with the claim.
            deliver_by: when it is worthless (Unix time).
            order: the order itself, kept for those who ask for it later.
            endpoint: the POS that it would be sent to.

        Raises:
            LedgerUnavailable: the database is away; nothing may be sent.
        """
        ticket = next(self._tickets)
        payload = None if order is None else self._payloads.seal(key, order)
        failpoints.reach("claim.before")
        try:
            claimed: Claim | Ended | LeasedElsewhere = self._commit(
                Claiming(key, ticket, send, deliver_by, payload, endpoint), patience=CLAIM_PATIENCE
            )
            failpoints.reach("claim.after")
        except BaseException as error:
            # While the database is away for hours, thousands of claims were never written.
            given_up = isinstance(error, LedgerUnavailable)
            if ticket in self._unheard or not given_up:
                self._abandoned[ticket] = Abandoned(key, False, self.lease.clock())
            self._unheard.discard(ticket)
            raise
        if isinstance(claimed, Claim):
            claimed.payload, claimed.deliver_by = payload, deliver_by
            claimed.endpoint = endpoint if claimed.sending else claimed.past.endpoint
        if isinstance(claimed, Ended) and claimed.reason is not None:
            return replace(claimed, reason=self._payloads.open_reason(key, claimed.reason))
        return claimed

    def sending(self, claim: Claim, endpoint: str | None = None) -> bool:
        """Make durable that the POS may be sent it from now on; False: the claim is lost.

        Args:
            claim: the right to send it.
            endpoint: which POS that is.

        Raises:
            LedgerUnavailable: the database is away; nothing may be sent.
        """
        holds: bool = self._commit(Sending(claim, endpoint), patience=CLAIM_PATIENCE)
        claim.sending = holds
        if holds:
            claim.endpoint = endpoint
        return holds

    @property
    def problem(self) -> str | None:
        """Why nothing can be claimed at present, if it cannot. Nobody is asked: its lease tells."""
        holds = self.lease.holds(self.lease.id)
        return None if holds else "the database has not answered for seconds, or was not asked yet"

    def holds(self, claim: Claim) -> bool:
        """Whether the claim is still this worker's for certain. Asked before the first byte."""
        return self.lease.holds(claim.owner)

    def abandon(self, claim: Claim, *, sent: bool) -> None:
        """Nobody deals with it any more (its green thread was killed): the next one may have it.

        If no message comes to take it, the next beats release it.

        Args:
            sent: whether bytes may have left under it.
        """
        abandoned = Abandoned(claim.key, sent, self.lease.clock())
        self._abandoned.setdefault(claim.ticket, abandoned)

    def attempting(self, claim: Claim) -> AbstractContextManager[None]:
        """Carry the claim out of the block with an exception; give it up with a killed green thread.

        Raises:
            Unfinished: from whatever the block raised.
        """
        return _Attempting(self, claim)

    def dealing_with(self, claim: Claim) -> AbstractContextManager[None]:
        """Give the claim up if the block does not get to its end."""
        return _Dealing(self, claim)

    def finish(self, claim: Claim, entry: Entry, *, patience: float = inf) -> bool:
        """Write what came of it, and its event; False: somebody else has taken the order over.

        Raises:
            LedgerUnavailable: the database was away for so long, or this process is going down.
        """
        failpoints.reach("outcome.before")
        sealed = self._sealed(claim.key, entry)
        try:
            written: bool = self._commit(Finishing(claim, sealed), patience=patience)
        except EventIdTaken:
            if sealed.event is None:
                raise
            sealed = replace(sealed, event=with_another_id(claim.key, sealed.event, claim.epoch))
            written = self._commit(Finishing(claim, sealed), patience=patience)
        failpoints.reach("outcome.committed")
        return written

    def tell(self, key: Key, entry: Entry, body: bytes | None, *, patience: float = inf) -> None:
        """Write the event of something that has no row: a message that is no order. Once by its id.

        Args:
            key: whose it says it is.
            entry: what came of it.
            body: what it says; None: what its row has, if there is one.
            patience: seconds to wait for the database.

        Raises:
            LedgerUnavailable: as ``finish``.
        """
        payload = None if body is None else self._payloads.seal(key, body)
        telling = Recording(key, self._sealed(key, entry), payload)
        with suppress(EventIdTaken):  # another worker recorded it at the same moment
            self._commit(telling, patience=patience)

    def ends(self, key: Key) -> list[tuple[Key, Ended]]:
        """How the order and a request to cancel it ended, as far as either has and was told.

        Raises:
            LedgerUnavailable: the database is away.
        """
        query = (
            select(orders)
            .where(orders.c.merchant_id == key.merchant_id, orders.c.order_id == key.order_id)
            .where(orders.c.told.is_not(None), orders.c.state.in_(FINAL))
            .order_by(orders.c.action.desc())  # to submit it, then to cancel it
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
        past = AttemptHistory(row.attempts, told=row.told, reopened=row.reopened)
        return Ended(State(row.state), row.updated_at, reason, row.external_id, past)

    def order(self, key: Key) -> bytes | None:
        """The order as it was kept; None if it is not.

        Raises:
            LedgerUnavailable: the database is away.
            CannotOpen: there is no key to it any more.
        """

        query = select(orders.c.payload).where(
            orders.c.merchant_id == key.merchant_id,
            orders.c.order_id == key.order_id,
            orders.c.action == Action.SUBMIT,
        )
        found = self._rows(query)
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
        if entry.reason is None:
            return entry
        # An adapter may have made it from whatever a POS has said.
        reason = Reason.of(entry.reason.code, entry.reason.message)
        return replace(entry, reason=self._payloads.seal_reason(key, reason))

    def catch_up(self) -> None:
        """Return when what others have asked for before is durable.

        Raises:
            LedgerUnavailable: the database is away.
        """
        self._commit(Looking(), patience=CLAIM_PATIENCE)

    def start(self) -> None:
        """Begin to beat, and to commit many orders' writes together. Idempotent."""
        if self._beater is None:
            self.lease = Lease(LEASE, self._clock)
            self._group = self._commit = GroupCommit(self._write, _size)
            self._beater = threading.Thread(target=self._beat, name="lease", daemon=True)
            self._beater.start()

    def start_alone(self) -> None:
        """Begin in a process that was forked, has one order at a time and no thread to spare.

        What its parent has done is the parent's: its claims, and what it may have to write again.
        """
        self._begin()

    def close(self) -> None:
        """Give the lease back, once nothing is under way any more. Idempotent."""
        self._stopping.set()
        if self._group is not None and not self._group.close():
            log.warning("lease.not_given_back", error="the database does not answer")
            return  # the lease runs out by itself
        giving_back = threading.Thread(
            target=partial(self._give_back, self.lease.ids), name="lease", daemon=True
        )
        self.lease.end()  # first: whoever is not done yet may not send any more
        giving_back.start()
        giving_back.join(_GIVING_BACK)  # it may have to connect, to a database that is not there
        if giving_back.is_alive():
            log.warning("lease.not_given_back", error="the database does not answer")

    def _beat(self) -> None:
        while not self._stopping.wait(BEAT / 2):
            try:
                self._commit(Looking(), patience=BEAT)
            except LedgerUnavailable:
                continue  # said by the commit; without a lease nothing is sent
            except Exception:  # a row that makes no sense, say, and the next beat may be one again
                log.exception("lease.mistake")

    def _write(self, operations: Sequence[Operation]) -> list[Any]:
        results: list[Any] = self._run(lambda: self._transact(operations))
        return results

    def _transact(self, operations: Sequence[Operation]) -> list[Any]:
        """Everything in one go, a beat included if it is time for one."""
        started = self._clock.monotonic()
        if self._away_since is not None:
            self._others.excuse(started - self._away_since)
            self._away_since = None
        beat = self.lease.beating() if self.lease.is_due else None

        def write(cursor: Any) -> tuple[list[Any], list[int]]:
            now = self._clock.now().timestamp()
            if beat is not None:  # first: nobody may see a claim under a lease that is not there
                self._writer.say.beat(cursor, beat, self.lease.seconds, now)
            if self._caught_up != self._writer.connects:
                self._catch_up(cursor, now)
            batch = self._batch(cursor, now)
            results = batch.run(operations)
            _say_restored(batch.restored)
            if beat is not None and self._abandoned:
                batch.release(self._releasable(operations))
            if batch.has_read:
                # A primary that is cut off from its synchronous standby, and was restarted, shows what
                # it never committed to anybody. What it confirms after that, the standby has all of.
                again = Beat(self.lease.id, self.lease.clock(), 0.0)
                self._writer.say.beat(cursor, again, self.lease.seconds, now)
            return results, batch.resumed

        results: list[Any]
        try:
            results, resumed = self._writer.write(write)
        except LedgerUnavailable as error:
            self._away_since = started
            if not isinstance(error, LedgerUnreachable):
                self._unheard.update(_tickets(operations))
            raise
        if beat is not None:
            self.lease.beaten(beat)
        self._journal.add(operations, results)
        for ticket in resumed:
            self._abandoned.pop(ticket, None)
        if self._unheard:
            self._unheard.difference_update(_tickets(operations))
        return results

    def _releasable(self, operations: Sequence[Operation]) -> list[int]:
        """The claims that were abandoned first, but for those that something is yet written of."""
        abandoned = tuple(self._abandoned)
        queued = () if self._group is None else self._group.operations
        busy = {_ticket(each) for each in (*operations, *queued)}
        return [each for each in abandoned if each not in busy][:RELEASED]

    def _batch(self, cursor: Any, now: float) -> Batch:
        return Batch(
            self._writer.say,
            cursor,
            lease=self.lease,
            abandoned=self._abandoned,
            others=lambda owners: self._look(cursor, owners),
            now=now,
        )

    def _catch_up(self, cursor: Any, now: float) -> None:
        """Write again what a database that was failed over to may lack: it is a new connection."""
        restored = 0
        for operations in self._journal.batches():
            batch = self._batch(cursor, now)
            batch.run(operations)
            restored += len(batch.written)
        _say_restored(restored)
        self._caught_up = self._writer.connects

    def _look(self, cursor: Any, owners: Collection[str]) -> Others:
        now = self._clock.monotonic()
        if now - self._looked_at >= LOOK or not self._others.know(owners):
            self._others.look(self._writer.say.leases(cursor), asked=now)
            self._looked_at = now
            self._writer.say.forget(cursor, self._others.long_over(FORGOTTEN))
        return self._others

    def _give_back(self, lease_ids: list[str]) -> None:
        def write(cursor: Any) -> None:
            if self._abandoned:
                batch = self._batch(cursor, self._clock.now().timestamp())
                batch.release(tuple(self._abandoned)[:RELEASED])
            self._writer.say.forget(cursor, lease_ids)

        def give_back() -> None:
            self._writer.write(write)
            self._writer.close()

        try:
            self._run(give_back)
        except LedgerUnavailable as error:
            log.warning("lease.not_given_back", error=str(error))


def _say_restored(outcomes: int) -> None:
    if outcomes:
        log.error("ledger.outcomes_restored", outcomes=outcomes)
        metrics.ledger_restored.inc(outcomes)


def _size(operation: Operation) -> int:
    return len(getattr(operation, "payload", None) or "")


def _ticket(operation: Operation) -> int | None:
    match operation:
        case Claiming():
            return operation.ticket
        case Sending() | Finishing():
            return operation.claim.ticket
    return None


def _tickets(operations: Sequence[Operation]) -> list[int]:
    return [each.ticket for each in operations if isinstance(each, Claiming)]


class _Attempting:
    """See ``Ledger.attempting``. No generator, as ``_Dealing``."""

    __slots__ = ("_claim", "_ledger")

    def __init__(self, ledger: Ledger, claim: Claim) -> None:
        self._ledger, self._claim = ledger, claim

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        if isinstance(error, Unfinished):  # the claims within this one
            raise Unfinished([self._claim, *error.claims]) from error.__cause__
        if isinstance(error, Exception):
            raise Unfinished([self._claim]) from error
        if error is not None:
            self._ledger.abandon(self._claim, sent=self._claim.sending)


class _Dealing:
    """See ``Ledger.dealing_with``. No generator: every order has two."""

    __slots__ = ("_claim", "_ledger")

    def __init__(self, ledger: Ledger, claim: Claim) -> None:
        self._ledger, self._claim = ledger, claim

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._ledger.abandon(self._claim, sent=self._claim.sending)
