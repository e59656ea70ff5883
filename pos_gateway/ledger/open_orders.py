"""Due polls of merchants' POSes, and the merchants' open orders.

A claim moves the merchant's next poll on, by the database's clock: a dead worker's poll is due again then.
Two polls of a merchant at once do no harm: the ledger applies a change once.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Engine,
    Select,
    and_,
    bindparam,
    delete,
    exists,
    insert,
    literal,
    not_,
    or_,
    select,
    union_all,
    update,
)
from sqlalchemy.exc import IntegrityError

from pos_gateway.database.clock import Now
from pos_gateway.database.engine import changing
from pos_gateway.database.schema import IS_OPEN, merchants, orders, pos_polls
from pos_gateway.domain.outcome import Lifecycle
from pos_gateway.ledger.states import Action, State

#: Seconds from the acceptance for which an order counts as open: many POSes end no order.
AGE = 86_400.0
#: Seconds by which a poll is never due later, whatever the settings: the database's clock was set back.
_AHEAD = 7200.0
#: Maximum open orders of a merchant, the oldest, and due polls of a look.
_MOST, _MOST_DUE = 10_000, 5_000
_IS_POLLED = merchants.c.pos["poll"].as_string() == "ON"


class OpenOrder(NamedTuple):
    """An accepted order, not ended by the POS."""

    order_id: str
    lifecycle: Lifecycle | None
    #: Of the ledger's row (Unix time): the POS got the order later.
    created_at: float


class DuePoll(NamedTuple):
    """A claimed poll."""

    merchant_id: str
    #: Until when the POS has listed changes, by the POS's clock (Unix time); None: no poll has succeeded.
    since: float | None
    #: Failed polls since the last success that was not behind.
    failures: int
    #: By the database's clock.
    now: float
    #: The merchant's open orders by the POS's id.
    orders: Mapping[str, OpenOrder]


class DonePoll(NamedTuple):
    """The merchant's row after a poll."""

    merchant_id: str
    since: float | None
    failures: int
    #: Seconds until the next poll.
    wait: float


class OpenOrders:
    """Claims polls. Safe from threads. Every call raises SQLAlchemyError."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def enrol(self) -> bool:
        """Give each polled merchant a row, and remove all other rows; False: no merchant is polled."""
        row, now = pos_polls.c, select(Now()).scalar_subquery()
        polled = select(merchants.c.id).where(_IS_POLLED)
        wanted = select(merchants.c.id, now, literal(0)).where(
            _IS_POLLED, merchants.c.id.not_in(select(row.merchant_id))
        )
        columns = [row.merchant_id, row.due_at, row.failures]
        with changing(self._engine) as connection:
            connection.execute(delete(pos_polls).where(row.merchant_id.not_in(polled)))
            with suppress(IntegrityError), connection.begin_nested():  # a second worker was faster
                connection.execute(insert(pos_polls).from_select(columns, wanted))
            return connection.execute(select(row.merchant_id).limit(1)).first() is not None

    def due(self) -> list[tuple[str, bool]]:
        """Merchants with a due poll, the longest due first, and whether each has open orders."""
        row = pos_polls.c
        is_open = exists().where(orders.c.merchant_id == row.merchant_id, _open_now())
        due = (
            select(row.merchant_id, is_open)
            .join(merchants, merchants.c.id == row.merchant_id)
            .where(_is_due(), _IS_POLLED, not_(merchants.c.paused))
            .order_by(row.due_at)
            .limit(_MOST_DUE)
        )
        with self._engine.connect() as connection:
            return [(merchant_id, bool(found)) for merchant_id, found in connection.execute(due)]

    def claim(self, due_polls: Sequence[tuple[str, bool]], lease: float) -> list[DuePoll]:
        """Claim the merchants' polls for ``lease`` seconds, if still due.

        Args:
            due_polls: as ``due`` returns them. Open orders are read only where ``due`` has found some: at night a whole
                fleet has none.
            lease: seconds.
        """
        if not due_polls:
            return []
        merchant_ids = [merchant_id for merchant_id, _ in due_polls]
        row = pos_polls.c
        due = (
            select(row.merchant_id)
            .where(row.merchant_id.in_(merchant_ids), _is_due())
            .with_for_update(skip_locked=True)
            .cte("due")
        )
        claim = (
            update(pos_polls)
            .where(row.merchant_id.in_(select(due)))
            .values(due_at=Now() + lease)
            .returning(row.merchant_id, row.since, row.failures, Now().label("now"))
        )
        with changing(self._engine) as connection:
            claimed = connection.execute(claim).all()
        are_open = {merchant_id for merchant_id, is_open in due_polls if is_open}
        found = self._open([each.merchant_id for each in claimed if each.merchant_id in are_open])
        return [
            DuePoll(merchant_id, since, failures, now, found.get(merchant_id, {}))
            for merchant_id, since, failures, now in claimed
        ]

    def done(self, polls: Sequence[DonePoll]) -> None:
        """Store the rows after polls."""
        values: dict[str, Any] = {"since": bindparam("at"), "failures": bindparam("failed")}
        ended = update(pos_polls).where(pos_polls.c.merchant_id == bindparam("its"))
        ended = ended.values(due_at=Now() + bindparam("wait"), **values)
        names = ("its", "at", "failed", "wait")
        rows = [dict(zip(names, each, strict=True)) for each in polls]
        with changing(self._engine) as connection:
            connection.execute(ended, sorted(rows, key=lambda row: str(row["its"])))

    def _open(self, merchant_ids: Sequence[str]) -> dict[str, dict[str, OpenOrder]]:
        found: dict[str, dict[str, OpenOrder]] = {each: {} for each in merchant_ids}
        if not found:
            return found
        with self._engine.connect() as connection:
            rows = connection.execute(union_all(*map(_open_orders, found)))
            for merchant_id, known_as, order_id, reached, at in rows:
                lifecycle = None if reached is None else Lifecycle(reached)
                found[merchant_id][known_as] = OpenOrder(order_id, lifecycle, at)
        return found


def _open_orders(merchant_id: str) -> Select[Any]:
    """A merchant's oldest open orders, along the index ``orders_open``: a busy merchant takes no merchant's place."""
    order = orders.c
    found = order.merchant_id, order.external_id, order.order_id, order.lifecycle, order.created_at
    return select(
        select(*found)
        .where(order.merchant_id == merchant_id, _open_now())
        .order_by(order.updated_at, order.order_id)
        .limit(_MOST)
        .subquery()
    )


def _open_now() -> ColumnElement[bool]:
    """Open orders, but for orders ended by a cancel request."""
    request = orders.alias("request")
    is_cancelled = exists().where(
        request.c.merchant_id == orders.c.merchant_id,
        request.c.order_id == orders.c.order_id,
        request.c.action == Action.CANCEL,
        request.c.state == State.CANCELLED,
    )
    return and_(orders.c.updated_at > Now() - AGE, IS_OPEN, ~is_cancelled)


def _is_due() -> ColumnElement[bool]:
    return or_(pos_polls.c.due_at <= Now(), pos_polls.c.due_at > Now() + _AHEAD)
