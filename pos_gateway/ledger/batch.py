"""The ledger's operations, and the batch that runs operations in a transaction."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from pos_gateway.database.schema import LAST_EVENT
from pos_gateway.domain.outcome import Reason, one_line
from pos_gateway.ledger import attempts
from pos_gateway.ledger.event_ids import renamed
from pos_gateway.ledger.lease import Lease, PeerLeases
from pos_gateway.ledger.statements import (
    CLAIM,
    FINISH,
    FOUND,
    RECORD,
    SEND,
    LedgerStatements,
    Row,
    Written,
)
from pos_gateway.ledger.states import (
    SUSPECT,
    Abandoned,
    Action,
    AttemptHistory,
    Claim,
    ClaimResult,
    Ended,
    Entry,
    Key,
    LeasedElsewhere,
    Settling,
    State,
    StepMark,
    Suspected,
    open_state,
)


@dataclass(slots=True, eq=False)
class Claiming:
    """Claim an order. Result: a Claim, Ended, LeasedElsewhere or Suspected."""

    key: Key
    ticket: int
    send: bool
    deliver_by: float | None
    payload: str | None
    endpoint: str | None = None
    adapted: str | None = None
    #: Leave an order suspected of killing workers to a claim without this flag.
    unless_suspect: bool = False


@dataclass(slots=True, eq=False)
class Sending:
    """Commit SENDING, with the claim as it will be.

    Result: whether the claim holds; None: the claim holds, but an open cancel request forbids
    sending.
    """

    claim: Claim
    #: The claim's step before.
    was: StepMark | None = None


@dataclass(slots=True, eq=False)
class Finishing:
    """Commit a claimed order's outcome. Result: whether the claim held."""

    claim: Claim
    entry: Entry
    #: The order's last attempts with this attempt; None: not counted as an attempt.
    attempts: str | None = None


@dataclass(slots=True, eq=False)
class Recording:
    """Record an event alone, once."""

    key: Key
    entry: Entry
    payload: str | None


@dataclass(frozen=True, slots=True)
class Looking:
    """Read all leases; writes nothing."""


# Not frozen: every order makes two, and a frozen dataclass takes three times as long.
Operation = Claiming | Sending | Finishing | Recording | Looking


#: Plain texts in rows: an enumeration takes two calls when written as JSON.
_SENDING, _CLAIMED = str(State.SENDING), str(State.CLAIMED)
_NO_HISTORY = AttemptHistory()
#: History of an order without a row and with an open cancel request: not to be sent.
_TO_BE_CANCELLED = AttemptHistory(cancelling=True)
#: Maximum leases kept in ``taken_from``: more than make an order poison.
MAX_TAKEN_FROM = 8
#: Seconds after which an abandoned claim missing in its row never will be there: PostgreSQL may run
#: a statement of a lost connection until its ``statement_timeout``.
NEVER_COMMITTED_AFTER = 30.0


class Found:
    """An order's row, read from the database: the values of ``statements.FOUND``."""

    def __init__(self, *values: Any) -> None:
        row = dict(zip(FOUND, values, strict=True))
        doubt_since, reopened, code = row["doubt_since"], row["reopened"], row["reason_code"]
        self.key = Key(row["merchant_id"], row["order_id"], Action(row["action"]))
        self.state = State(row["state"])
        self.owner, self.ticket, self.epoch = row["owner"], row["ticket"], row["epoch"]
        self.external_id, self.at = row["external_id"], row["updated_at"]
        self.history = AttemptHistory(
            row["attempts"],
            row["deaths"],
            doubt_since,
            bool(row["pending"]),
            row[LAST_EVENT],
            reopened,
            row["deliver_by"],
            bool(row["cancelling"]),
            row["created_at"],
            tuple((row["taken_from"] or "").split()),
            Settling.parse(row["settling"], doubt_since),
            endpoint=row["endpoint"],
            recorded=row["attempt_history"],
            reason=Reason(code, row["reason_message"] or "") if code else None,
            known_for=row["known_for"],
            step=StepMark.parse(row["step"], reopened),
            facts=row["facts"],
            external_id=row["external_id"],
        )
        #: A cancel request older than its order's last reopening.
        self.is_overtaken = bool(row["is_overtaken"])

    @property
    def leases(self) -> list[str]:
        """All leases named in the row."""
        settling = self.history.settling
        return [
            *([self.owner] if self.owner else []),
            *self.history.taken_from,
            *([settling.lease_id] if settling else []),
        ]


