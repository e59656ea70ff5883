"""Finds orders for an operator: last changed first, page by page, each by an index.

No index is by time alone, since every write of a worker would pay: the newest orders are
merged from the newest of each state.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Select,
    and_,
    func,
    or_,
    select,
    text,
    tuple_,
    union_all,
)
from sqlalchemy.exc import OperationalError

from pos_gateway.database.clock import Now
from pos_gateway.database.schema import orders
from pos_gateway.domain.errors import AdminError
from pos_gateway.ledger.states import Action, State

T = TypeVar("T")

#: Maximum orders found by a part of their id; a page shows the newest.
MAX_IDS = 500
#: Maximum orders counted: overdue ones, and per state, where all merchants' orders are.
MAX_COUNTED = 1000
#: Seconds after ``deliver_by`` and the last change, by when a due retry would have ended the order.
OVERDUE_AFTER = 120.0
#: States in which a worker would have ended the order, or have put a pending order in doubt, by its ``deliver_by``.
OVERDUE = (State.NEW, State.CLAIMED, State.SENDING, State.PENDING)
#: Maximum orders of a merchant to sort; with more, each state is read along its index.
MAX_SORTED = 10_000
#: Seconds for a search.
TIMEOUT = 2.0
_CANCELED = "57014"  # PostgreSQL's code for a statement that timed out
#: SQLite's message for the same, and the number of its instructions between two looks at the clock.
_INTERRUPTED, _INSTRUCTIONS = "interrupted", 10_000


class Place(NamedTuple):
    """An order's place in a list: the next page begins after it."""

    updated_at: float
    merchant_id: str
    order_id: str


class FoundOrder(NamedTuple):
    """An order in a list. Times are Unix time."""

    merchant_id: str
    order_id: str
    state: State
    attempts: int
    doubt_since: float | None
    deliver_by: float | None
    updated_at: float
    #: As in the row: ``other`` where a key seals a POS's words.
    reason_code: str | None

    @property
    def place(self) -> Place:
        return Place(self.updated_at, self.merchant_id, self.order_id)


class Count(NamedTuple):
    """Number of orders in a state."""

    state: State
    number: int
    #: The number is a minimum.
    is_least: bool


@dataclass(frozen=True, slots=True)
class Wanted:
    """The filters of a search; None matches any order.

    Args:
        order: an order's id, or its id at the POS; if unknown, a part of ids.
        changed_since: Unix time.
    """

    order: str | None = None
    merchant_id: str | None = None
    state: State | None = None
    changed_since: float | None = None
    #: Only overdue orders (``is_overdue``).
    overdue: bool = False


@dataclass(frozen=True, slots=True)
class SearchResults:
    """A page of a search."""

    orders: Sequence[FoundOrder]
    #: More orders follow.
    has_more: bool
    #: The text is no order's id, but a part of these orders' ids.
    is_part: bool = False
    #: More than ``MAX_IDS`` orders match.
    is_cut: bool = False
    counts: Sequence[Count] = ()
    #: Each state was read along its index: the orders are too many to sort.
    is_by_state: bool = False


