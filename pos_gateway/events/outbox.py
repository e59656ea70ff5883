"""The event pipeline's SQL: one statement per batch on PostgreSQL.

A position is assigned and counted in one transaction, by the leader of the present epoch only.
Rows are picked by id. A later event of an order has the higher id, since its transaction begins
after the earlier event's commit; so a reader of the later event sees the earlier event, too. A row
with a low id and a late commit gets a later position; assigned positions never change. The same
holds for a row locked by another session, and for later events of its order.

The leader and helpers lock rows and never wait (``skip locked``), so cannot deadlock.
"""

import json
import select
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Engine

from pos_gateway.events.floor import Floor
from pos_gateway.ledger.event_notices import CHANNEL
from pos_gateway.ledger.lease import LeaseRow
from pos_gateway.ledger.ledger import Run, here
from pos_gateway.ledger.states import Key
from pos_gateway.ledger.writer import Writer

T = TypeVar("T")

#: Seconds without a notice after which the connection is checked.
_QUIET = 10.0
#: An id after every row's.
BACK = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Term:
    """The pipeline's progress, as known to its leader."""

    #: The leader's lease; None: no leader.
    leader: str | None
    epoch: int
    #: The highest position assigned.
    assigned: int
    #: The highest position confirmed by the broker, with all before.
    published: int


class Row(NamedTuple):
    """An event as recorded with its outcome, with its order and merchant."""

    id: int
    position: int | None
    event_id: str
    #: The event's type without ``order.``.
    kind: str
    merchant_id: str
    order_id: str
    occurred_at: float
    external_id: str | None
    reason_code: str | None
    reason_message: str | None
    attempts: int
    #: The body hydrated by a helper, sealed.
    body: str | None
    #: The order, sealed; None: not kept.
    payload: str | None
    provider: str | None
    adapter: str | None
    #: The event's trace.
    trace: str | None = None
    #: The fields adapted for the POS, as JSON; of acceptances.
    adapted: str | None = None

    @property
    def key(self) -> Key:
        """The order's key."""
        return Key(self.merchant_id, self.order_id)