class Batch:
    """A transaction's operations. Uses nothing of gevent: may run on a native thread.

    Args:
        sql: the statements.
        cursor: executes the statements.
        lease: this worker's, for new claims.
        abandoned: this worker's abandoned claims, by ticket.
        others: returns peers' leases, read again after some time, or for an unknown lease.
        now: Unix time.
    """

    def __init__(
        self,
        sql: LedgerStatements,
        cursor: Any,
        *,
        lease: Lease,
        abandoned: Mapping[int, Abandoned],
        others: Callable[[Collection[str]], PeerLeases],
        now: float,
    ) -> None:
        self._sql = sql
        self._cursor = cursor
        self._lease = lease
        self._lease_id = lease.id
        self._abandoned = abandoned
        self._others = others
        self._now = now
        #: Tickets of abandoned claims ended by this transaction.
        self.resumed: list[int] = []
        self._resuming: dict[int, int] = {}
        #: A result relies on a read without a later write of this transaction to confirm the read.
        self.has_read = False
        #: Tickets of the operations written.
        self.written: set[int] = set()
        #: Number of outcomes written for claims lost by the database.
        self.restored = 0

    def run(self, operations: Sequence[Operation]) -> list[Any]:
        """Run the operations; returns their results, in order."""
        rows = {id(each): self._row(each) for each in operations if type(each) is not Looking}
        if len(rows) < len(operations):
            self._others(())
        # In key order: two workers' batches never deadlock.
        written, reclaimed = (
            self._sql.write(self._cursor, sorted(rows.values(), key=_order))
            if rows
            else Written(set(), {})
        )
        self.written = written
        results: dict[int, Any] = {}
        known: dict[int, Claiming] = {}
        lost: list[Finishing] = []
        for each in operations:
            match each:
                case Claiming() if each.ticket in written:
                    results[id(each)] = self._claim(each, 1, _NO_HISTORY, sending=True)
                case Claiming() if -each.ticket in written:
                    history = _TO_BE_CANCELLED if each.send else _NO_HISTORY
                    results[id(each)] = self._claim(each, 1, history)
                case Claiming() if each.ticket in reclaimed:
                    row = Found(*reclaimed[each.ticket])
                    history = self._by_now(row.history, None)
                    results[id(each)] = self._claim(each, row.epoch + 1, history)
                case Claiming():
                    known[each.ticket] = each
                case Sending():  # a repetition is written again: tells whether the claim holds
                    is_open = -each.claim.ticket in written
                    results[id(each)] = None if is_open else each.claim.ticket in written
                case Finishing():
                    results[id(each)] = each.claim.ticket in written
                    if not results[id(each)]:
                        lost.append(each)
        if known:
            standings = self._claim_known(known, {t: rows[id(each)] for t, each in known.items()})
            results |= {id(each): standings[ticket] for ticket, each in known.items()}
        if lost:
            results |= self._written_before(lost)
        return [results.get(id(each)) for each in operations]

    def _claim(
        self, claiming: Claiming, epoch: int, history: AttemptHistory, *, sending: bool = False
    ) -> Claim:
        """The granted claim, complete: a lost row is restored from the claim alone."""
        return Claim(
            claiming.key,
            self._lease_id,
            epoch,
            claiming.ticket,
            history,
            sending,
            claiming.payload,
            claiming.deliver_by,
            claiming.endpoint if sending else history.endpoint,
            claiming.adapted,
        )

    def replay(self, operations: Sequence[Finishing | Recording]) -> None:
        """Run written outcomes again: outcomes lost by the database are restored.

        Another worker may have had the order since, and have recorded the same event. The restored
        event gets another id: a replay with the same id would fail each time.
        """
        outcomes = [each for each in operations if isinstance(each, Finishing)]
        ids = [each.entry.event.id for each in outcomes if each.entry.event is not None]
        taken = self._sql.taken(self._cursor, ids) if ids else set()
        self.run([_with_a_free_id(each, taken) for each in operations])

    def locked(self, operations: Sequence[Operation]) -> list[Operation]:
        """Operations on rows locked elsewhere."""
        rows = [
            {**key.columns, "ticket": ticket}
            for each in operations
            if (key := order_of(each)) is not None and (ticket := ticket_of(each)) is not None
        ]
        locked = self._sql.locked(self._cursor, rows)
        return [each for each in operations if ticket_of(each) in locked]

    def release(self, tickets: Iterable[int]) -> None:
        """Reopen the orders of abandoned claims, since no message may come for a takeover.

        Locked orders wait for the next beat.
        """
        abandoned = {ticket: self._abandoned[ticket] for ticket in tickets}
        rows = [{**each.key.columns, "ticket": ticket} for ticket, each in abandoned.items()]
        for ticket in self._sql.locked(self._cursor, rows):
            del abandoned[ticket]
        found = self._find({**each.key.columns, "now": self._now} for each in abandoned.values())
        now = self._lease.clock()
        released: list[Row] = []
        for ticket, each in sorted(abandoned.items(), key=lambda item: item[1].key):
            row = found.get(each.key)
            if row is None or not self._is_under(row, ticket):
                if now - each.since >= NEVER_COMMITTED_AFTER:
                    self.resumed.append(ticket)
                    self.has_read = True
                continue
            history, recorded = row.history, None
            if each.sent and row.state is State.SENDING:
                settling = Settling(self._lease_id, now, self._now)
                history = replace(history, doubt_since=self._now, settling=settling)
                recorded = _with_lost(row, attempts.ABANDONED)
            released.append(self._without_owner(row, history, recorded, ticket))
        if released:
            self.resumed += self._sql.take(self._cursor, released)

    def _without_owner(
        self, row: Found, history: AttemptHistory, recorded: str | None, ticket: int
    ) -> Row:
        """The row without an owner; ``recorded`` None: with the same attempts."""
        is_request = row.key.action is Action.CANCEL
        return {
            **row.key.columns,
            **_history(history),
            "state": State.NEW if is_request else open_state(history),
            "attempt_history": recorded,
            "ticket": ticket,
            "was": row.state,
            "epoch": row.epoch,
            "now": self._now,
        }

    def _is_under(self, row: Found, ticket: int) -> bool:
        """Whether this claim still owns the row."""
        is_ours = row.owner is not None and self._lease.is_ours(row.owner)
        return row.ticket == ticket and is_ours and row.state.is_leased

    def _row(self, operation: Operation) -> Row:
        match operation:
            case Claiming():
                return {
                    **operation.key.columns,
                    "op": CLAIM,
                    "state": _SENDING if operation.send else _CLAIMED,
                    "owner": self._lease_id,
                    "ticket": operation.ticket,
                    "deliver_by": operation.deliver_by,
                    "payload": operation.payload,
                    "endpoint": operation.endpoint if operation.send else None,
                    "adapted": operation.adapted,
                    "now": self._now,
                }
            case Sending():
                claim = operation.claim
                row = {**_under(claim), "op": SEND, "endpoint": claim.endpoint, "now": self._now}
                row["adapted"] = claim.adapted
                if claim.history.step is not None:
                    row |= _step(claim.history)
                    row["external_id"] = claim.history.external_id
                    row["doubt_since"] = claim.history.doubt_since
                    row["was"] = operation.was and str(operation.was)
                return row
            case Finishing():
                row, history = _entry(operation.entry), operation.claim.history
                if history.step is not None and not operation.entry.state.is_final:
                    row = _step(history) | row  # a failover may have lost it
                row.update(_under(operation.claim), op=FINISH, attempt_history=operation.attempts)
                if operation.entry.doubt_since is not None:
                    row["settling"] = str(self._settling(operation))
                return row
            case Recording():
                return {
                    **operation.key.columns,
                    "op": RECORD,
                    **_entry(operation.entry),
                    "payload": operation.payload,
                }
            case _:
                raise TypeError(operation)

    def _claim_known(
        self, claimings: dict[int, Claiming], rows: dict[int, Row]
    ) -> dict[int, ClaimResult]:
        """Claim orders with a row."""
        found = self._find(rows[ticket] for ticket in claimings)
        others = self._others_of(found.values())
        results: dict[int, ClaimResult] = {}
        takeovers: list[Row] = []
        for ticket, each in sorted(claimings.items(), key=lambda item: item[1].key):
            row = found.get(each.key)
            if row is None:  # removed between the two statements
                results[ticket] = LeasedElsewhere("")
                continue
            deaths = row.history.deaths
            standing = self._standing(row, each, others)
            if not isinstance(standing, AttemptHistory):
                results[ticket] = standing
                self.has_read |= not isinstance(standing, LeasedElsewhere)
                continue
            is_same = standing.recorded is row.history.recorded  # compares no long texts
            recorded = None if is_same else standing.recorded
            if each.unless_suspect and standing.possible_deaths >= SUSPECT:
                results[ticket] = Suspected(standing.possible_deaths)
                # Now: the dead worker's lease is soon forgotten, and the order may wait longer.
                if row.state.is_leased or standing.deaths != deaths:
                    takeovers.append(self._without_owner(row, standing, recorded, ticket))
                continue
            results[ticket] = self._claim(each, row.epoch + 1, standing)
            takeovers.append(
                {
                    **rows[ticket],
                    "state": State.CLAIMED,
                    "was": row.state,
                    "epoch": row.epoch,
                    **_history(standing),
                    "attempt_history": recorded,
                    "endpoint": None,  # nothing is sent there yet, and another POS may have it
                    "adapted": None,
                    "deliver_by": standing.deliver_by or each.deliver_by,
                }
            )
        taken = self._sql.take(self._cursor, takeovers) if takeovers else set()
        # A claim whose own write was repeated stays abandoned.
        self.resumed += [self._resuming[ticket] for ticket in taken if ticket in self._resuming]
        lost = {each["ticket"] for each in takeovers} - taken
        return results | (self._claim_lost({t: claimings[t] for t in lost}, rows) if lost else {})

    def _claim_lost(
        self, claimings: dict[int, Claiming], rows: dict[int, Row]
    ) -> dict[int, ClaimResult]:
        """The results of claims with rows changed since the read.

        Another worker was faster; or this very claim, by a statement whose connection was lost, and
        which PostgreSQL finished. No attempt would serve such a claim.
        """
        found = self._find(rows[ticket] for ticket in claimings)
        own = {
            ticket: each
            for ticket, each in claimings.items()
            if (row := found.get(each.key)) is not None and self._is_under(row, ticket)
        }
        results = self._claim_known(own, rows) if own else {}
        return {ticket: LeasedElsewhere("") for ticket in claimings} | results

    def _others_of(self, rows: Iterable[Found]) -> PeerLeases | None:
        """Peers' leases, if these rows name any."""
        named = {each for row in rows for each in row.leases}
        leases = [each for each in named if not self._lease.is_ours(each)]
        return self._others(leases) if leases else None

    def _standing(
        self, row: Found, claiming: Claiming, others: PeerLeases | None
    ) -> Claim | Ended | LeasedElsewhere | AttemptHistory:
        """The claim's result; an AttemptHistory if the order may be taken over."""
        if row.state.is_final:
            if _is_asked_anew(row, claiming):
                reopened, doubt_since = row.history.reopened + 1, row.history.doubt_since
                return AttemptHistory(
                    doubt_since=doubt_since,
                    reopened=reopened,
                    deliver_by=claiming.deliver_by,
                    recorded=row.history.recorded,
                )
            return Ended(row.state, row.at, row.history.reason, row.external_id, row.history)
        if row.key.action is Action.CANCEL:  # the later deadline of two requests counts
            latest = max(row.history.deliver_by or 0.0, claiming.deliver_by or 0.0)
            row.history = replace(row.history, deliver_by=latest)
        if not row.state.is_leased or row.owner is None:
            return self._by_now(row.history, others)
        if others is None or self._lease.is_ours(row.owner):
            own = self._own(row, row.owner, claiming)
            return self._by_now(own, others) if isinstance(own, AttemptHistory) else own
        if not others.is_over(row.owner):
            return LeasedElsewhere(row.owner)
        history = self._in_doubt(row)
        history = replace(history, recorded=_with_lost(row, attempts.WORKER_LOST))
        if others.may_have_died(row.owner):
            history = replace(history, taken_from=(*history.taken_from, row.owner))
        return self._by_now(history, others)

    def _own(
        self, row: Found, owner: str, claiming: Claiming
    ) -> Claim | LeasedElsewhere | AttemptHistory:
        """The claim's result for an order of this worker."""
        if row.ticket == claiming.ticket:  # this very claim: written, and the answer was lost
            if owner != self._lease_id:
                return row.history  # the lease has expired since: nothing was sent under it
            history, sending = self._by_now(row.history, None), row.state is State.SENDING
            return self._claim(claiming, row.epoch, history, sending=sending)
        if row.ticket not in self._abandoned:
            return LeasedElsewhere(owner)
        self._resuming[claiming.ticket] = row.ticket
        if not self._abandoned[row.ticket].sent:
            return row.history
        return replace(self._in_doubt(row), recorded=_with_lost(row, attempts.ABANDONED))

    def _in_doubt(self, row: Found) -> AttemptHistory:
        """The history of an order with a lost sender, in doubt if SENDING."""
        if row.state is not State.SENDING:
            return row.history
        return replace(row.history, doubt_since=self._now, settling=None)

    def _by_now(self, history: AttemptHistory, others: PeerLeases | None) -> AttemptHistory:
        """The history, updated from the present clocks and leases."""
        if history.taken_from and others is not None:
            silent = [each for each in history.taken_from if others.may_have_died(each)]
            dead = [each for each in silent if others.has_died(each)]
            still_open = tuple(each for each in silent if each not in dead)
            history = replace(history, deaths=history.deaths + len(dead), taken_from=still_open)
        if history.doubt_since is None:
            return history
        settling, now = history.settling, self._lease.clock()
        if settling is not None and self._lease.is_ours(settling.lease_id):
            return replace(history, settled=now - settling.since)
        settled = 0.0
        if settling is not None and others is not None:
            clock = others.clock_of(settling.lease_id)
            settled = 0.0 if clock is None else max(0.0, clock - settling.since)
            if not others.has_gone(settling.lease_id):
                return replace(history, settled=settled)
        # The worker is gone: from here on this worker's clock counts.
        settling = Settling(self._lease_id, now - settled, history.doubt_since)
        return replace(history, settling=settling, settled=settled)

    def _settling(self, finishing: Finishing) -> Settling:
        """When the POS's time began: now, if this attempt may have sent the order."""
        claim, since = finishing.claim, finishing.entry.doubt_since
        assert since is not None  # noqa: S101  (asked before)
        if claim.sending or claim.history.settling is None:
            return Settling(self._lease_id, self._lease.clock(), since)
        return replace(claim.history.settling, doubt_since=since)

    def _written_before(self, operations: list[Finishing]) -> dict[int, bool]:
        """Whether each outcome was already written, with only the answer lost."""
        found = self._find(_under(each.claim) for each in operations)

        def was_written(each: Finishing) -> bool:
            row, written = found.get(each.claim.key), (each.claim.epoch, each.entry.state)
            return row is not None and (row.epoch, row.state) == written

        results = {id(each): was_written(each) for each in operations}
        self.has_read |= any(results.values())
        lost = [each for each in operations if self._is_lost(each, found.get(each.claim.key))]
        return results | (self._restored(lost, found) if lost else {})

    def _is_lost(self, finishing: Finishing, row: Found | None) -> bool:
        """Whether a failover lost the claim, and no other worker has the order since.

        Another worker may have sent the order: then only an outcome that keeps the doubt is
        written.
        """
        if row is None:
            return True
        if row.epoch >= finishing.claim.epoch or row.state.is_final:
            return False
        may_be_there = row.state is State.SENDING or row.history.may_be_there
        if may_be_there and not finishing.entry.keeps_doubt:
            return False
        if not row.state.is_leased or row.owner is None or self._lease.is_ours(row.owner):
            return True
        return self._others([row.owner]).is_over(row.owner)

    def _restored(self, operations: list[Finishing], found: Mapping[Key, Found]) -> dict[int, bool]:
        """Write the lost claims again, then the outcomes; returns whether each was written."""
        claims: list[Row] = []
        takeovers: list[Row] = []
        for each in sorted(operations, key=lambda each: each.claim.key):
            claim, row = each.claim, found.get(each.claim.key)
            again = {
                **_under(claim),
                "op": CLAIM,
                "state": State.SENDING,
                "next_epoch": claim.epoch,
                **_history(claim.history),
                "endpoint": claim.endpoint,
                "adapted": claim.adapted,
                "deliver_by": claim.history.deliver_by or claim.deliver_by,
                "payload": claim.payload,
                "attempt_history": claim.history.recorded,
                "now": self._now,
            }
            if row is None:
                claims.append(again)
            else:
                takeovers.append({**again, "was": row.state, "epoch": row.epoch})
        if claims:
            self._sql.write(self._cursor, claims)
        if takeovers:
            self._sql.take(self._cursor, takeovers)
        written = self._sql.write(self._cursor, [self._row(each) for each in operations]).tickets
        self.written |= written
        self.restored = len(written)
        return {id(each): each.claim.ticket in written for each in operations}

    def _find(self, rows: Iterable[Row]) -> dict[Key, Found]:
        found = (Found(*row) for row in self._sql.find(self._cursor, list(rows)))
        return {row.key: row for row in found}


