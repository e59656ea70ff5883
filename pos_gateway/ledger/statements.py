"""What the ledger says to the database, many rows a statement.

The rows of a statement are one parameter, JSON, which both databases take apart themselves: a
batch of fifty then costs this process little more than a single row (a fiftieth of a round trip,
and no parameters to convert). The driver is spoken to directly for the same reason.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

#: The columns in a batch's rows, with their types.
_COLUMNS = {
    "merchant_id": "text",
    "order_id": "text",
    "action": "text",
    "state": "text",
    "was": "text",
    "owner": "text",
    "ticket": "bigint",
    "epoch": "bigint",
    "attempts": "integer",
    "deaths": "integer",
    "doubt_since": "double precision",
    "pending": "boolean",
    "told": "text",
    "external_id": "text",
    "reason_code": "text",
    "reason_message": "text",
    "deliver_by": "double precision",
    "now": "double precision",
    "payload": "text",
    "event_id": "text",
    "type": "text",
}

Row = Mapping[str, Any]

_SAME = "orders.merchant_id = r.merchant_id and orders.order_id = r.order_id and orders.action = r.action"

_INSERT = """
insert into orders (merchant_id, order_id, action, state, owner, ticket, epoch, attempts, deaths,
                    pending, reopened, deliver_by, payload, created_at, updated_at)
select merchant_id, order_id, action, state, owner, ticket, 1, 0, 0, {false}, 0, deliver_by, payload, now, now
from {rows} where true
on conflict do nothing
returning orders.ticket"""

_FIND = (
    """
select orders.merchant_id, orders.order_id, orders.action, orders.state, orders.owner, orders.ticket,
       orders.epoch, orders.attempts, orders.deaths, orders.doubt_since, orders.pending, orders.told, orders.reopened,
       orders.external_id, orders.reason_code, orders.reason_message, orders.updated_at
from orders join {rows} on """
    + _SAME
)

_TAKE = (
    """
update orders
set state = r.state, owner = r.owner, ticket = r.ticket, epoch = orders.epoch + 1,
    deaths = r.deaths, doubt_since = r.doubt_since, updated_at = r.now,
    payload = coalesce(orders.payload, r.payload),
    deliver_by = coalesce(orders.deliver_by, r.deliver_by)
from {rows}
where """
    + _SAME
    + """ and orders.epoch = r.epoch and orders.state = r.was
returning orders.ticket"""
)

_SENDING = (
    """
update orders set state = 'sending', updated_at = r.now
from {rows}
where """
    + _SAME
    + """ and orders.epoch = r.epoch and orders.state = 'claimed'
returning orders.ticket"""
)

_FINISH = (
    """
update orders
set state = r.state, owner = null, attempts = r.attempts, doubt_since = r.doubt_since,
    pending = r.pending, told = coalesce(r.told, orders.told), external_id = coalesce(r.external_id, orders.external_id),
    reason_code = r.reason_code, reason_message = r.reason_message, updated_at = r.now
from {rows}
where """
    + _SAME
    + """ and orders.epoch = r.epoch and orders.state in ('claimed', 'sending')
returning orders.ticket"""
)

_TELL = """
insert into events (event_id, type, merchant_id, order_id, occurred_at, external_id, reason_code,
                    reason_message, attempts)
