"""Orders past their ``deliver_by`` that have not ended: their message does not come back by itself."""

from sqlalchemy import ColumnElement, Engine, func, select

from pos_gateway.database.clock import Now
from pos_gateway.database.schema import orders
from pos_gateway.ledger.states import Action, State

#: Seconds after ``deliver_by`` and after the last change: a retry that is due has ended it by then.
AFTER = 120.0
#: The states in which a worker would have ended it: those in doubt and pending are looked up later.
STATES = (State.NEW, State.CLAIMED, State.SENDING)
#: Maximum orders that are counted.
MAX_COUNTED = 1000


def is_overdue() -> ColumnElement[bool]:
    """Whether an order's row is such an order's; by the index of states."""
    row, before = orders.c, Now() - AFTER
    return (
        (row.action == Action.SUBMIT)
        & row.state.in_(STATES)
        & (row.updated_at < before)
        & (row.deliver_by < before)
    )


class Overdue:
    """Counts them. Safe from threads. Raises SQLAlchemyError."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def count(self) -> int:
        """How many there are, ``MAX_COUNTED`` at most."""
        found = select(orders.c.order_id).where(is_overdue()).limit(MAX_COUNTED).subquery()
        with self._engine.connect() as connection:
            return connection.scalar(select(func.count()).select_from(found)) or 0