def _with_a_free_id(operation: Operation, taken: set[str]) -> Operation:
    """The operation, with a new id for an outcome's event with a taken id."""
    if not isinstance(operation, Finishing):
        return operation
    event = operation.entry.event
    if event is None or event.id not in taken:
        return operation
    entry = replace(operation.entry, event=renamed(event, operation.claim.epoch))
    return replace(operation, entry=entry)


def _is_asked_anew(row: Found, claiming: Claiming) -> bool:
    """Whether a cancel request reopens an earlier terminal request."""
    if row.key.action is not Action.CANCEL:
        return False
    has_more_time = (claiming.deliver_by or 0.0) > (row.history.deliver_by or 0.0)
    return row.is_overtaken or (has_more_time and row.state in (State.EXPIRED, State.FAILED))


def _with_lost(row: Found, code: str) -> str:
    """The row's attempts, and its claim's attempt, which ended without an outcome."""
    is_sent, owner = row.state is State.SENDING, row.owner or ""
    return attempts.with_lost(row.history.recorded, at=row.at, sent=is_sent, code=code, owner=owner)


def ticket_of(operation: Operation) -> int | None:
    """The ticket of the operation's claim, if any."""
    match operation:
        case Claiming():
            return operation.ticket
        case Sending() | Finishing():
            return operation.claim.ticket
    return None


