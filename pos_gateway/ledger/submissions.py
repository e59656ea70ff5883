"""Orders that came by HTTP: written before publishing, for comparison with a second submission.

A row has an order's digest, and no content. Writes do not wait for the disk: a crash loses a
comparison, and no order. The order's content is in the broker, and then in the ledger.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from hashlib import sha256
from typing import Any

from pydantic_core import from_json, to_json
from sqlalchemy import Engine, select

from pos_gateway.database.schema import submissions
from pos_gateway.domain.errors import InvalidOrder
from pos_gateway.domain.order import RARE, Order
from pos_gateway.domain.record import Record
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Key, State
from pos_gateway.ledger.writer import Writer
from pos_gateway.runtime.vault import CannotOpen

#: Seconds for PostgreSQL's answer: a backend waits.
ANSWER = 0.5
#: The zones whose calendars begin first and end last.
_FIRST, _LAST = (timezone(sign * timedelta(hours=23, minutes=59)) for sign in (1, -1))


def digest(order: Order) -> str:
    """Equal for two orders that are the same, however their JSON is written.

    Blanks, the order of fields at any depth, and time zones do not count.
    """
    text = (order if _is_utc(order) else _in_utc(order)).to_json()
    if _has_unknown(order):  # the common fields are always in the same order
        text = json.dumps(from_json(text), sort_keys=True).encode()
    return digest_of(text)


def digest_of(written: bytes) -> str:
    """The digest of an order in UTC without unknown fields, from its JSON."""
    return sha256(written).hexdigest()


def _is_utc(order: Order) -> bool:
    at = order.scheduled_for
    is_later_utc = at is None or not at.utcoffset()
    return is_later_utc and not (order.placed_at.utcoffset() or order.deliver_by.utcoffset())


def _in_utc(order: Order) -> Order:
    times = {"placed_at": order.placed_at, "deliver_by": order.deliver_by}
    times |= {"scheduled_for": order.scheduled_for} if order.scheduled_for else {}
    return order.model_copy(update={name: _as_utc(at) for name, at in times.items()})


def _as_utc(at: datetime) -> datetime:
    """The moment in UTC, or if UTC's calendar lacks it, in the zone that ends last or begins first.

    Some backends use the end of the year 9999 in their own zone for "no deadline".
    """
    try:
        return at.astimezone(UTC)
    except OverflowError:
        zone = _LAST if at.year > 1 else _FIRST
        # Not ``astimezone``, which goes by UTC.
        passed = zone.utcoffset(None) - (at.utcoffset() or timedelta())
        return (at.replace(tzinfo=None) + passed).replace(tzinfo=zone)


def _has_unknown(order: Order) -> bool:
    """Whether the order has fields in any order, or fields unknown to earlier releases."""
    who = order.customer
    if type(order.fulfillment) is dict or _has(order) or (who is not None and _has(who)):
        return True
    for item in order.items:
        # Nothing is called for most items.
        if item.ref is not None or (item.model_extra and _has(item)):
            return True
        for each in item.modifiers:
            is_more = each.notes is not None or each.modifiers is not None
            if is_more or (each.model_extra and _has(each)):
                return True
    return False


def _has(part: Record) -> bool:
    if _is_given(part.model_extra):
        return True
    return any(getattr(part, name) is not None for name in RARE[type(part)])


def _is_given(fields: dict[str, Any] | None) -> bool:
    """Whether a field is given: null counts as absent."""
    return fields is not None and any(value is not None for value in fields.values())


@dataclass(frozen=True, slots=True)
class Submitting:
    """An order to publish."""

    merchant_id: str
    order_id: str
    digest: str
    deliver_by: datetime
    #: ``deliver_by`` has passed: written nowhere, since only a known order is accepted then.
    is_late: bool = False


@dataclass(frozen=True, slots=True)
class Known:
    """An earlier submission of an order, if any."""

    #: By HTTP or AMQP.
    is_known: bool
    #: With other content.
    is_different: bool
    #: State in the ledger; None: no worker has seen the order yet.
    state: State | None


_NEW = Known(is_known=False, is_different=False, state=None)


class Submissions:
    """Writes and reads submissions on a single connection. For a single caller at a time.

    Every call raises LedgerUnavailable when the database is away, or busy for a second.
    """

    def __init__(self, engine: Engine, payloads: Payloads) -> None:
        self._writer = Writer(engine, session=_SESSION, durable=False, answer=ANSWER)
        self._payloads = payloads
        self._is_sqlite = is_sqlite = engine.dialect.name == "sqlite"
        self._find = _by_row if is_sqlite else _at_once
        self._forget = _FORGET.format("?" if is_sqlite else "%s")

    @property
    def is_prompt(self) -> bool:
        """Whether the next call ends within ``ANSWER`` seconds: neither connects, nor waits for
        SQLite's other writers.
        """
        return self._writer.is_connected and not self._is_sqlite

    def connect(self) -> None:
        """Connect now rather than in the next call."""
        self._writer.read(lambda cursor: cursor.execute("select 1").fetchone())

    def write(self, orders: Sequence[Submitting], now: float) -> list[Known]:
        """Write new orders; returns the earlier submission of each, in order.

        Of two orders with a key the first counts, and the second is compared: within ``orders``,
        and with orders written elsewhere at the same moment.

        Args:
            orders: about to be published.
            now: Unix time.
        """
        firsts: dict[tuple[str, str], Submitting] = {}
        for order in orders:
            firsts.setdefault((order.merchant_id, order.order_id), order)
        rows = [
            {
                "n": number,
                "merchant_id": each.merchant_id,
                "order_id": each.order_id,
                "digest": each.digest,
                "late": each.is_late,
                "now": now,
            }
            for number, each in enumerate(firsts.values())
        ]
        found: list[Found] = self._writer.write(lambda cursor: self._find(cursor, rows))
        if not found and len(rows) == len(orders):
            return [_NEW] * len(orders)
        by_number = {each[0]: each for each in found}
        by_key = {key: by_number.get(number) for number, key in enumerate(firsts)}
        seen: set[tuple[str, str]] = set()
        answers = []
        for order in orders:
            key = (order.merchant_id, order.order_id)
            answers.append(self._known(order, by_key[key], firsts[key] if key in seen else None))
            seen.add(key)
        return answers

    def forget(self, orders: Sequence[Submitting]) -> None:
        """Remove rows of orders that were certainly not published.

        The ids are free again for orders with other content, except after a second submission: then
        the order may have been published elsewhere.
        """
        rows = sorted((each.merchant_id, each.order_id, each.digest) for each in orders)
        self._writer.write(lambda cursor: cursor.executemany(self._forget, rows))

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._writer.close()

    def _known(self, order: Submitting, found: "Found | None", first: Submitting | None) -> Known:
        """The earlier submission of an order.

        Args:
            order: the order.
            found: in the database.
            first: the first order with this key in the same call, if there is an earlier one.
        """
        if found is not None:
            _, stored, state, payload = found
            if stored is None and payload is not None:
                key = Key(order.merchant_id, order.order_id)
                stored = self._digest_of(key, payload, order.deliver_by)
        elif first is not None and not first.is_late:
            stored, state = first.digest, None
        else:
            return _NEW
        is_different = stored is not None and stored != order.digest
        return Known(True, is_different, None if state is None else State(state))

    def _digest_of(self, key: Key, payload: str, deliver_by: datetime) -> str | None:
        """The digest of an order that came by AMQP; None if unreadable here.

        With the given ``deliver_by``, since an operator may have extended the order's.
        """
        try:
            order = Order.parse_json(self._payloads.open(key, payload))
            return digest(order.model_copy(update={"deliver_by": deliver_by}))
        except (CannotOpen, InvalidOrder):
            return None


def submitted_at(engine: Engine, key: Key) -> float | None:
    """Time of an order's submission by HTTP (Unix time); None: another way, or long ago."""
    query = select(submissions.c.submitted_at).where(
        submissions.c.merchant_id == key.merchant_id, submissions.c.order_id == key.order_id
    )
    with engine.connect() as connection:
        found: float | None = connection.scalar(query)
    return found