class OrderSearch:
    """Searches. Safe from threads. Raises SQLAlchemyError while the database is away."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def find(self, wanted: Wanted, after: Place | None, most: int) -> SearchResults:
        """The orders after this place. Raises AdminError: the search took too long."""
        found, count = within_time(
            self._engine, lambda connection: _find(connection, wanted, after, most)
        )
        with suppress(AdminError):  # the orders are worth more than their number
            return replace(found, counts=within_time(self._engine, count))
        return found


def is_overdue() -> ColumnElement[bool]:
    """Whether an order is overdue: open past its ``deliver_by``, and no message of the order comes back.

    By the index of states.
    """
    row, before = orders.c, Now() - OVERDUE_AFTER
    return (
        (row.action == Action.SUBMIT)
        & row.state.in_(OVERDUE)
        & (row.updated_at < before)
        & (row.deliver_by < before)
    )


def count_overdue(engine: Engine) -> int:
    """The number of overdue orders, at most ``MAX_COUNTED``. Raises SQLAlchemyError."""
    found = select(orders.c.order_id).where(is_overdue()).limit(MAX_COUNTED).subquery()
    with engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(found)) or 0


def within_time(engine: Engine, run: Callable[[Connection], T]) -> T:
    """The result of ``run`` in a transaction. Raises AdminError after ``TIMEOUT``."""
    try:
        with engine.begin() as connection, _limited(connection):
            return run(connection)
    except OperationalError as error:
        if getattr(error.orig, "sqlstate", None) != _CANCELED and str(error.orig) != _INTERRUPTED:
            raise
        raise AdminError(
            f"the search took longer than {TIMEOUT:g} s: give the whole id of the order, or its merchant"
        ) from None


@contextmanager
def _limited(connection: Connection) -> Iterator[None]:
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"set local statement_timeout = '{TIMEOUT:g}s'"))
        yield
        return
    until = time.monotonic() + TIMEOUT
    driver: Any = connection.connection.driver_connection
    driver.set_progress_handler(lambda: time.monotonic() > until, _INSTRUCTIONS)
    try:
        yield
    finally:
        driver.set_progress_handler(None, 0)


def is_large(connection: Connection, merchant_id: str) -> bool:
    """Whether a merchant has too many orders to sort."""
    some = select(orders.c.order_id).where(orders.c.merchant_id == merchant_id)
    counted = some.limit(MAX_SORTED + 1).subquery()
    return (connection.scalar(select(func.count()).select_from(counted)) or 0) > MAX_SORTED


def _find(
    connection: Connection, wanted: Wanted, after: Place | None, most: int
) -> tuple[SearchResults, Callable[[Connection], list[Count]]]:
    """The page, and a function to count the orders by state."""
    of_all, is_part, is_cut = _conditions(connection, wanted)
    conditions = [*of_all]
    if wanted.state is not None:
        conditions.append(orders.c.state == wanted.state)
    if after is not None:
        conditions += behind(after)
    walks = wanted.order is None and (
        wanted.merchant_id is None or is_large(connection, wanted.merchant_id)
    )
    every = [*OVERDUE] if wanted.overdue else [*State]
    states = every if walks and wanted.state is None else [wanted.state] if walks else [None]
    pages = []
    for state in states:
        in_state = [] if state is None else [orders.c.state == state]
        pages.append(_page(and_(*conditions, *in_state), most + 1))
    if len(pages) > 1:
        merged = union_all(*(select(page.subquery()) for page in pages)).subquery()
        query = select(merged).order_by(
            merged.c.updated_at.desc(), merged.c.merchant_id, merged.c.order_id
        )
        rows = connection.execute(query.limit(most + 1)).all()
    else:
        rows = connection.execute(pages[0]).all()
    found = [FoundOrder(*row)._replace(state=State(row.state)) for row in rows]

    def count(connection: Connection) -> list[Count]:
        return _counts(connection, of_all, each_by_itself=walks, states=every)

    page = SearchResults(found[:most], len(found) > most, is_part, is_cut, is_by_state=walks)
    return page, count


def _conditions(
    connection: Connection, wanted: Wanted
) -> tuple[list[ColumnElement[bool]], bool, bool]:
    """All conditions except the state's; whether the text is a part of ids; of too many."""
    conditions: list[ColumnElement[bool]] = [orders.c.action == Action.SUBMIT]
    if wanted.merchant_id is not None:
        conditions.append(orders.c.merchant_id == wanted.merchant_id)
    if wanted.changed_since is not None:
        conditions.append(orders.c.updated_at >= wanted.changed_since)
    if wanted.overdue:
        conditions.append(is_overdue())
    if wanted.order is None:
        return conditions, False, False
    for is_it in (orders.c.order_id == wanted.order, orders.c.external_id == wanted.order):
        one = select(orders.c.order_id).where(*conditions, is_it).limit(1)
        if connection.scalar(one) is not None:
            return [*conditions, is_it], False, False
    has_it = _has(connection, wanted.order)
    if wanted.merchant_id is not None:
        return [*conditions, has_it], True, False
    # The index by order has the ids alone, and is a small part of the table.
    query = select(orders.c.order_id).where(has_it).distinct().limit(MAX_IDS + 1)
    ids = connection.scalars(query).all()
    return [*conditions, orders.c.order_id.in_(ids[:MAX_IDS])], True, len(ids) > MAX_IDS


def _has(connection: Connection, part: str) -> ColumnElement[bool]:
    """Whether an id has this part, in the same case."""
    place = func.instr if connection.dialect.name == "sqlite" else func.strpos
    found: ColumnElement[bool] = place(orders.c.order_id, part) > 0
    return found


def behind(place: Place, *, newest_first: bool = True) -> list[ColumnElement[bool]]:
    """Conditions for orders after a place; an index serves the first."""
    at, *key = place
    changed = orders.c.updated_at
    is_later = tuple_(orders.c.merchant_id, orders.c.order_id) > tuple_(*key)
    if newest_first:
        return [changed <= at, or_(changed < at, is_later)]
    return [changed >= at, or_(changed > at, is_later)]


def _page(condition: ColumnElement[bool], most: int) -> Select[Any]:
    columns = [orders.c[name] for name in FoundOrder._fields]
    in_order = (orders.c.updated_at.desc(), orders.c.merchant_id, orders.c.order_id)
    return select(*columns).where(condition).order_by(*in_order).limit(most)


def _counts(
    connection: Connection,
    conditions: list[ColumnElement[bool]],
    *,
    each_by_itself: bool,
    states: Sequence[State],
) -> list[Count]:
    """Orders per state: all of a merchant's, else up to ``MAX_COUNTED`` of each state."""
    if not each_by_itself:
        grouped = select(orders.c.state, func.count()).where(*conditions)
        rows = connection.execute(grouped.group_by(orders.c.state)).all()
        found: dict[str, int] = dict(rows)
        return [Count(state, found[state], False) for state in State if state in found]
    parts = []
    for state in states:
        some = select(orders.c.state).where(orders.c.state == state, *conditions)
        counted = some.limit(MAX_COUNTED + 1).subquery()
        parts.append(select(func.min(counted.c.state), func.count()).select_from(counted))
    rows = connection.execute(union_all(*parts)).all()
    return [
        Count(State(state), min(count, MAX_COUNTED), count > MAX_COUNTED)
        for state, count in rows
        if count
    ]
