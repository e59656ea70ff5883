"""What the event pipeline says to the database: one statement a batch on PostgreSQL.

A position is given in the transaction that counts it, by the leader of the present epoch alone.
Rows are picked by id. A later event of an order has the higher id, for its transaction begins after
the earlier one's commit; so whoever sees it sees the earlier one too. A row that commits late with
a low id gets a later position, and no position that was given changes.

Helpers lock rows and wait for nobody (``skip locked``), so that the leader waits for none that waits
for it.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from sqlalchemy import Engine

from pos_gateway.ledger.lease import LeaseRow
from pos_gateway.ledger.ledger import Run, here
from pos_gateway.ledger.states import Key
from pos_gateway.ledger.writer import Writer

T = TypeVar("T")

#: Behind every row: the id that none has.
BACK = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Term:
    """How far the pipeline is, as its leader knows it."""

    #: The lease that it leads under; None: nobody does.
    leader: str | None
    epoch: int
    #: The highest position that was given.
    assigned: int
    #: The highest that the broker has confirmed, with all before it.
    published: int


@dataclass(frozen=True, slots=True)
class Row:
    """An event as it was written with its outcome, and what else is known of its order."""

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
    #: What a helper has hydrated, sealed.
    body: str | None
    #: The order, sealed; None: it is not kept.
    payload: str | None
    provider: str | None
    adapter: str | None
    #: The trace that it belongs to.
    trace: str | None = None

    @property
    def key(self) -> Key:
        """Whose it is."""
        return Key(self.merchant_id, self.order_id)


class Outbox:
    """Reads and writes events' rows on a connection of its own. For one caller at a time.

    Every call raises LedgerUnavailable when the database is away. What it was to write may then be
    written, or not, and calling it again is right.
    """

    def __init__(self, engine: Engine, *, run: Run = here) -> None:
        self._writer = Writer(engine, session=_BY_INDEX)
        self._run = run
        self._say = _SQLite() if engine.dialect.name == "sqlite" else _PostgreSQL()

    def look(self) -> tuple[Term, list[LeaseRow]]:
        """How far the pipeline is, and then all leases that there are."""
        return self._do(lambda cursor: (self._say.term(cursor), self._writer.say.leases(cursor)))

    def leases(self) -> list[LeaseRow]:
        """All leases that there are."""
        return self._do(self._writer.say.leases)

    def take(self, leader: str, epoch: int) -> Term | None:
        """Lead from now on, if the epoch is still this one; None: somebody else does."""
        return self._do(lambda cursor: self._say.take(cursor, leader, epoch))

    def resign(self, term: Term) -> None:
        """Lead no more, if this is still the epoch, and write down what is published."""
        self._do(lambda cursor: self._say.resign(cursor, term))

    def assign(self, term: Term, most: int) -> Term | None:
        """Give so many events at most their positions, and write down what is published.

        None: somebody else leads, and nothing was written.
        """
        found = self._do(lambda cursor: self._say.assign(cursor, term, most))
        if found is None or found[0] != term.epoch:
            return None
        _, before, after = found
        if after is None and before > term.assigned:
            # In this epoch: it was written, and the answer was lost. What is only read may not be
            # durable; it is once something that was written after it is.
            confirmed = self._do(lambda cursor: self._say.confirm(cursor, term))
            if not confirmed:
                return None
        return replace(term, assigned=before if after is None else after)

    def skip(self, term: Term, position: int) -> Term | None:
        """Have positions go on behind this one, which was given by a database that has lost it.

        None: another process leads, and nothing was written.
        """
        skipped = self._do(lambda cursor: self._say.skip(cursor, term, position))
        return replace(term, assigned=position) if skipped else None

    def read(self, after: int, most: int) -> list[Row]:
        """The next events behind this position, in their order."""
        return self._do(lambda cursor: self._say.read(cursor, after, most))

    def chunk(
        self, helper: str, alive: Sequence[str], *, below: int = BACK, most: int, behind: int
    ) -> list[Row]:
        """Events from the back, leased to a helper, if more than ``behind`` have no position.

        Args:
            helper: the lease under which they are hydrated.
            alive: leases that are not over: what is leased to one of these is left alone.
            below: only rows in front of this one.
            most: how many.
            behind: how many the leader is left alone with.
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
        """Write what a helper has hydrated, by row, where nobody has and the leader is not yet."""
        rows = [{"id": row_id, "body": body} for row_id, body in bodies]
        self._do(lambda cursor: self._say.write(cursor, rows))

    def prune(self, before: float, most: int) -> int:
        """Remove those of the first ``most`` published events that are older (Unix time). How many.

        Fewer than ``most``: there is no older one, or it is behind one that is not.
        """
        values = {"before": before, "most": most}
        return self._do(lambda cursor: self._say.prune(cursor, values))

    def close(self) -> None:
        """Give the connection back. Idempotent."""
        self._writer.close()

    def _do(self, do: Callable[[Any], T]) -> T:
        result: T = self._run(lambda: self._writer.write(do))
        return result


