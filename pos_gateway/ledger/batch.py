"""The ledger's operations, and the batch that runs them in one transaction."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from pos_gateway.domain.outcome import Reason, one_line
from pos_gateway.ledger import attempts
from pos_gateway.ledger.event_ids import renamed
from pos_gateway.ledger.lease import Lease, PeerLeases
from pos_gateway.ledger.settling import Settling
from pos_gateway.ledger.statements import (
    CLAIM,
    FINISH,
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
    State,
    Suspected,
    open_state,
)
from pos_gateway.ledger.step_mark import StepMark


@dataclass(slots=True, eq=False)
class Claiming:
    """Claim an order. Result: a Claim, Ended, LeasedElsewhere, or Suspected."""

    key: Key
    ticket: int
    send: bool
    deliver_by: float | None
    payload: str | None
    endpoint: str | None = None
    #: Leave one that is suspected to kill workers to a claim without this.
    unless_suspect: bool = False


@dataclass(slots=True, eq=False)
class Sending:
    """Commit SENDING, as the claim will be. Result: whether the claim holds; None: it does, and a
    cancel request is open, so that nothing may be sent.
    """

    claim: Claim
    #: The step before, as the claim had it.
    was: StepMark | None = None


@dataclass(slots=True, eq=False)
class Finishing:
    """Commit a claimed order's outcome. Result: whether the claim held."""

    claim: Claim
    entry: Entry
    #: The order's last attempts with this one; None: it does not count as one.
    attempts: str | None = None


@dataclass(slots=True, eq=False)
class Recording:
    """Record an event by itself, once."""

    key: Key
    entry: Entry
    payload: str | None


@dataclass(frozen=True, slots=True)
class Looking:
    """Read all leases; writes nothing."""


# Not frozen: every order makes two, and a frozen one takes three times as long.
Operation = Claiming | Sending | Finishing | Recording | Looking


#: Plain texts in rows: an enumeration's is two calls when it is written as JSON.
_SENDING, _CLAIMED = str(State.SENDING), str(State.CLAIMED)
_NO_HISTORY = AttemptHistory()
#: Of an order that has no row yet, and whose cancel request is open: it is not sent.
_TO_BE_CANCELLED = AttemptHistory(cancelling=True)
#: Maximum leases kept in ``taken_from``: more than make an order poison.
MAX_TAKEN_FROM = 8
#: Seconds after which an abandoned claim that is not in its row never will be: PostgreSQL may run
#: a statement of a lost connection until its ``statement_timeout``.
NEVER_COMMITTED_AFTER = 30.0


class Found:
    """An order's row as read from the database."""

    __slots__ = (
        "at",
        "epoch",
        "external_id",
        "history",
        "is_overtaken",
        "key",
        "owner",
        "state",
        "ticket",
    )

    def __init__(
        self,
        merchant_id: str,
        order_id: str,
        action: str,
        state: str,
        owner: str | None,
        ticket: int,
        epoch: int,
        attempts: int,
        deaths: int,
        doubt_since: float | None,
        pending: bool,
        last_event: str | None,
        reopened: int,
        external_id: str | None,
        reason_code: str | None,
        reason_message: str | None,
        created_at: float,
        updated_at: float,
        deliver_by: float | None,
        settling: str | None,
        taken_from: str | None,
        endpoint: str | None,
        attempt_history: str | None,
        step: str | None,
        facts: str | None,
        known_for: float | None,
        cancelling: bool,
        is_overtaken: bool,
    ) -> None:
        self.key = Key(merchant_id, order_id, Action(action))
        self.state = State(state)
        self.owner, self.ticket, self.epoch = owner, ticket, epoch
        self.history = AttemptHistory(
            attempts,
            deaths,
            doubt_since,
            bool(pending),
            last_event,
            reopened,
            deliver_by,
            bool(cancelling),
            created_at,
            tuple((taken_from or "").split()),
            Settling.parse(settling, doubt_since),
            endpoint=endpoint,
            recorded=attempt_history,
            reason=Reason(reason_code, reason_message or "") if reason_code else None,
            known_for=known_for,
            step=StepMark.parse(step, reopened),
            facts=facts,
            external_id=external_id,
        )
        self.external_id, self.at = external_id, updated_at
        #: A cancel request whose order was reopened since.
        self.is_overtaken = bool(is_overtaken)

    @property
    def leases(self) -> list[str]:
        """The leases it names."""
        settling = self.history.settling
        return [
            *([self.owner] if self.owner else []),
            *self.history.taken_from,
            *([settling.lease_id] if settling else []),
        ]