class Outbox:
    """Reads and writes events on its own connection. For a single caller at a time.

    Every call raises LedgerUnavailable when the database is away. A write may or may not have
    succeeded then; call again.
    """

    def __init__(self, engine: Engine, *, run: Run = here) -> None:
        self._writer = Writer(engine, session=_BY_INDEX)
        self._run = run
        self._say = _SQLite() if engine.dialect.name == "sqlite" else _PostgreSQL()
        #: Whether the database has notices to wait for.
        self.has_notices = engine.dialect.name != "sqlite"
        #: The connection that listens for notices, seconds without a notice, and whether one came.
        self._listening, self._quiet_for, self._was_notified = 0, 0.0, False
        #: The last assignment found events: the next reads events at once.
        self._is_busy = False
        self._floor = Floor()
        #: The events read by the last assignment.
        self._assigned: list[Row] = []

    def look(self) -> tuple[Term, list[LeaseRow]]:
        """The pipeline's progress, then all leases."""
        return self._do(lambda cursor: (self._say.term(cursor), self._writer.sql.leases(cursor)))

    def leases(self) -> list[LeaseRow]:
        """All leases."""
        return self._do(self._writer.sql.leases)

    def take(self, leader: str, epoch: int) -> Term | None:
        """Become the leader, if the epoch is still the same; None: another process leads."""
        return self._do(lambda cursor: self._say.take(cursor, leader, epoch))

    def resign(self, term: Term) -> None:
        """Resign, if the epoch is still the same, and store the published position."""
        self._do(lambda cursor: self._say.resign(cursor, term))

    def assign(self, term: Term, most: int) -> Term | None:
        """Assign positions to at most ``most`` events, and store the published position.

        None: another process leads, and nothing was written.
        """
        assign = self._say.assign_and_read if self._is_busy else self._say.assign
        self._assigned, self._is_busy = [], False

        def search(cursor: Any) -> Assigned:
            writers = partial(self._say.writers, cursor)
            floor = self._floor.before(self._writer.connects, writers)
            return assign(cursor, term, most, floor)

        found, rows = self._do(search)
        if found is None or found[0] != term.epoch:
            return None
        _, before, after, last = (*found, None)[:4]
        if after is not None and last != _SOME_ARE_LOCKED:
            self._floor.found(last, is_all=after - before < most)
        self._assigned = rows
        self._is_busy = after is not None and after > term.assigned
        if after is None and before > term.assigned:
            # The answer to an assignment of this epoch was lost. The read positions may not be
            # durable, but become durable with a later write.
            confirmed = self._do(lambda cursor: self._say.confirm(cursor, term))
            if not confirmed:
                return None
        return replace(term, assigned=before if after is None else after)

    def show(self, term: Term) -> None:
        """Store the published position, where the next assignment is a while off.

        For readers of the table. Lost in a crash of the database. SQLite stores the position
        only with the next assignment: each commit is a write to the disk.
        """
        self._do(lambda cursor: self._say.show(cursor, term))

    def skip(self, term: Term, position: int) -> Term | None:
        """Continue after this position, assigned and then lost by the database.

        None: another process leads, and nothing was written.
        """
        skipped = self._do(lambda cursor: self._say.skip(cursor, term, position))
        return replace(term, assigned=position) if skipped else None

    def read(self, after: int, most: int) -> list[Row]:
        """The next events after this position, in order."""
        rows, self._assigned = self._assigned, []
        if rows and rows[0].position == after + 1:
            return rows[:most]
        return self._do(lambda cursor: self._say.read(cursor, after, most))

    def chunk(
        self, helper: str, alive: Sequence[str], *, below: int = BACK, most: int, behind: int
    ) -> list[Row]:
        """Lease events from the back to a helper, if more than ``behind`` have no position.

        Args:
            helper: the helper's lease.
            alive: live leases: events leased to a live lease are skipped.
            below: only rows before this id.
            most: maximum number of events.
            behind: number of events without a position above which the leader gets help.
        """
        values = {
            "helper": helper,
            "alive": list(alive),
            "below": below,
            "most": most,
            "behind": behind,
        }
        return self._do(lambda cursor: self._say.chunk(cursor, values))

    def write(self, bodies: Iterable[tuple[int, str]]) -> None:
        """Store hydrated bodies by row, where the row has neither a body nor a position yet."""
        rows = [{"id": row_id, "body": body} for row_id, body in bodies]
        self._do(lambda cursor: self._say.write(cursor, rows))

    def prune(self, before: float, most: int, now: float = inf) -> int:
        """Remove events before this moment (Unix time) among the first ``most`` published events.

        Returns their number. Fewer than ``most``: no older event is left, or older events are
        behind newer events, or locked. Events dated ahead of ``now`` do not count as newer: the
        clock of a machine was wrong, and wrong events may be many.
        """
        values = {"before": before, "most": most, "now": now}
        return self._do(lambda cursor: self._say.prune(cursor, values))

    def hear(self, seconds: float, bell: int) -> bool:
        """Wait for another process's notice of an event, for at most ``seconds``.

        Returns whether there was a notice, or may have been; early if ``bell``, a file descriptor,
        has something to read.
        """

        def listen(cursor: Any) -> bool:
            connection = cursor.connection
            if self._listening != self._writer.connects:
                # With a handler, psycopg keeps no backlog of notices that come with other results.
                connection.add_notify_handler(self._notified)
                cursor.execute(f"listen {CHANNEL}")
                self._listening, self._was_notified = self._writer.connects, True
            elif self._quiet_for >= _QUIET:  # a dead connection is as quiet
                cursor.execute("select 1")
                self._quiet_for = 0.0
            elif not self._was_notified:
                self._was_notified = _is_notified(connection, seconds, bell)
            heard, self._was_notified = self._was_notified, False
            self._quiet_for = 0.0 if heard else self._quiet_for + seconds
            return heard

        return bool(self._writer.read(listen))

    def _notified(self, _: object) -> None:
        self._was_notified = True

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._writer.close()

    def _do(self, do: Callable[[Any], T]) -> T:
        result: T = self._run(lambda: self._writer.write(do))
        return result


def _is_notified(connection: Any, seconds: float, bell: int) -> bool:
    """Whether PostgreSQL sends a notification within this time. Raises psycopg.OperationalError."""
    if connection.pgconn.notifies() is None:
        poll = select.poll()  # unlike ``select.select``, also with thousands of open files
        for each in (connection.fileno(), bell):
            poll.register(each, select.POLLIN)
        if all(ready == bell for ready, _ in poll.poll(seconds * 1000)):
            return False
        connection.pgconn.consume_input()
        if connection.pgconn.notifies() is None:
            return False
    while connection.pgconn.notifies() is not None:  # take all of them
        pass
    return True


# PostgreSQL plans by statistics from before the backlog, when few rows had no position: plans would
# read and sort all of them each time. These settings leave only the index.
_BY_INDEX = (
    "set plan_cache_mode = force_custom_plan; set enable_sort = off; set enable_material = off"
)

_TERM = "select leader, epoch, assigned, published from pipeline where id = 1"

