"""Overdue orders: open past their ``deliver_by``, and no message of theirs comes back by itself."""

from sqlalchemy import ColumnElement, Engine, func, select

from pos_gateway.database.clock import Now
from pos_gateway.database.schema import orders
from pos_gateway.ledger.states import Action, State

#: Seconds after ``deliver_by`` and the last change, by when a due retry would have ended the order.
AFTER = 120.0
#: States in which a worker would have ended the order, or have put a pending order in doubt, by its ``deliver_by``.
STATES = (State.NEW, State.CLAIMED, State.SENDING, State.PENDING)
#: Maximum orders counted.
MAX_COUNTED = 1000


def is_overdue() -> ColumnElement[bool]:
    """Whether an order's row is overdue; by the index of states."""
    row, before = orders.c, Now() - AFTER
    return (
        (row.action == Action.SUBMIT)
        & row.state.in_(STATES)
        & (row.updated_at < before)
        & (row.deliver_by < before)
    )


def count_overdue(engine: Engine) -> int:
    """The number of overdue orders, at most ``MAX_COUNTED``. Raises SQLAlchemyError."""
    found = select(orders.c.order_id).where(is_overdue()).limit(MAX_COUNTED).subquery()
    with engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(found)) or 0
