"""The ledger's SQL, for many rows at once.

Each statement is written once, with a name in braces for each value of a row. PostgreSQL gets a
batch's rows as a single JSON parameter, and unpacks the rows itself: fifty rows then cost this
process little more than a single row, with a single round trip and statement. SQLite is in this process, has
no round trips, and gets a row at a time.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from pydantic_core import from_json, to_json

from pos_gateway.database.schema import LAST_EVENT
from pos_gateway.ledger.lease import Beat, LeaseRow
from pos_gateway.ledger.states import SUSPECT

Row = Mapping[str, Any]

#: Operations on a row: claim a new order; send or finish a claimed order; record an event.
CLAIM, SEND, FINISH, RECORD = "claim", "send", "finish", "record"
#: A row's values, with their types.
_VALUES = {
    "op": "text",
    "merchant_id": "text",
    "order_id": "text",
    "action": "text",
    "state": "text",
    "was": "text",
    "owner": "text",
    "ticket": "bigint",
    "epoch": "bigint",
    "next_epoch": "bigint",
    "attempts": "integer",
    "deaths": "integer",
    "doubt_since": "double precision",
    "settling": "text",
    "taken_from": "text",
    "endpoint": "text",
    "pending": "boolean",
    "last_event": "text",
    "reopened": "integer",
    "external_id": "text",
    "reason_code": "text",
    "reason_message": "text",
    "keeps_reason": "boolean",
    "deliver_by": "double precision",
    "now": "double precision",
    "payload": "text",
    "event_id": "text",
    "type": "text",
    "trace": "text",
    "attempt_history": "text",
    "step": "text",
    "facts": "text",
    "adapted": "text",
}

_THIS = """
where orders.merchant_id = {merchant_id} and orders.order_id = {order_id}
  and orders.action = {action}"""

_OF_EPOCH = _THIS + " and orders.epoch = {epoch}"

# The state as an expression, here and below: if PostgreSQL planned while the tables were empty, a
# plain state would have all orders of the state looked through, by its index.

# The owner too: after a failover that lost epochs, the numbers are used again.
_UNDER_CLAIM = _OF_EPOCH + " and orders.owner = {owner}"

# A cancel request applies to the order's present generation.
_GENERATION = """case when {action} = 'cancel' then (
           select submission.reopened from orders submission
           where submission.merchant_id = {merchant_id} and submission.order_id = {order_id}
             and submission.action = 'submit') end"""

# An open cancel request for the order. A request that the POS may have carried out counts past its
# deadline, too, since the order would be a second order: the request is being sent, or was sent by
# a worker that died, or is in doubt.
_CANCELLING = """exists (
           select 1 from orders cancel_request
           where cancel_request.merchant_id = {merchant_id}
             and cancel_request.order_id = {order_id} and cancel_request.action = 'cancel'
             and cancel_request.state in ('new', 'claimed', 'sending')
             and (cancel_request.deliver_by > {now} or cancel_request.doubt_since is not null
                  or cancel_request.state = 'sending'))"""

# Not for a claim lost in a failover, with the order sent.
_INSERT = f"""
insert into orders (merchant_id, order_id, action, state, owner, ticket, epoch, attempts, deaths,
                    pending, reopened, generation, deliver_by, payload, endpoint,
                    attempt_history, step, facts, adapted, created_at, updated_at)