# The first leader begins at the end of the positions, in case this row was lost.
_BEGIN = """
insert into pipeline (id, leader, epoch, assigned, published)
select 1, null, 0, coalesce(max(position), 0), coalesce(max(position), 0) from events where true
on conflict (id) do nothing"""

_TAKE = """
update pipeline set leader = {leader}, epoch = epoch + 1 where id = 1 and epoch = {epoch}
returning leader, epoch, assigned, published"""

_RESIGN = """
update pipeline set leader = null, published = {published} where id = 1 and epoch = {epoch}"""

# Not durable: readers wait, and the next assignment stores the position again.
_SHOW = """
with lazily as materialized (select set_config('synchronous_commit', 'off', true))
update pipeline set published = $1::bigint from lazily
where id = 1 and epoch = $2::bigint and published < $1::bigint"""

_CONFIRM = "update pipeline set epoch = epoch where id = 1 and epoch = {epoch}"

_SKIP = """
update pipeline set assigned = {position}
where id = 1 and epoch = {epoch} and assigned <= {position}"""

# Beside a transaction that holds a snapshot (a dump, a report), every event with a new position
# leaves an entry in the index. Such entries are before the floor, and so not read each time.
_FRONT = """
select id, merchant_id, order_id from events
where position is null and id > {floor} order by id limit {most}"""

# Transactions that may have taken ids of the table: the lock precedes the first id, and stays.
_WRITERS = """
select virtualtransaction from pg_locks
where relation = 'events'::regclass and mode = 'RowExclusiveLock' and pid <> pg_backend_pid()"""

#: The columns of a ``Row``; the events to read follow. Subqueries, since a join might scan all
#: orders.
ROWS = """
select events.id, events.position, events.event_id, events.type, events.merchant_id,
       events.order_id, events.occurred_at, events.external_id, events.reason_code,
       events.reason_message, events.attempts, events.body,
       coalesce(events.payload, (
           select payload from orders
           where orders.merchant_id = events.merchant_id and orders.order_id = events.order_id
             and orders.action = 'submit')) as payload,
       (select provider from merchants where merchants.id = events.merchant_id),
       (select adapter from merchants where merchants.id = events.merchant_id),
       events.trace,
       case when events.type = 'accepted' then (
           select adapted from orders
           where orders.merchant_id = events.merchant_id and orders.order_id = events.order_id
             and orders.action = 'submit') end as adapted
from """

#: Bytes of orders after which a batch is full, however few its events are.
BATCH_BYTES = 4 * 2**20

_READ = (
    ROWS
    + """(
    select * from events where position > {after} order by position limit {most}) events
order by position"""
)

# Counted from the last position on, for the same reason as the front.
_BACK = """
select id from events
where position is null and id < {below} and body is null and (helper is null or not {is_alive})
  and exists (
      select 1 from events
      where position is null and id > coalesce((
          select id from events where position = (select assigned from pipeline where id = 1)), 0)
      order by id limit 1 offset {behind})
order by id desc limit {most}"""

# Only of the first events: a search for old events would scan all events.
_PRUNE = """
delete from events where id in (
    select id from events
    where occurred_at < {before} and id in (
        select id from (
            select id from events
            where occurred_at <= {now}
              and position <= (select published from pipeline where id = 1)
            order by position limit {most}) front){skipping})"""


_WIDTH = len(Row._fields)

#: Instead of an id: events before the last have no position yet.
_SOME_ARE_LOCKED = -1
#: Epoch, highest positions before and after an assignment (None: nothing was written), and the last
#: event's id, if there is a row; and the events, if read.
Assigned = tuple[tuple[Any, ...] | None, list[Row]]


def _of(term: Term, most: int, floor: int) -> dict[str, Any]:
    return {
        "epoch": term.epoch,
        "assigned": term.assigned,
        "published": term.published,
        "most": most,
        "floor": floor,
    }


def _size(row: Row) -> int:
    return len(row.payload or "") + len(row.body or "")


def _integers(*values: int) -> Iterator[bytes]:
    return (b"%d" % each for each in values)