class Batch:
    """One transaction's operations. Uses nothing of gevent: it may run on a native thread.

    Args:
        say: the statements.
        cursor: executes them.
        lease: this worker's, under which it claims.
        abandoned: this worker's abandoned claims, by ticket.
        others: returns the other leases, read again if that was some time ago or a requested one
            is unknown.
        now: Unix time.
    """

    def __init__(
        self,
        say: LedgerStatements,
        cursor: Any,
        *,
        lease: Lease,
        abandoned: Mapping[int, Abandoned],
        others: Callable[[Collection[str]], PeerLeases],
        now: float,
    ) -> None:
        self._say = say
        self._cursor = cursor
        self._lease = lease
        self._lease_id = lease.id
        self._abandoned = abandoned
        self._others = others
        self._now = now
        #: Tickets of abandoned claims that end with this transaction.
        self.resumed: list[int] = []
        self._resuming: dict[int, int] = {}
        #: A result relies on a read that no later write of this transaction confirms.
        self.has_read = False
        #: Tickets of the operations written.
        self.written: set[int] = set()
        #: How many were outcomes whose claim the database had lost.
        self.restored = 0

    def run(self, operations: Sequence[Operation]) -> list[Any]:
        """Run the operations; returns their results, in order."""
        rows = {id(each): self._row(each) for each in operations if type(each) is not Looking}
        if len(rows) < len(operations):
            self._others(())
        # In key order, so that two workers' batches never deadlock.
        written, reclaimed = (
            self._say.write(self._cursor, sorted(rows.values(), key=_order))
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
                case Sending():  # again, it is written again: the answer says whether the claim holds
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
        )

    def replay(self, operations: Sequence[Finishing | Recording]) -> None:
        """Run outcomes again that were written: those that the database has lost are restored.

        Another worker may have had the order since, and have recorded the same event. The restored
        one gets another id: a replay that fails would fail each time.
        """
        outcomes = [each for each in operations if isinstance(each, Finishing)]
        ids = [each.entry.event.id for each in outcomes if each.entry.event is not None]
        taken = self._say.taken(self._cursor, ids) if ids else set()
        self.run([_with_a_free_id(each, taken) for each in operations])

    def locked(self, operations: Sequence[Operation]) -> list[Operation]:
        """Operations on rows under another session's lock."""
        rows = [
            {**_key(key), "ticket": ticket}
            for each in operations
            if (key := order_of(each)) is not None and (ticket := ticket_of(each)) is not None
        ]
        locked = self._say.locked(self._cursor, rows)
        return [each for each in operations if ticket_of(each) in locked]

    def release(self, tickets: Iterable[int]) -> None:
        """Reopen the orders of abandoned claims: no message may come to take them over.

        Locked orders wait for the next beat.
        """
        abandoned = {ticket: self._abandoned[ticket] for ticket in tickets}
        rows = [{**_key(each.key), "ticket": ticket} for ticket, each in abandoned.items()]
        for ticket in self._say.locked(self._cursor, rows):
            del abandoned[ticket]
        found = self._find({**_key(each.key), "now": self._now} for each in abandoned.values())
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
            self.resumed += self._say.take(self._cursor, released)

    def _without_owner(
        self, row: Found, history: AttemptHistory, recorded: str | None, ticket: int
    ) -> Row:
        """What writes that no attempt has the order; ``recorded`` None: its attempts are the same."""
        is_request = row.key.action is Action.CANCEL
        return {
            **_key(row.key),
            **_history(history),
            "state": State.NEW if is_request else open_state(history),
            "attempt_history": recorded,
            "ticket": ticket,
            "was": row.state,
            "epoch": row.epoch,
            "now": self._now,
        }

    def _is_under(self, row: Found, ticket: int) -> bool:
        """Whether the row is held under this claim."""
        is_ours = row.owner is not None and self._lease.is_ours(row.owner)
        return row.ticket == ticket and is_ours and row.state.is_leased

    def _row(self, operation: Operation) -> Row:
        match operation:
            case Claiming():
                key = operation.key
                return {
                    "merchant_id": key.merchant_id,
                    "order_id": key.order_id,
                    "action": str(key.action),
                    "op": CLAIM,
                    "state": _SENDING if operation.send else _CLAIMED,
                    "owner": self._lease_id,
                    "ticket": operation.ticket,
                    "deliver_by": operation.deliver_by,
                    "payload": operation.payload,
                    "endpoint": operation.endpoint if operation.send else None,
                    "now": self._now,
                }
            case Sending():
                claim = operation.claim
                row = {**_under(claim), "op": SEND, "endpoint": claim.endpoint, "now": self._now}
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
                    **_key(operation.key),
                    "op": RECORD,
                    **_entry(operation.entry),
                    "payload": operation.payload,
                }
            case _:
                raise TypeError(operation)

    def _claim_known(
        self, claimings: dict[int, Claiming], rows: dict[int, Row]
    ) -> dict[int, ClaimResult]:
        """Claim orders that already have a row."""
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
            is_same = standing.recorded is row.history.recorded  # it may be long
            recorded = None if is_same else standing.recorded
            if each.unless_suspect and standing.possible_deaths >= SUSPECT:
                results[ticket] = Suspected(standing.possible_deaths)
                # Its dead worker's lease is forgotten after minutes, and it may wait for longer.
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
                    "deliver_by": standing.deliver_by or each.deliver_by,
                }
            )
        taken = self._say.take(self._cursor, takeovers) if takeovers else set()
        # An abandoned claim that was itself written again stays abandoned.
        self.resumed += [self._resuming[ticket] for ticket in taken if ticket in self._resuming]
        lost = {each["ticket"] for each in takeovers} - taken
        return results | (self._claim_lost({t: claimings[t] for t in lost}, rows) if lost else {})

    def _claim_lost(
        self, claimings: dict[int, Claiming], rows: dict[int, Row]
    ) -> dict[int, ClaimResult]:
        """The results of claims whose rows have changed since they were found.

        Another worker was faster; or this very claim, by a statement whose connection was lost, and
        which PostgreSQL went on with. No attempt would serve it.
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
        """The other workers' leases that these rows name; None if they name none."""
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
        if row.key.action is Action.CANCEL:  # of two requests' deadlines the later counts
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
        """The claim's result for an order that this worker holds."""
        if row.ticket == claiming.ticket:  # this very claim: written, and the answer was lost
            if owner != self._lease_id:
                return row.history  # its lease has expired since: nothing was sent under it
            history, sending = self._by_now(row.history, None), row.state is State.SENDING
            return self._claim(claiming, row.epoch, history, sending=sending)
        if row.ticket not in self._abandoned:
            return LeasedElsewhere(owner)
        self._resuming[claiming.ticket] = row.ticket
        if not self._abandoned[row.ticket].sent:
            return row.history
        return replace(self._in_doubt(row), recorded=_with_lost(row, attempts.ABANDONED))

    def _in_doubt(self, row: Found) -> AttemptHistory:
        """The history of an order whose sender can no longer say what it sent."""
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
        # Its worker is gone: from here on this worker's clock counts.
        settling = Settling(self._lease_id, now - settled, history.doubt_since)
        return replace(history, settling=settling, settled=settled)

    def _settling(self, finishing: Finishing) -> Settling:
        """Since when the POS has had time: since now, if this attempt may have sent the order."""
        claim, since = finishing.claim, finishing.entry.doubt_since
        assert since is not None  # noqa: S101  (asked before)
        if claim.sending or claim.history.settling is None:
            return Settling(self._lease_id, self._lease.clock(), since)
        return replace(claim.history.settling, doubt_since=since)

    def _written_before(self, operations: list[Finishing]) -> dict[int, bool]:
        """Whether each was already written, and only the answer was lost."""
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

        One that had it may have sent it: then an outcome that says nothing of that is not written.
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
        """Write the lost claims again, then the outcomes; whether each was written."""
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
            self._say.write(self._cursor, claims)
        if takeovers:
            self._say.take(self._cursor, takeovers)
        written = self._say.write(self._cursor, [self._row(each) for each in operations]).tickets
        self.written |= written
        self.restored = len(written)
        return {id(each): each.claim.ticket in written for each in operations}

    def _find(self, rows: Iterable[Row]) -> dict[Key, Found]:
        found = (Found(*row) for row in self._say.find(self._cursor, list(rows)))
        return {row.key: row for row in found}