select {{merchant_id}}, {{order_id}}, {{action}},
       case when {{state}} = 'sending' and {{next_epoch}} is null and {_CANCELLING}
            then 'claimed' else {{state}} end,
       {{owner}}, {{ticket}},
       coalesce({{next_epoch}}, 1), 0, 0, false, 0,
       {_GENERATION}, {{deliver_by}}, {{payload}}, {{endpoint}},
       {{attempt_history}}, {{step}}, {{facts}}, {{adapted}}, {{created}}, {{now}}
{{from_rows}} where true
on conflict (merchant_id, order_id, action) do nothing"""

_COLUMNS = (
    "merchant_id order_id action state owner ticket epoch attempts deaths doubt_since pending "
    f"{LAST_EVENT} reopened external_id reason_code reason_message created_at updated_at "
    "deliver_by settling taken_from endpoint attempt_history step facts"
).split()
#: The names of a found row's values.
FOUND = (*_COLUMNS, "known_for", "cancelling", "is_overtaken")
_FOUND = f"""{", ".join(f"orders.{each}" for each in _COLUMNS)}, {{known_for}},
       orders.action = 'submit' and {_CANCELLING},
       orders.action = 'cancel' and exists (
           select 1 from orders submission
           where submission.merchant_id = orders.merchant_id
             and submission.order_id = orders.order_id and submission.action = 'submit'
             and submission.reopened > coalesce(orders.generation, 0))"""

_FIND = f"select {_FOUND} from orders{{and_rows}}" + _THIS

# An order without an owner whose history stays as it is at a claim: no worker was silent over the
# order, and this lease counts the seconds of a doubt. Nor has the order changed since the claim was
# asked for: PostgreSQL may run a lost connection's statement late, when its repetition has claimed
# the order, and even finished: no worker would know of this claim.
_UNCHANGED = """{op} = 'claim' and {next_epoch} is null and orders.action = 'submit'
  and orders.state in ('new', 'pending', 'in_doubt') and orders.taken_from is null
  and orders.updated_at <= {now}
  and (orders.doubt_since is null
       or (split_part(orders.settling, ' ', 1) = {owner}
           and nullif(split_part(orders.settling, ' ', 3), '')::double precision
               = orders.doubt_since))"""

# Such orders are claimed by the statement that writes: finding and taking would be two round trips
# and a commit more, for all orders of the batch to wait.
_KNOWN = (
    f"""
select {{ticket}}, {{owner}}, {{payload}}, {{deliver_by}}, {{now}}, orders.merchant_id, orders.order_id,
       orders.epoch, orders.state, json_build_array({_FOUND}) as found
from orders{{and_rows}}"""
    + _THIS
    + f" and orders.deaths < {SUSPECT} and {_UNCHANGED}"
)
_RECLAIM = """
update orders
set state = 'claimed', owner = known.owner, ticket = known.ticket, epoch = orders.epoch + 1,
    updated_at = known.now, payload = coalesce(orders.payload, known.payload),
    deliver_by = coalesce(orders.deliver_by, known.deliver_by)
from known
where orders.merchant_id = known.merchant_id and orders.order_id = known.order_id
  and orders.action = 'submit' and orders.epoch = known.epoch and orders.state || '' = known.state
returning known.ticket, known.found"""

#: Start of a doubt, kept while later sends renew ``doubt_since``.
_IN_DOUBT_SINCE = """case when {doubt_since} is not null and orders.doubt_since is not null
         then coalesce(orders.in_doubt_since, nullif(orders.doubt_since, {doubt_since})) end"""

_TAKE = (
    f"""
update orders
set state = {{state}}, owner = {{owner}}, ticket = {{ticket}},
    epoch = coalesce({{next_epoch}}, orders.epoch + 1),
    deaths = {{deaths}}, taken_from = {{taken_from}}, settling = {{settling}},
    doubt_since = {{doubt_since}}, in_doubt_since = {_IN_DOUBT_SINCE},
    {LAST_EVENT} = {{last_event}}, reopened = {{reopened}},
    generation = {_GENERATION}, updated_at = {{now}},
    payload = coalesce(orders.payload, {{payload}}), deliver_by = {{deliver_by}},
    endpoint = coalesce({{endpoint}}, orders.endpoint),
    attempt_history = coalesce({{attempt_history}}, orders.attempt_history),
    step = {{step}}, facts = coalesce({{facts}}, orders.facts),
    adapted = coalesce({{adapted}}, orders.adapted)
{{from_rows}}"""
    + _OF_EPOCH
    + " and orders.state || '' = {was}"
)

# Records an order's next step, not sent while a cancel request is open. The step before is known by
# now: doubt is the present step's alone.
_KEEPS_DOUBT = "{step} is null or {step} = orders.step"
# PostgreSQL may run a lost connection's statement late, when its repetition was confirmed and a
# later step is being sent. A failover may have lost the step before; a step of an earlier
# generation is ignored.
_IS_NEXT = """({step} is null or orders.step is null or orders.step in ({was}, {step})
       or orders.step not like orders.reopened || ' %')"""
_SENDING = (
    f"""