class _SharedStatements:
    """The statements of both databases."""

    _place: str
    #: Has a select lock its rows, and leave out locked rows.
    _skipping: str
    _read = _READ

    def term(self, cursor: Any) -> Term:
        found = cursor.execute(_TERM).fetchone()
        if found is None:
            cursor.execute(_BEGIN)
            found = cursor.execute(_TERM).fetchone()
        return Term(*found)

    def take(self, cursor: Any, leader: str, epoch: int) -> Term | None:
        found = self._all(cursor, _TAKE, {"leader": leader, "epoch": epoch})
        return Term(*found[0]) if found else None

    def resign(self, cursor: Any, term: Term) -> None:
        values = {"published": term.published, "epoch": term.epoch}
        cursor.execute(self._filled(_RESIGN, values), values)

    def confirm(self, cursor: Any, term: Term) -> bool:
        values = {"epoch": term.epoch}
        return bool(cursor.execute(self._filled(_CONFIRM, values), values).rowcount)

    def skip(self, cursor: Any, term: Term, position: int) -> bool:
        values = {"epoch": term.epoch, "position": position}
        return bool(cursor.execute(self._filled(_SKIP, values), values).rowcount)

    def read(self, cursor: Any, after: int, most: int) -> list[Row]:
        return [
            Row._make(each[:_WIDTH])
            for each in self._all(cursor, self._read, {"after": after, "most": most})
        ]

    def prune(self, cursor: Any, values: Mapping[str, Any]) -> int:
        text = self._filled(_PRUNE, values, skipping=self._skipping)
        removed: int = cursor.execute(text, values).rowcount
        return removed

    def _all(self, cursor: Any, text: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]]
        found = cursor.execute(self._filled(text, values), values).fetchall()
        return found

    def _filled(self, text: str, names: Iterable[str], **others: str) -> str:
        return text.format(**{name: self._place.format(name) for name in names}, **others)


class _PostgreSQL(_SharedStatements):
    """Each statement is a transaction."""

    _place, _skipping = "%({})s", " for update skip locked"

    # The length of a text is known without reading the text.
    @staticmethod
    def _within(rows: str, order: str = "") -> str:
        """The first rows, until ``BATCH_BYTES``."""
        size = "coalesce(octet_length(payload), 0) + coalesce(octet_length(body), 0)"
        before = f"over ({order} rows between unbounded preceding and 1 preceding)"
        return f"""
select * from (
    select found.*, coalesce(sum({size}) {before}, 0)::bigint as before from ({rows}) found) counted
where before < {BATCH_BYTES}"""

    _read = _within(_READ, "order by position") + " order by position"

    # ``assigned`` is compared as well as the epoch. A statement whose answer was lost may still run
    # when repeated: the repetition would wait, count the rows once more, and leave a gap.
    _NUMBER = f"""
with free as materialized ({_FRONT} for update skip locked),
locked as materialized (
    select id, merchant_id, order_id from events
    where position is null and id > {{floor}} and id < coalesce((select max(id) from free), {BACK})
      and id not in (select id from free)),
picked as materialized (
    select id, row_number() over (order by id) as number from free
    where not exists (
        select from locked
        where locked.merchant_id = free.merchant_id and locked.order_id = free.order_id
          and locked.id < free.id)),
lead as (
    update pipeline set published = {{published}},
                        assigned = pipeline.assigned + (select count(*) from picked)
    where id = 1 and epoch = {{epoch}} and assigned = {{assigned}}
      and (published < {{published}} or exists (select from picked))
    returning assigned),
given as (
    update events set position = {{assigned}} + picked.number
    from picked, lead where events.id = picked.id
    returning events.*)"""

    _LAST = f"""
(select case when exists (select from locked) then {_SOME_ARE_LOCKED} else max(id) end from picked)"""

    # An idle leader runs this all the time.
    _ASSIGN = f"""{_NUMBER}
select epoch, concat_ws(' ', assigned, (select concat_ws(' ', assigned, {_LAST}) from lead))
from pipeline where id = 1"""

    # Saves a round trip.
    _ASSIGN_AND_READ = f"""{_NUMBER}
select pipeline.epoch, pipeline.assigned, (select assigned from lead),
       {_LAST}, events.*
from pipeline left join ({_within(ROWS + "given events", "order by position")}) events on true
where pipeline.id = 1 order by events.position"""

    _CHUNK = f"""
with back as materialized ({_BACK} for update skip locked),
found as materialized ({_within(ROWS + "back join events on events.id = back.id")}),
leased as (update events set helper = {{helper}} from found where events.id = found.id)
select * from found"""

    _WRITE = """
with r as materialized (select * from json_to_recordset({rows}) as r(id bigint, body text)),
free as materialized (
    select found.id, r.body from r cross join lateral (
        select id from events where events.id = r.id and position is null and body is null
        for update skip locked) found)
update events set body = free.body from free where events.id = free.id"""

    def __init__(self) -> None:
        from pos_gateway.database.psycopg_internals import Prepared  # noqa: PLC0415  (needs psycopg)

        self._show = Prepared("events_show", _SHOW)
        places = {"published": 1, "epoch": 2, "assigned": 3, "most": 4, "floor": 5}
        text = self._ASSIGN.format(**{name: f"${n}::bigint" for name, n in places.items()})
        self._assign = Prepared("events_assign", text)

    def show(self, cursor: Any, term: Term) -> None:
        self._show.execute(cursor.connection, *_integers(term.published, term.epoch))

    def writers(self, cursor: Any) -> set[str]:
        return {each for (each,) in cursor.execute(_WRITERS)}

    def assign(self, cursor: Any, term: Term, most: int, floor: int = 0) -> Assigned:
        values = _integers(term.published, term.epoch, term.assigned, most, floor)
        rows = self._assign.execute(cursor.connection, *values)
        if not rows:
            return None, []
        epoch, positions = rows[0]
        before, *after = (int(each) for each in (positions or b"").split())
        return (epoch, before, *after, None, None)[:4], []

    def assign_and_read(self, cursor: Any, term: Term, most: int, floor: int = 0) -> Assigned:
        found = self._all(cursor, self._ASSIGN_AND_READ, _of(term, most, floor))
        # Without an id there is no row.
        rows = [Row._make(each[4 : 4 + _WIDTH]) for each in found if each[4] is not None]
        return (found[0][:4] if found else None), rows

    def chunk(self, cursor: Any, values: Mapping[str, Any]) -> list[Row]:
        text = self._CHUNK.replace("{is_alive}", "helper = any({alive}::text[])")
        rows = [Row._make(each[:_WIDTH]) for each in self._all(cursor, text, values)]
        return sorted(rows, key=lambda row: -row.id)

    def write(self, cursor: Any, rows: Sequence[Mapping[str, Any]]) -> None:
        values = {"rows": json.dumps(rows)}
        cursor.execute(self._filled(self._WRITE, values), values)