#: A known order: number, digest if it came by HTTP, state, and payload if it came by AMQP.
Found = tuple[int, str | None, str | None, str | None]

# A backend waits for the answer: a database that takes a second counts as away. A group's rows are
# joined by hash, not row by row.
_SESSION = "set statement_timeout = '1s'; set enable_hashjoin = on"

_OF_LEDGER = """orders.merchant_id = {merchant_id} and orders.order_id = {order_id}
  and orders.action = 'submit'"""

_PUT = f"""
insert into submissions (merchant_id, order_id, digest, submitted_at, came_again)
select {{merchant_id}}, {{order_id}}, {{digest}}, {{now}}, false {{from_rows}}
where not {{late}} and (select 1 from orders where {_OF_LEDGER}) is null
{{in_order}}
on conflict (merchant_id, order_id) do update set came_again = true"""

_ROW = {
    "n": "integer",
    "merchant_id": "text",
    "order_id": "text",
    "digest": "text",
    "late": "boolean",
    "now": "double precision",
}
_OF_WAS = _OF_LEDGER.format(merchant_id="was.merchant_id", order_id="was.order_id")
_ROWS = f"json_to_recordset(%s) as r({', '.join(f'{n} {t}' for n, t in _ROW.items())})"

_PUT_ALL = _PUT.format(
    **{name: f"r.{name}" for name in _ROW},
    from_rows="from r",
    in_order="order by r.merchant_id, r.order_id",
)

