"""The relay's side of the table: takes rows, and removes or keeps them.

On PostgreSQL and MySQL a batch is one transaction, from its rows' locks to their removal: other
relays skip locked rows, and a relay that dies releases its own at once. On SQLite, where a write
transaction would keep the backend from writing while the broker is asked, rows are read without a
lock, and ``sole_relay.py`` lets one relay at a time run.
"""

from collections.abc import Sequence
from math import ceil
from typing import Any, NamedTuple

from pos_gateway.client.outbox.connections import OutboxConnection, PlainConnection, adapted
from pos_gateway.client.outbox.table import LATER, NOW, SINCE, TABLE, Dialect

#: Seconds until the database ends the transaction of a relay that stands still, which releases its
#: rows to other relays. Publishing a batch takes less.
STALE = 60
#: Maximum seconds of a delay.
LONGEST_DELAY = 256.0
#: Maximum characters of a reason.
_REASON = 2000

#: What a transaction of the relay's begins with: one round trip, and nothing that outlives the
#: transaction, since a pooler may share the connection.
_BEGIN = {
    # Without a sort rows come by their ids, up to the limit. Before a table's first statistics, and with
    # those of when it was empty, PostgreSQL would read and sort a whole backlog for each batch.
    Dialect.POSTGRESQL: "set transaction isolation level read committed; "
    f"set local idle_in_transaction_session_timeout = '{STALE}s'; set local enable_sort = off",
}
_PREPARE = {
    # The default level locks gaps between rows, too, and so the backend's inserts.
    Dialect.MYSQL: "set session transaction isolation level read committed",
    Dialect.SQLITE: f"pragma busy_timeout = {5 * 1000}",
}
_LOCK = {
    Dialect.POSTGRESQL: " for update of o skip locked",
    Dialect.MYSQL: " for update skip locked",
    Dialect.SQLITE: "",
}


class PendingRow(NamedTuple):
    """A row to publish."""

    id: int
    action: str
    merchant_id: str
    order_id: str
    body: bytes
    #: How often it has failed while others were published.
    attempts: int


class Delay(NamedTuple):
    """A row that is not published yet."""

    id: int
    attempts: int
    seconds: float
    reason: str


class RefusedRow(NamedTuple):
    """A row that cannot be published."""

    id: int
    reason: str


class Lag(NamedTuple):
    """How far the relays are behind the backend."""

    #: Committed and not published.
    rows: int
    #: Age of the oldest of them, by the database's clock; 0.0 if there is none.
    seconds: float
    #: Refused: they wait for a person, who sees them with ``pos-gateway outbox list``.
    refused: int


class ListedRow(NamedTuple):
    """A row to show."""

    id: int
    action: str
    merchant_id: str
    order_id: str
    age: float
    attempts: int
    is_refused: bool
    reason: str | None