def _with_a_free_id(operation: Operation, taken: set[str]) -> Operation:
    """The operation; an outcome whose event's id is taken, with another one."""
    if not isinstance(operation, Finishing):
        return operation
    event = operation.entry.event
    if event is None or event.id not in taken:
        return operation
    entry = replace(operation.entry, event=renamed(event, operation.claim.epoch))
    return replace(operation, entry=entry)


def _is_asked_anew(row: Found, claiming: Claiming) -> bool:
    """Whether a cancel request reopens an earlier one that is terminal."""
    if row.key.action is not Action.CANCEL:
        return False
    has_more_time = (claiming.deliver_by or 0.0) > (row.history.deliver_by or 0.0)
    return row.is_overtaken or (has_more_time and row.state in (State.EXPIRED, State.FAILED))


def _with_lost(row: Found, code: str) -> str:
    """The row's attempts with the one under its claim, which leaves no outcome."""
    is_sent, owner = row.state is State.SENDING, row.owner or ""
    return attempts.with_lost(row.history.recorded, at=row.at, sent=is_sent, code=code, owner=owner)


def ticket_of(operation: Operation) -> int | None:
    """The ticket of the operation's claim, if the operation needs a claim."""
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


#: Of a row, by which rows are written.
_order = itemgetter("merchant_id", "order_id", "action")


def _key(key: Key) -> dict[str, Any]:
    return {"merchant_id": key.merchant_id, "order_id": key.order_id, "action": key.action}


def _under(claim: Claim) -> dict[str, Any]:
    key = claim.key
    return {
        "merchant_id": key.merchant_id,
        "order_id": key.order_id,
        "action": str(key.action),
        "epoch": claim.epoch,
        "owner": claim.owner,
        "ticket": claim.ticket,
    }


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