# A statement sees the table as of its beginning, without rows written since elsewhere. Only
# a conflicting insert meets the newest, committed row. Rows are locked in order, or servers with
# the same orders would wait for each other. Subqueries, since a join might scan all orders: the
# plan is kept, and a plan made while the table is empty looked through every order since.
_AT_ONCE = f"""
with r as materialized (select * from {_ROWS}),
put as ({_PUT_ALL} returning merchant_id, order_id, digest, came_again),
was as materialized (
    select r.n, r.merchant_id, r.order_id,
           case when put.came_again then put.digest else (
               select submissions.digest from submissions
               where submissions.merchant_id = r.merchant_id
                 and submissions.order_id = r.order_id) end as digest
    from r
    left join put on put.merchant_id = r.merchant_id and put.order_id = r.order_id)
select n, digest, state, case when digest is null then (
           select orders.payload from orders where {_OF_WAS}) end
from (select was.*, (select orders.state from orders where {_OF_WAS}) as state from was) was
where digest is not null or state is not null"""


def _at_once(cursor: Any, rows: Sequence[dict[str, Any]]) -> list[Found]:
    found: list[Found] = cursor.execute(_AT_ONCE, (to_json(rows).decode(),)).fetchall()
    return found


_FORGET = """
delete from submissions
where merchant_id = {0} and order_id = {0} and digest = {0} and not came_again"""

_PUT_ONE = _PUT.format(**{name: f":{name}" for name in _ROW}, from_rows="", in_order="")
_FIND_ONE = f"""
select :n, submissions.digest, orders.state,
       case when submissions.digest is null then orders.payload end
from (select 1) one
left join submissions
  on submissions.merchant_id = :merchant_id and submissions.order_id = :order_id
left join orders on {_OF_LEDGER.format(merchant_id=":merchant_id", order_id=":order_id")}
where submissions.digest is not null or orders.state is not null"""


def _by_row(cursor: Any, rows: Sequence[dict[str, Any]]) -> list[Found]:
    """Read all rows, then write, in a single transaction."""
    found = [each for row in rows for each in cursor.execute(_FIND_ONE, row)]
    cursor.executemany(_PUT_ONE, rows)
    return found