select event_id, type, merchant_id, order_id, now, external_id, reason_code, reason_message, attempts
from {rows} where event_id is not null{among}
on conflict (event_id) do nothing"""

_BEAT = """
insert into workers (id, beat, lease, beat_at) values ({id}, 1, {lease}, {now})
on conflict (id) do update set beat = workers.beat + 1, beat_at = excluded.beat_at"""


_LEASES = "select id, beat, lease from workers"
_FORGET = "delete from workers where id = {id}"


class Statements(Protocol):
    """The ledger's statements in one database's dialect. Each is a transaction, or part of one."""

    def insert(self, cursor: Any, rows: Sequence[Row]) -> set[int]:
        """Write rows for orders that have none. The tickets of those that had none."""
        ...

    def find(self, cursor: Any, rows: Sequence[Row]) -> list[tuple[Any, ...]]:
        """The rows that there are of these orders."""
        ...

    def take(self, cursor: Any, rows: Sequence[Row]) -> set[int]:
        """Take over rows that are still as they were found. The tickets of those."""
        ...

    def sending(self, cursor: Any, rows: Sequence[Row]) -> set[int]:
        """Say of claimed orders that they are being sent. The tickets that hold."""
        ...

    def finish(self, cursor: Any, rows: Sequence[Row]) -> set[int]:
        """Write outcomes and their events under claims that still hold. The tickets of those."""
        ...

    def tell(self, cursor: Any, rows: Sequence[Row]) -> None:
        """Write events of orders that have no row."""
        ...

    def beat(self, cursor: Any, lease_id: str, lease: float, now: float) -> None:
        """Renew a lease."""
        ...

    def leases(self, cursor: Any) -> list[tuple[str, int, float]]:
        """All leases: id, beat, seconds."""
        ...

    def forget(self, cursor: Any, lease_ids: Iterable[str]) -> None:
        """Remove leases."""
        ...


class _Common:
    _rows: str
    _place: str
    _false = "false"

    def __init__(self) -> None:
        self._insert, self._find, self._take, self._sending, self._finish = (
            text.format(rows=self._rows, false=self._false)
            for text in (_INSERT, _FIND, _TAKE, _SENDING, _FINISH)
        )
        self._tell = _TELL.format(rows=self._rows, among="")
        places = {name: self._place.format(name) for name in ("id", "lease", "now")}
        self._beat = _BEAT.format(**places)
        self._forget = _FORGET.format(**places)

    def insert(self, cursor: Any, rows: Sequence[Row]) -> set[int]:
        return _tickets(cursor.execute(self._insert, _parameter(rows)))

    def find(self, cursor: Any, rows: Sequence[Row]) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = cursor.execute(self._find, _parameter(rows)).fetchall()
        return found

    def take(self, cursor: Any, rows: Sequence[Row]) -> set[int]:
        return _tickets(cursor.execute(self._take, _parameter(rows)))

    def sending(self, cursor: Any, rows: Sequence[Row]) -> set[int]:
        return _tickets(cursor.execute(self._sending, _parameter(rows)))

    def tell(self, cursor: Any, rows: Sequence[Row]) -> None:
        cursor.execute(self._tell, _parameter(rows))

    def beat(self, cursor: Any, lease_id: str, lease: float, now: float) -> None:
        cursor.execute(self._beat, {"id": lease_id, "lease": lease, "now": now})

    def leases(self, cursor: Any) -> list[tuple[str, int, float]]:
        found: list[tuple[str, int, float]] = cursor.execute(_LEASES).fetchall()
        return found

    def forget(self, cursor: Any, lease_ids: Iterable[str]) -> None:
        for lease_id in lease_ids:
            cursor.execute(self._forget, {"id": lease_id})


class PostgreSQL(_Common):
    """Each statement is a transaction of its own: a round trip less for each BEGIN and COMMIT."""

    _rows = (
        f"json_to_recordset(%(rows)s) as r({', '.join(f'{n} {t}' for n, t in _COLUMNS.items())})"
    )
    _place = "%({})s"

    def __init__(self) -> None:
        super().__init__()
        told = _TELL.format(rows="r", among=" and ticket in (select ticket from done)")
        self._finish_and_tell = f"""
with r as materialized (select * from {self._rows}),
done as ({_FINISH.format(rows="r")}),
told as ({told})
select ticket from done"""

    def finish(self, cursor: Any, rows: Sequence[Row]) -> set[int]:
        return _tickets(cursor.execute(self._finish_and_tell, _parameter(rows)))


class SQLite(_Common):
    """All statements of a batch are in one transaction, which is the caller's."""

    _rows = (
        "(select "
        + ", ".join(f"json_extract(value, '$.{name}') as {name}" for name in _COLUMNS)
        + " from json_each(:rows)) as r"
    )
    _place = ":{}"

    def finish(self, cursor: Any, rows: Sequence[Row]) -> set[int]:
        done = _tickets(cursor.execute(self._finish, _parameter(rows)))
        self.tell(cursor, [row for row in rows if row["ticket"] in done])
        return done


def _parameter(rows: Iterable[Row]) -> dict[str, str]:
    return {"rows": json.dumps(list(rows))}


def _tickets(cursor: Any) -> set[int]:
    return {ticket for (ticket,) in cursor.fetchall()}
