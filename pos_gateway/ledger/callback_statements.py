"""The statements that apply callbacks, in each database's dialect."""

import json
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

from pos_gateway.database.schema import LAST_EVENT
from pos_gateway.domain.errors import OrderChanged
from pos_gateway.domain.outcome import Lifecycle
from pos_gateway.ledger.callback_rules import CallbackGroup, Standing
from pos_gateway.ledger.event_ids import with_another_id
from pos_gateway.ledger.states import Action, Key, State, StepMark

# The rows of orders are locked until the commit: a server that stops in between must not keep the locks.
SESSION = "set statement_timeout = '2s'; set idle_in_transaction_session_timeout = '2s'"

_VALUES = {
    "n": "integer",
    "adapter": "text",
    "merchant_id": "text",
    "order_id": "text",
    "action": "text",
    "event_id": "text",
    "result": "text",
    "state": "text",
    "was": "text",
    "epoch": "bigint",
    "lifecycle": "text",
    "last_event": "text",
    "external_id": "text",
    "reason_code": "text",
    "reason_message": "text",
    "attempts": "integer",
    "type": "text",
    "operator": "text",
    "what": "text",
    "details": "text",
    "waiting": "text",
    "shop": "text",
    "again_at": "double precision",
    "now": "double precision",
}

_OPEN = ", ".join(f"'{state}'" for state in State if not state.is_final)

_FIND = """
select orders.merchant_id, orders.order_id, orders.action, orders.state, orders.epoch,
       orders.attempts, orders.doubt_since is not null, orders.pending, orders.reopened,
       orders.endpoint, orders.external_id, orders.lifecycle,
       orders.step, orders.reason_code, orders.deliver_by
from orders{and_rows}
where orders.merchant_id = {merchant_id} and orders.order_id = {order_id}"""

_NAMED = """
select orders.merchant_id, orders.external_id, orders.order_id from orders{and_rows}
where orders.external_id = {external_id} and orders.merchant_id = {merchant_id}
  and orders.action = 'submit'"""

# Open orders of all merchants, read once by their state: of one merchant's orders most have ended.
_NAMELESS = f"""
select distinct orders.merchant_id from orders
where orders.action = 'submit'
  and orders.external_id is null and orders.state in ({_OPEN})
  and (orders.state = 'sending' or orders.doubt_since is not null or orders.pending
       or orders.endpoint is not null)"""

_WAITING = """
select count(*) from callbacks{and_rows}
where callbacks.shop = {shop} and callbacks.again_at is not null"""

_SEEN = """
select callbacks.adapter, callbacks.merchant_id, callbacks.event_id,
       callbacks.again_at is not null
from callbacks{and_rows}
where callbacks.adapter = {adapter} and callbacks.merchant_id = {merchant_id}
  and callbacks.event_id = {event_id}"""

_TAKEN = "select events.event_id from events{and_rows} where events.event_id = {event_id}"

_THIS = """
where orders.merchant_id = {merchant_id} and orders.order_id = {order_id}
  and orders.action = {action}"""

# The state as an expression: PostgreSQL would look through all orders of a state, by its index.
_END = (
    f"""
update orders
set state = {{state}}, owner = null, epoch = orders.epoch + 1, deaths = 0, taken_from = null,
    doubt_since = null, in_doubt_since = null, settling = null, pending = false, step = null,
    {LAST_EVENT} = {{last_event}},
    external_id = {{external_id}}, reason_code = {{reason_code}},
    reason_message = {{reason_message}},
    updated_at = {{now}}
{{from_rows}}"""
    + _THIS
    + " and orders.epoch = {epoch} and orders.state || '' = {was} returning orders.epoch"
)

_LIFECYCLE = (
    "update orders set lifecycle = {lifecycle} {from_rows}" + _THIS + " and orders.epoch = {epoch}"
)

_EVENT = """
insert into events (event_id, type, merchant_id, order_id, occurred_at, external_id, reason_code,
                    reason_message, attempts)
select {event_id}, {type}, {merchant_id}, {order_id}, {now}, {external_id}, {reason_code},
       {reason_message}, {attempts} {from_rows} order by {n}"""

_NOTE = """
insert into audit (at, operator, what, merchant_id, order_id, details)
select {now}, {operator}, {what}, {merchant_id}, {order_id}, {details} {from_rows} order by {n}"""

_PUT = """
insert into callbacks (adapter, merchant_id, event_id, received_at, result, waiting, shop,
                       external_id, again_at)
select {adapter}, {merchant_id}, {event_id}, {now}, {result}, {waiting}, {shop},
       {external_id}, {again_at}
{from_rows} where true
on conflict (adapter, merchant_id, event_id) do update
set result = excluded.result, waiting = excluded.waiting, shop = excluded.shop,
    external_id = excluded.external_id, again_at = excluded.again_at
where callbacks.again_at is not null"""


_NOTHING = dict.fromkeys(_VALUES)