# PostgreSQL goes by what it last counted, and that was before the backlog: as few have no position as
# yesterday, so it would look at all of them each time, and sort. So it is left one way to go about it.
_BY_INDEX = (
    "set plan_cache_mode = force_custom_plan; set enable_sort = off; set enable_material = off"
)

_TERM = "select leader, epoch, assigned, published from pipeline where id = 1"

# The first leader of all begins where positions end, if somebody has lost this row.
_BEGIN = """
insert into pipeline (id, leader, epoch, assigned, published)
select 1, null, 0, coalesce(max(position), 0), coalesce(max(position), 0) from events where true
on conflict (id) do nothing"""

_TAKE = """
update pipeline set leader = {leader}, epoch = epoch + 1 where id = 1 and epoch = {epoch}
returning leader, epoch, assigned, published"""

_RESIGN = """
update pipeline set leader = null, published = {published} where id = 1 and epoch = {epoch}"""

_CONFIRM = "update pipeline set epoch = epoch where id = 1 and epoch = {epoch}"

_SKIP = """
update pipeline set assigned = {position}
where id = 1 and epoch = {epoch} and assigned <= {position}"""

_FRONT = "select id from events where position is null order by id limit {most}"

#: What a ``Row`` is made of, from whichever events follow. What is looked up for each is not joined:
#: nobody can look through all orders for it.
ROWS = """
select events.id, events.position, events.event_id, events.type, events.merchant_id,
       events.order_id, events.occurred_at, events.external_id, events.reason_code,
       events.reason_message, events.attempts, events.body,
       coalesce(events.payload, (
           select payload from orders
           where orders.merchant_id = events.merchant_id and orders.order_id = events.order_id
             and orders.action = 'submit')),
       (select provider from merchants where merchants.id = events.merchant_id),
       (select adapter from merchants where merchants.id = events.merchant_id),
       events.trace
from """

_READ = (
    ROWS
    + """(
    select * from events where position > {after} order by position limit {most}) events
order by position"""
)

_BACK = """
select id from events
where position is null and id < {below} and body is null and (helper is null or not {is_alive})
  and exists (select 1 from events where position is null order by id limit 1 offset {behind})
order by id desc limit {most}"""

# Of the first ones, however many there are: whoever looked for old ones would look through all.
_PRUNE = """
delete from events where id in (
    select id from (
        select id, occurred_at from events
        where position <= (select published from pipeline where id = 1)
        order by position limit {most}) front
    where occurred_at < {before})"""


class _Common:
    """What both databases are told in the same words."""

    _place: str

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
        return [Row(*each) for each in self._all(cursor, _READ, {"after": after, "most": most})]

    def prune(self, cursor: Any, values: Mapping[str, Any]) -> int:
        removed: int = cursor.execute(self._filled(_PRUNE, values), values).rowcount
        return removed

    def _all(self, cursor: Any, text: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]]
        found = cursor.execute(self._filled(text, values), values).fetchall()
        return found

    def _filled(self, text: str, names: Iterable[str], **others: str) -> str:
        return text.format(**{name: self._place.format(name) for name in names}, **others)