update orders
set state = case when replace({{step}}, '-', '') = {{step}} and {_CANCELLING}
            then 'claimed' else 'sending' end,
    endpoint = {{endpoint}}, updated_at = {{now}},
    adapted = case when {{step}} is null then {{adapted}} else orders.adapted end,
    step = coalesce({{step}}, orders.step), facts = coalesce({{facts}}, orders.facts),
    external_id = coalesce({{external_id}}, orders.external_id),
    pending = orders.pending or ({{step}} is not null and {{action}} = 'submit'),
    doubt_since = case when {_KEEPS_DOUBT} then orders.doubt_since else {{doubt_since}} end,
    in_doubt_since = case when {_KEEPS_DOUBT} then orders.in_doubt_since end,
    settling = case when {_KEEPS_DOUBT} then orders.settling end
{{from_rows}}"""
    + _UNDER_CLAIM
    + f" and orders.state in ('claimed', 'sending') and {_IS_NEXT}"
)

_FINISH = (
    f"""
update orders
set state = {{state}}, owner = null, attempts = {{attempts}}, doubt_since = {{doubt_since}},
    in_doubt_since = {_IN_DOUBT_SINCE}, settling = {{settling}}, pending = {{pending}},
    {LAST_EVENT} = coalesce({{last_event}}, orders.{LAST_EVENT}),
    external_id = coalesce({{external_id}}, orders.external_id), updated_at = {{now}},
    reason_code = case when {{keeps_reason}} then orders.reason_code else {{reason_code}} end,
    reason_message = case when {{keeps_reason}} then orders.reason_message else {{reason_message}} end,
    attempt_history = coalesce({{attempt_history}}, orders.attempt_history),
    step = case when {{state}} in ('new', 'pending', 'in_doubt')
                then coalesce({{step}}, orders.step) end,
    facts = coalesce({{facts}}, orders.facts)
{{from_rows}}"""
    + _UNDER_CLAIM
    + " and orders.state in ('claimed', 'sending')"
)

_RECORD = """
insert into events (event_id, type, merchant_id, order_id, occurred_at, external_id, reason_code,
                    reason_message, attempts, payload, trace)
select {event_id}, {type}, {merchant_id}, {order_id}, {now}, {external_id}, {reason_code},
       {reason_message}, {attempts}, {payload}, {trace}
{from_rows} where {event_id} is not null"""

# For an event alone, recorded at every delivery of its message. An outcome's event is written or
# fails: skipped, the event would be lost silently.
_ONCE = " and not exists (select 1 from events known where known.event_id = {event_id})"

# Rows under another session's lock.
_LOCKED = f"""
with free as materialized (
    select {{ticket}} as ticket from orders{{and_rows}}{_THIS} for update of orders skip locked)