class CallbackStatements:
    """The statements, in a database's dialect.

    With PostgreSQL each statement is for all rows. With SQLite each is for one row, and the
    transaction has the whole database to itself.
    """

    def __init__(self, *, is_sqlite: bool) -> None:
        self._is_sqlite = is_sqlite
        #: Has a select lock a table's rows, and leave out locked ones.
        self._locking = "" if is_sqlite else " for update of {} skip locked"
        places = {name: f":{name}" if is_sqlite else f"r.{name}" for name in _VALUES}
        types = ", ".join(f"{name} {type_}" for name, type_ in _VALUES.items())
        rows = f"json_to_recordset(%s) as r({types})"
        from_rows, and_rows = ("", "") if is_sqlite else (f"from {rows}", f", {rows}")
        self._parts = {**places, "from_rows": from_rows, "and_rows": and_rows}

    def _run(self, cursor: Any, text: str, rows: Sequence[dict[str, Any]]) -> list[Any]:
        """Run a statement for all rows; returns the rows found."""
        if not rows:
            return []
        said = text.format(**self._parts)
        if self._is_sqlite:
            each_found = (cursor.execute(said, {**_NOTHING, **row}).fetchall() for row in rows)
            return [row for found in each_found for row in found]
        cursor.execute(said, (json.dumps(list(rows)),) * said.count("%s"))
        return list(cursor.fetchall()) if cursor.description else []

    def lock(
        self, cursor: Any, keys: Iterable[tuple[str, str]]
    ) -> tuple[set[tuple[str, str]], list[Standing]]:
        """Lock orders' rows; returns the keys of orders another session is writing, and the locked rows."""
        rows = [
            {"merchant_id": merchant_id, "order_id": order_id} for merchant_id, order_id in keys
        ]
        if not self._is_sqlite:
            cursor.execute("begin")
        there = {tuple(row[:3]) for row in self._run(cursor, _FIND, rows)}
        # Workers may wait for these locks; this session never waits for a worker's: no deadlock.
        locked = self._run(cursor, _FIND + self._locking.format("orders"), rows)
        busy = {row[:2] for row in there - {tuple(row[:3]) for row in locked}}
        return busy, [_read(row) for row in locked]

    def owned(
        self, cursor: Any, places: Sequence[tuple[str, str]]
    ) -> tuple[dict[tuple[str, str], list[str]], set[str]]:
        """Order ids by merchant and POS's id.

        And merchants of open orders that the POS may have, without an id from the POS.
        """
        named = self._named(cursor, places)
        left = [place for place in places if place not in named]
        if not left:
            return named, set()
        cursor.execute(_NAMELESS)
        nameless = {row[0] for row in cursor.fetchall()}
        # An order whose id came in the meantime is found now.
        return named | self._named(cursor, left), nameless

    def _named(
        self, cursor: Any, places: Iterable[tuple[str, str]]
    ) -> dict[tuple[str, str], list[str]]:
        rows = [{"merchant_id": merchant_id, "external_id": known} for merchant_id, known in places]
        named: dict[tuple[str, str], list[str]] = {}
        for merchant_id, external_id, order_id in self._run(cursor, _NAMED, rows):
            named.setdefault((merchant_id, external_id), []).append(order_id)
        return named

    def lock_seen(
        self, cursor: Any, ids: Iterable[tuple[str, str, str]]
    ) -> tuple[set[tuple[str, str, str]], dict[tuple[str, str, str], bool]]:
        """Lock callbacks that came before.

        Returns callbacks that another session has locked; and the others, with whether each waits.
        """
        there = self._seen(cursor, ids)
        # A lock is a write: the commit, and with the commit the answer "duplicate", waits for a
        # standby that may lack the row.
        locked = self._seen(cursor, there, self._locking.format("callbacks"))
        return there.keys() - locked.keys(), locked

    def _seen(
        self, cursor: Any, ids: Iterable[tuple[str, str, str]], lock: str = ""
    ) -> dict[tuple[str, str, str], bool]:
        names = ("adapter", "merchant_id", "event_id")
        rows = [dict(zip(names, each, strict=True)) for each in ids]
        found = self._run(cursor, _SEEN + lock, rows)
        return {(row[0], row[1], row[2]): bool(row[3]) for row in found}

    def waiting(self, cursor: Any, shop: str) -> int:
        """Number of a shop's waiting callbacks."""
        [[count]] = self._run(cursor, _WAITING, [{"shop": shop}])
        return int(count)

    def write(self, cursor: Any, group: CallbackGroup) -> None:
        """Write the decided rows."""
        if len(self._run(cursor, _END, group.ends)) < len(group.ends):
            raise OrderChanged("an order that was locked has changed")
        key_of = itemgetter("merchant_id", "order_id", "action")
        last = {key_of(each): each for each in group.lifecycles}
        self._run(cursor, _LIFECYCLE, list(last.values()))
        self._run(cursor, _EVENT, self._events(cursor, group.events))
        self._run(cursor, _NOTE, group.audit)
        # In one order, so that two servers with the same callbacks never deadlock.
        put_order = itemgetter("adapter", "merchant_id", "event_id")
        self._run(cursor, _PUT, sorted(group.received, key=put_order))
        if not self._is_sqlite:
            cursor.execute("commit")

    def _events(self, cursor: Any, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        wanted = [{"event_id": each["event"].id} for each in events]
        taken = {row[0] for row in self._run(cursor, _TAKEN, wanted)}
        written = []
        for each in events:
            event = each["event"]
            if event.id in taken:  # no event is lost
                event = with_another_id(each["key"], event, each["epoch"])
            row = {name: value for name, value in each.items() if name in _VALUES}
            written.append({**row, "event_id": event.id})
        return written


def _read(row: Sequence[Any]) -> Standing:
    merchant_id, order_id, action, state, epoch, attempts, in_doubt, pending, reopened, *others = (
        row
    )
    endpoint, external_id, lifecycle, step, reason_code, deliver_by = others
    return Standing(
        Key(merchant_id, order_id, Action(action)),
        State(state),
        epoch,
        attempts,
        bool(in_doubt),
        bool(pending),
        reopened,
        endpoint,
        external_id,
        None if lifecycle is None else Lifecycle(lifecycle),
        StepMark.parse(step, reopened),
        reason_code,
        deliver_by,
    )