class _PostgreSQL(_Common):
    """Each statement is a transaction of its own."""

    _place = "%({})s"

    # ``assigned`` is compared as well as the epoch. A statement whose answer was lost may still be
    # at work when it is said again: the second would wait for the first, count its rows once more,
    # and leave a gap.
    _ASSIGN = f"""
with picked as materialized (
    select id, row_number() over (order by id) as number from ({_FRONT}) front),
lead as (
    update pipeline set published = {{published}},
                        assigned = pipeline.assigned + (select count(*) from picked)
    where id = 1 and epoch = {{epoch}} and assigned = {{assigned}}
      and (published < {{published}} or exists (select from picked))
    returning assigned),
given as (
    update events set position = {{assigned}} + picked.number
    from picked, lead where events.id = picked.id)
select epoch, assigned, (select assigned from lead) from pipeline where id = 1"""

    _CHUNK = f"""
with back as materialized ({_BACK} for update skip locked),
leased as (update events set helper = {{helper}} from back where events.id = back.id)
{ROWS} back join events on events.id = back.id"""

    _WRITE = """
with r as materialized (select * from json_to_recordset({rows}) as r(id bigint, body text)),
free as materialized (
    select found.id, r.body from r cross join lateral (
        select id from events where events.id = r.id and position is null and body is null
        for update skip locked) found)
update events set body = free.body from free where events.id = free.id"""

    def assign(self, cursor: Any, term: Term, most: int) -> tuple[Any, ...] | None:
        values = {
            "epoch": term.epoch,
            "assigned": term.assigned,
            "published": term.published,
            "most": most,
        }
        found = self._all(cursor, self._ASSIGN, values)
        return found[0] if found else None

    def chunk(self, cursor: Any, values: Mapping[str, Any]) -> list[Row]:
        text = self._CHUNK.replace("{is_alive}", "helper = any({alive}::text[])")
        return [Row(*each) for each in self._all(cursor, text, values)]

    def write(self, cursor: Any, rows: Sequence[Mapping[str, Any]]) -> None:
        values = {"rows": json.dumps(rows)}
        cursor.execute(self._filled(self._WRITE, values), values)


class _SQLite(_Common):
    """All of a call is in one transaction, which keeps every other writer out."""

    _place = ":{}"

    def assign(self, cursor: Any, term: Term, most: int) -> tuple[Any, ...] | None:
        found = cursor.execute(_TERM).fetchone()
        if found is None or Term(*found).epoch != term.epoch:
            return None
        _, epoch, assigned, published = found
        if assigned != term.assigned:
            return epoch, assigned, None
        ids = [row[0] for row in self._all(cursor, _FRONT, {"most": most})]
        if not ids and published >= term.published:
            return epoch, assigned, None
        cursor.executemany(
            "update events set position = ? where id = ?",
            [(assigned + number, row_id) for number, row_id in enumerate(ids, 1)],
        )
        after = assigned + len(ids)
        cursor.execute(
            "update pipeline set assigned = ?, published = ? where id = 1", (after, term.published)
        )
        return epoch, assigned, after

    def chunk(self, cursor: Any, values: Mapping[str, Any]) -> list[Row]:
        values = {**values, "alive": json.dumps(values["alive"])}
        is_alive = "helper in (select value from json_each({alive}))"
        ids = self._all(cursor, _BACK.replace("{is_alive}", is_alive), values)
        cursor.executemany(
            "update events set helper = ? where id = ?", [(values["helper"], *each) for each in ids]
        )
        one = ROWS + "events where id = {id}"
        return [Row(*self._all(cursor, one, {"id": row_id})[0]) for (row_id,) in ids]

    def write(self, cursor: Any, rows: Sequence[Mapping[str, Any]]) -> None:
        cursor.executemany(
            "update events set body = :body where id = :id and position is null and body is null",
            rows,
        )