def order_of(operation: Operation) -> Key | None:
    """The order whose row or event the operation writes."""
    match operation:
        case Claiming() | Recording():
            return operation.key
        case Sending() | Finishing():
            return operation.claim.key
    return None


#: The sequence of rows in a write.
_order = itemgetter("merchant_id", "order_id", "action")


def _under(claim: Claim) -> dict[str, Any]:
    of_claim = {"epoch": claim.epoch, "owner": claim.owner, "ticket": claim.ticket}
    return {**claim.key.columns, **of_claim}


def _history(history: AttemptHistory) -> dict[str, Any]:
    return {
        "deaths": history.deaths,
        "taken_from": " ".join(history.taken_from[-MAX_TAKEN_FROM:]) or None,
        "doubt_since": history.doubt_since,
        "settling": history.settling and str(history.settling),
        "last_event": history.last_event,
        "reopened": history.reopened,
        "deliver_by": history.deliver_by,
        **_step(history),
    }


def _step(history: AttemptHistory) -> dict[str, Any]:
    return {"step": history.step and str(history.step), "facts": history.facts}


def _entry(entry: Entry) -> dict[str, Any]:
    row: dict[str, Any] = {
        "state": str(entry.state),
        "now": entry.at,
        "attempts": entry.attempts,
        "doubt_since": entry.doubt_since,
        "pending": entry.pending,
        "external_id": entry.external_id and one_line(entry.external_id)[:256],
    }
    if entry.reason is not None:
        row |= {"reason_code": entry.reason.code, "reason_message": entry.reason.message}
    if entry.keeps_reason:
        row["keeps_reason"] = True
    if entry.progress is not None:
        row["facts"] = entry.progress
    event = entry.event
    if event is not None:
        row["event_id"], row["type"], row["last_event"] = event.id, event.kind, event.kind
        if event.trace is not None:
            row["trace"] = str(event.trace)
    return row