class _SQLite(_SharedStatements):
    """Each call is a transaction without concurrent writers."""

    _place, _skipping = ":{}", ""

    def show(self, cursor: Any, term: Term) -> None:
        pass

    def writers(self, cursor: Any) -> None:
        """Unknown: the floor stays in place, and the index keeps no deleted entry."""

    def assign(self, cursor: Any, term: Term, most: int, floor: int = 0) -> Assigned:
        found = cursor.execute(_TERM).fetchone()
        if found is None or Term(*found).epoch != term.epoch:
            return None, []
        _, epoch, assigned, published = found
        if assigned != term.assigned:
            return (epoch, assigned, None), []
        ids = [row[0] for row in self._all(cursor, _FRONT, {"most": most, "floor": floor})]
        if not ids and published >= term.published:
            return (epoch, assigned, None), []
        cursor.executemany(
            "update events set position = ? where id = ?",
            [(assigned + number, row_id) for number, row_id in enumerate(ids, 1)],
        )
        after = assigned + len(ids)
        cursor.execute(
            "update pipeline set assigned = ?, published = ? where id = 1", (after, term.published)
        )
        return (epoch, assigned, after), []

    def assign_and_read(self, cursor: Any, term: Term, most: int, floor: int = 0) -> Assigned:
        found, _ = self.assign(cursor, term, most, floor)
        has_assigned = found is not None and found[2] is not None and found[2] > term.assigned
        return found, self.read(cursor, term.assigned, most) if has_assigned else []

    def chunk(self, cursor: Any, values: Mapping[str, Any]) -> list[Row]:
        values = {**values, "alive": json.dumps(values["alive"])}
        is_alive = "helper in (select value from json_each({alive}))"
        ids = self._all(cursor, _BACK.replace("{is_alive}", is_alive), values)
        one = ROWS + "events where id = {id}"
        rows, size = [], 0
        for (row_id,) in ids:
            rows.append(Row._make(self._all(cursor, one, {"id": row_id})[0][:_WIDTH]))
            size += _size(rows[-1])
            if size >= BATCH_BYTES:
                break
        cursor.executemany(
            "update events set helper = ? where id = ?",
            [(values["helper"], row.id) for row in rows],
        )
        return rows

    def read(self, cursor: Any, after: int, most: int) -> list[Row]:
        rows, size = [], 0
        cursor.execute(self._filled(_READ, values := {"after": after, "most": most}), values)
        while size < BATCH_BYTES and (found := cursor.fetchone()) is not None:
            rows.append(Row._make(found[:_WIDTH]))
            size += _size(rows[-1])
        return rows

    def write(self, cursor: Any, rows: Sequence[Mapping[str, Any]]) -> None:
        cursor.executemany(
            "update events set body = :body where id = :id and position is null and body is null",
            rows,
        )