select {{ticket}} from orders{{and_rows}}{_THIS} and {{ticket}} not in (select ticket from free)"""

_TAKEN = "select events.event_id from events{and_rows} where events.event_id = {event_id}"

_BEAT = """
update workers set beat = workers.beat + 1, beat_at = {now}, clock = {clock}
where id in (select id from workers where id = {id}{skipping})"""
_FIRST_BEAT = """
insert into workers (id, beat, lease, beat_at, clock) values ({id}, 1, {lease}, {now}, {clock})
on conflict (id) do nothing"""

_LEASES = "select id, beat, lease, clock from workers"
_FORGET = "delete from workers where id in (select id from workers where id = {id}{skipping})"
_RELEASE = "delete from workers where substr(id, 1, length({prefix})) = {prefix}"


class Written(NamedTuple):
    """The result of a write; an operation in neither changed no row."""

    #: Tickets: of claims without a row before; of sends and outcomes whose claim still held.
    #: Negative if the order is CLAIMED only.
    tickets: set[int]
    #: Claims of orders with a row, now CLAIMED: by ticket, the row before.
    reclaimed: dict[int, Sequence[Any]]


class LedgerStatements(ABC):
    """The ledger's statements in a database's dialect. Each is a transaction, or part of one."""

    _place: str
    #: Has a select leave out locked rows.
    _skipping: str
    _find: str
    _take: str
    _taken: str
    _locked: str

    @abstractmethod
    def write(self, cursor: Any, rows: Sequence[Row]) -> Written:
        """Write rows by their ``op``, with their events."""

    @abstractmethod
    def _run(self, cursor: Any, text: str, rows: Sequence[Row]) -> list[tuple[Any, ...]]:
        """Run a statement for all rows; returns the rows found."""

    def find(self, cursor: Any, rows: Sequence[Row]) -> list[tuple[Any, ...]]:
        """The existing rows of these orders."""
        return self._run(cursor, self._find, rows)

    def take(self, cursor: Any, rows: Sequence[Row]) -> set[int]:
        """Take over the rows unchanged since they were found; returns their tickets."""
        return {ticket for (ticket,) in self._run(cursor, self._take, rows)}

    def locked(self, cursor: Any, rows: Sequence[Row]) -> set[int]:
        """Tickets of rows under another session's lock, found without waiting."""
        return {ticket for (ticket,) in self._run(cursor, self._locked, rows)}

    def taken(self, cursor: Any, event_ids: Sequence[str]) -> set[str]:
        """Those of these ids that events have."""
        rows = [{"event_id": each} for each in event_ids]
        return {event_id for (event_id,) in self._run(cursor, self._taken, rows)}

    def beat(self, cursor: Any, beat: Beat, lease: float, now: float) -> bool:
        """Renew a lease; False: the row is locked."""
        values = {"id": beat.lease_id, "lease": lease, "now": now, "clock": beat.at}
        texts = (
            _filled(t, values, self._place, skipping=self._skipping) for t in (_BEAT, _FIRST_BEAT)
        )
        return any(cursor.execute(text, values).rowcount for text in texts)

    def leases(self, cursor: Any) -> list[LeaseRow]:
        """All leases."""
        found: list[LeaseRow] = cursor.execute(_LEASES).fetchall()
        return found

    def forget(self, cursor: Any, lease_ids: Iterable[str]) -> None:
        """Remove leases, except locked rows."""
        for lease_id in lease_ids:
            text = _filled(_FORGET, ("id",), self._place, skipping=self._skipping)
            cursor.execute(text, {"id": lease_id})

    def release(self, cursor: Any, worker: str) -> None:
        """Remove all leases of a worker."""
        prefix = {"prefix": f"{worker}-"}
        cursor.execute(_filled(_RELEASE, prefix, self._place), prefix)