class Store:
    """The outbox, on a connection of the relay's own.

    Args:
        connection: a DB-API connection; closed with the store.
        idle: seconds between two transactions at most.
    """

    def __init__(self, connection: Any, idle: float = 0.0) -> None:
        self._connection = PlainConnection(connection)
        self.dialect = self._connection.dialect
        if self.dialect is Dialect.SQLITE:
            self._connection.driver.isolation_level = None  # no transaction begins but by BEGIN
        elif self._connection.name in ("psycopg", "psycopg2"):
            self._connection.driver.autocommit = False
        else:
            self._connection.driver.autocommit(False)
        if prepare := _PREPARE.get(self.dialect):
            self._connection.execute(prepare)
        if self.dialect is Dialect.MYSQL:  # has no limit for transactions alone
            self._connection.execute(f"set session wait_timeout = {STALE + ceil(idle)}")
        self._take = _taking(self.dialect)

    @property
    def driver(self) -> Any:
        """The driver's connection."""
        return self._connection.driver

    def take(self, limit: int) -> list[PendingRow]:
        """The oldest rows that may be published, one an order, locked until ``finish``."""
        if begin := _BEGIN.get(self.dialect):
            self._connection.execute(begin)
        rows = self._connection.execute(self._take, (limit,))
        return [
            PendingRow(id_, action, merchant, order, bytes(body), attempts)
            for id_, action, merchant, order, body, attempts in rows
        ]

    def finish(
        self,
        published: Sequence[int],
        refused: Sequence[RefusedRow] = (),
        delayed: Sequence[Delay] = (),
    ) -> None:
        """Remove what is published, keep the rest, and release the locks."""
        if not (published or refused or delayed):
            self._connection.connection.rollback()
            return
        with self._writing() as own:
            if published:
                own.execute(_removal(self.dialect, len(published)), published)
            for row in refused:
                own.execute(
                    f"update {TABLE} set refused_at = {NOW[self.dialect]}, reason = ? where id = ?",
                    (row.reason[:_REASON], row.id),
                )
            for late in delayed:
                own.execute(
                    f"update {TABLE} set attempts = ?, not_before = {LATER[self.dialect]}, reason = ?"
                    " where id = ?",
                    (late.attempts, int(late.seconds * 1000), late.reason[:_REASON], late.id),
                )

    def listed(self, *, refused_only: bool, limit: int) -> list[ListedRow]:
        """Rows to show, the oldest first."""
        where = "where refused_at is not null " if refused_only else ""
        rows = self._connection.execute(
            f"select id, action, merchant_id, order_id, {_since(self.dialect, 'created_at')}, attempts, "
            f"refused_at is not null, reason from {TABLE} {where}order by id limit ?",
            (limit,),
        )
        self._connection.connection.rollback()
        return [
            ListedRow(id_, action, merchant, order, float(age), attempts, bool(refused), reason)
            for id_, action, merchant, order, age, attempts, refused, reason in rows
        ]

    def retry(self, ids: Sequence[int] | None) -> int:
        """Have relays publish refused rows, or all of them (None), again; how many."""
        return self._change(
            f"update {TABLE} set refused_at = null, not_before = null, attempts = 0, reason = null",
            ids,
        )

    def discard(self, ids: Sequence[int]) -> int:
        """Remove refused rows; how many."""
        return self._change(f"delete from {TABLE}", ids)

    def lag(self) -> Lag:
        """As ``outbox.lag``."""
        found = _lag(self._connection)
        self._connection.connection.rollback()
        return found

    def close(self) -> None:
        """Close the connection."""
        self._connection.connection.close()

    def _change(self, statement: str, ids: Sequence[int] | None) -> int:
        if ids is not None and not ids:
            return 0
        which = "" if ids is None else f" and id in {_marks(ids)}"
        with self._writing() as own:
            [(number,)] = own.execute(
                f"select count(*) from {TABLE} where refused_at is not null{which}", ids or ()
            )
            own.execute(f"{statement} where refused_at is not null{which}", ids or ())
        return int(number)

    def _writing(self) -> "_Writing":
        return _Writing(self._connection)


class _Writing:
    """A transaction that commits at its end."""

    def __init__(self, connection: PlainConnection) -> None:
        self._connection = connection

    def __enter__(self) -> PlainConnection:
        if self._connection.dialect is Dialect.SQLITE:
            self._connection.execute("begin immediate")
        return self._connection

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._connection.connection.commit()
        else:
            self._connection.connection.rollback()


def lag(connection: Any) -> Lag:
    """How far the relays are behind, on the backend's own connection (as ``outbox.add``'s)."""
    return _lag(adapted(connection))


def _lag(connection: OutboxConnection) -> Lag:
    oldest = "min(case when refused_at is null then created_at end)"
    [(rows, seconds, refused)] = connection.execute(
        f"select count(*) - count(refused_at), {_since(connection.dialect, oldest)}, "
        f"count(refused_at) from {TABLE}"
    )
    return Lag(int(rows), max(0.0, float(seconds or 0.0)), int(refused))


def _taking(dialect: Dialect) -> str:
    # SQLite keeps a text as a text in a column of bytes, and another language's literal is one.
    body = "cast(o.body as blob)" if dialect is Dialect.SQLITE else "o.body"
    # Further ahead than any delay: the database's clock was set back.
    too_late = LATER[dialect].replace("?", str(int(2 * LONGEST_DELAY * 1000)))
    return (
        f"select o.id, o.action, o.merchant_id, o.order_id, {body}, o.attempts from {TABLE} o "
        "where o.refused_at is null "
        f"and (o.not_before is null or o.not_before <= {NOW[dialect]} or o.not_before > {too_late}) "
        # An order's rows are published in the order in which they were written.
        f"and not exists (select 1 from {TABLE} e where e.merchant_id = o.merchant_id "
        "and e.order_id = o.order_id and e.id < o.id and e.refused_at is null) "
        f"order by o.id limit ?{_LOCK[dialect]}"
    )


def _removal(dialect: Dialect, number: int) -> str:
    if dialect is not Dialect.MYSQL:
        return f"delete from {TABLE} where id in ({', '.join('?' * number)})"
    # With a list MySQL may scan the table, where it waits for other relays' rows: a deadlock. Here it
    # looks each one up.
    ids = " union all ".join(["select ? as id"] * number)
    return (
        f"delete o from ({ids}) removed straight_join {TABLE} o force index (primary) "
        "on o.id = removed.id"
    )


def _since(dialect: Dialect, moment: str) -> str:
    return SINCE[dialect].format(moment=moment)


def _marks(values: Sequence[object]) -> str:
    return f"({', '.join('?' * len(values))})"