class LedgerOnPostgreSQL(LedgerStatements):
    """Each statement is a transaction, without round trips for BEGIN and COMMIT.

    All of a batch's writes are a single statement.
    """

    _place, _skipping = "%({})s", " for update skip locked"
    #: No row is more than a minute younger than its time, whatever workers' times of day are.
    _now = "extract(epoch from clock_timestamp())::double precision"
    _times: ClassVar = {
        "created": f"least(r.now, {_now} + 60)",
        "known_for": f"greatest(r.now, {_now}) - orders.created_at",
    }
    _rows = f"json_to_recordset(%(rows)s) as r({', '.join(f'{n} {t}' for n, t in _VALUES.items())})"

    def __init__(self) -> None:
        from pos_gateway.database.psycopg_internals import Prepared  # noqa: PLC0415  (needs psycopg)

        done = " returning orders.ticket"
        of_those = f" and ({{op}} = 'record'{_ONCE} or {{ticket}} in (select ticket from finished))"
        fresh = _INSERT.replace("where true", "where {op} = 'claim'") + done + ", orders.state"
        sent = f"{_SENDING} and {{op}} = 'send'{done}, orders.state"
        finished = f"{_FINISH} and {{op}} = 'finish'{done}"
        recorded = _RECORD + of_those
        # Waits for no lock while the statement has locks: another worker's batch may wait for
        # these.
        known = _KNOWN + (
            " and {ticket} not in (select ticket from fresh) for update of orders skip locked"
        )
        fresh, sent, finished, recorded, known = (
            self._of("r", t) for t in (fresh, sent, finished, recorded, known)
        )
        write = f"""
with r as materialized (select * from {self._rows}),
fresh as ({fresh}), sent as ({sent}), finished as ({finished}), recorded as ({recorded}),
known as materialized ({known}), reclaimed as ({_RECLAIM})
select case state when 'claimed' then -ticket else ticket end, null::json from fresh
union all select case state when 'claimed' then -ticket else ticket end, null from sent
union all select ticket, null from finished
union all select ticket, found from reclaimed"""
        self._write = Prepared("ledger_write", write.replace("%(rows)s", "$1::json"))
        self._find, self._take, self._taken, self._locked = (
            self._of(self._rows, text) for text in (_FIND, _TAKE + done, _TAKEN, _LOCKED)
        )

    def write(self, cursor: Any, rows: Sequence[Row]) -> Written:
        tickets, reclaimed = set(), {}
        for ticket, found in self._write.execute(cursor.connection, to_json(rows)):
            if found is None:
                tickets.add(ticket)
            else:
                reclaimed[ticket] = from_json(found)
        return Written(tickets, reclaimed)

    @classmethod
    def _of(cls, rows: str, text: str) -> str:
        parts = {"from_rows": f"from {rows}", "and_rows": f", {rows}", **cls._times}
        return _filled(text, _VALUES, "r.{}", **parts)

    def _run(self, cursor: Any, text: str, rows: Sequence[Row]) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]]
        found = cursor.execute(text, {"rows": json.dumps(list(rows))}).fetchall()
        return found


class LedgerOnSQLite(LedgerStatements):
    """All statements of a batch share the caller's transaction."""

    _place, _skipping = ":{}", ""
    _times: ClassVar = {"created": ":now", "known_for": ":now - orders.created_at"}

    def __init__(self) -> None:
        texts = (_INSERT, _SENDING, _FINISH, _RECORD, _RECORD + _ONCE, _FIND, _TAKE, _TAKEN)
        insert, sending, finish, self._record, self._record_once, self._find, take, self._taken = (
            _filled(text, _VALUES, ":{}", from_rows="", and_rows="", **self._times)
            for text in texts
        )
        self._take = take + " returning ticket"
        self._texts = {
            CLAIM: insert + " returning state",
            SEND: sending + " returning state",
            FINISH: finish + " returning state",
        }

    def write(self, cursor: Any, rows: Sequence[Row]) -> Written:
        written = set()
        for row in rows:
            values, text = _all(row), self._texts.get(row["op"])
            if text is None:
                cursor.execute(self._record_once, values)
                continue
            for (state,) in cursor.execute(text, values).fetchall():
                written.add(-row["ticket"] if state == "claimed" else row["ticket"])
                if "event_id" in row:
                    cursor.execute(self._record, values)
        return Written(written, {})  # to find and to take costs no round trips here

    def locked(self, cursor: Any, rows: Sequence[Row]) -> set[int]:
        return set()  # the embedded database is locked as a whole

    def _run(self, cursor: Any, text: str, rows: Sequence[Row]) -> list[tuple[Any, ...]]:
        return [found for row in rows for found in cursor.execute(text, _all(row)).fetchall()]


_NOTHING = dict.fromkeys(_VALUES)


def _all(row: Row) -> dict[str, Any]:
    return {**_NOTHING, **row}


def _filled(text: str, values: Iterable[str], place: str, **others: str) -> str:
    """The statement with a database's placeholders."""
    return text.format(**{name: place.format(name) for name in values}, **others)
