"""Orders in doubt as a work list: a page of them, how many there are, and their groups.

Every read is bounded: a page along the index of states, and counts and groups of ``MAX_COUNTED`` orders.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Select,
    and_,
    case,
    exists,
    func,
    or_,
    select,
    union_all,
)

from pos_gateway.administration.bulk.filter import BulkFilter
from pos_gateway.administration.bulk.groups import LetterGroup
from pos_gateway.database.schema import merchants, orders, workers
from pos_gateway.ledger.order_admin import OrderStanding
from pos_gateway.ledger.order_search import Place, behind, within_time
from pos_gateway.ledger.states import ONLY_A_PERSON, RESOLVE_FOR, Action, State

#: Orders that are counted and grouped at most: those that changed longest ago.
MAX_COUNTED = 10_000
#: Reasons for which the gateway may ask or not: with order.in_doubt long before ``deliver_by``, it does not.
MAY_BE_ASKED = ("price_mismatch", "invalid_reply", "payment_required", "text_too_long")
#: Seconds before ``deliver_by`` from which on order.in_doubt says that the time is over.
LAST_SECONDS = 60.0
_ROW = orders.c
_since = func.coalesce(_ROW.in_doubt_since, _ROW.doubt_since, _ROW.updated_at)


def is_left_to_a_person(order: OrderStanding) -> bool:
    """Whether the gateway asks the POS no more for an order in doubt, by the order's reason."""
    if order.reason_code in MAY_BE_ASKED and order.deliver_by is not None:
        is_recorded = order.last_event == State.IN_DOUBT
        return is_recorded and order.updated_at < order.deliver_by - LAST_SECONDS
    return order.reason_code in ONLY_A_PERSON


class DoubtfulOrder(NamedTuple):
    """An order in doubt. Times are Unix time."""

    merchant_id: str
    order_id: str
    reason_code: str | None
    since: float
    deliver_by: float | None
    updated_at: float
    #: No look-up resolves it: a person has to ask the merchant.
    waits_for_person: bool

    @property
    def place(self) -> Place:
        return Place(self.updated_at, self.merchant_id, self.order_id)


@dataclass(frozen=True, slots=True)
class DoubtPage:
    """A page of the list."""

    #: Those that changed longest ago first: look-ups change an order.
    orders: Sequence[DoubtfulOrder]
    has_more: bool
    #: ``MAX_COUNTED`` at most, and whether there are more.
    count: int
    is_least: bool
    #: How many of these wait for a person.
    for_person: int
    #: The groups of these, the largest first, and how many others there are.
    groups: Sequence[LetterGroup]
    more_groups: int


class Doubts:
    """Reads the list. Safe from threads.

    Args:
        engine: the database.
        blind: adapters whose POSes have no look-up.
    """

    def __init__(self, engine: Engine, blind: Sequence[str]) -> None:
        self._engine, self._blind = engine, list(blind)

    def page(
        self, filter_: BulkFilter, after: Place | None, now: float, *, most: int, groups: int
    ) -> DoubtPage:
        """The orders after this place. Raises AdminError: the read took too long."""
        return within_time(
            self._engine,
            lambda connection: self._read(connection, filter_, after, now, most, groups),
        )

    def _read(
        self,
        connection: Connection,
        filter_: BulkFilter,
        after: Place | None,
        now: float,
        most: int,
        groups: int,
    ) -> DoubtPage:
        rows = self._doubtful(filter_, now, None, MAX_COUNTED + 1).subquery().c
        key = (rows.reason_code, rows.merchant_id, rows.provider)
        number = func.count()
        grouped = (
            select(*key, number, func.min(rows.since), func.max(rows.since), _sum(rows.for_person))
            .group_by(*key)
            .order_by(number.desc(), rows.merchant_id)
        )
        found = connection.execute(grouped).all()
        count = sum(row[3] for row in found)
        page = connection.execute(self._doubtful(filter_, now, after, most + 1)).all()
        return DoubtPage(
            [DoubtfulOrder._make((*row[:6], bool(row.for_person))) for row in page[:most]],
            has_more=len(page) > most,
            count=min(count, MAX_COUNTED),
            is_least=count > MAX_COUNTED,
            for_person=min(MAX_COUNTED, sum(row[6] for row in found)),
            groups=[
                LetterGroup(
                    dict(zip(("reason", "merchant", "provider"), row, strict=False)), *row[3:6]
                )
                for row in found[:groups]
            ],
            more_groups=max(0, len(found) - groups),
        )

    def _doubtful(
        self, filter_: BulkFilter, now: float, after: Place | None, most: int
    ) -> Select[Any]:
        """The first orders that the filter selects, after this place: each state along its index."""
        conditions = [_ROW.action == Action.SUBMIT, *_selected(filter_)]
        if after is not None:
            conditions += behind(after, newest_first=False)
        columns = (
            *(_ROW.merchant_id, _ROW.order_id, _ROW.reason_code, _since.label("since")),
            *(_ROW.deliver_by, _ROW.updated_at, _ROW.last_event),
        )
        parts = []
        for state in (State.IN_DOUBT, State.CLAIMED, State.SENDING):
            part = select(*columns).where(_is_doubtful(state), *conditions)
            in_order = part.order_by(_ROW.updated_at, _ROW.merchant_id, _ROW.order_id)
            parts.append(select(in_order.limit(most).subquery()))
        row = union_all(*parts).subquery().c
        for_person = or_(
            row.reason_code.in_(ONLY_A_PERSON),
            and_(  # as ``is_left_to_a_person``
                row.reason_code.in_(MAY_BE_ASKED),
                row.last_event == State.IN_DOUBT,
                row.updated_at < row.deliver_by - LAST_SECONDS,
            ),
            merchants.c.adapter.in_(self._blind),
            row.deliver_by < now - RESOLVE_FOR,
        )
        # Joined last: of a page's orders alone.
        of_merchant = (case((for_person, 1), else_=0).label("for_person"), merchants.c.provider)
        return (
            select(*row, *of_merchant)
            .outerjoin(merchants, merchants.c.id == row.merchant_id)
            .order_by(row.updated_at, row.merchant_id, row.order_id)
            .limit(most)
        )


def _is_doubtful(state: State) -> ColumnElement[bool]:
    """As ``OrderStanding.is_in_doubt``: a leased order is, once its worker is gone."""
    is_in_it = _ROW.state == state
    if state is State.IN_DOUBT:
        return is_in_it
    is_gone = ~exists().where(workers.c.id == _ROW.owner)
    if state is State.SENDING:
        return is_in_it & is_gone
    return and_(is_in_it, is_gone, _ROW.doubt_since.is_not(None))


def _selected(filter_: BulkFilter) -> list[ColumnElement[bool]]:
    """As ``BulkFilter.has_order``."""
    conditions: list[ColumnElement[bool]] = []
    if filter_.codes:
        conditions.append(_ROW.reason_code.in_(filter_.codes))
    if filter_.merchants:
        conditions.append(_ROW.merchant_id.in_(filter_.merchants))
    if filter_.providers:
        theirs = select(merchants.c.id).where(merchants.c.provider.in_(filter_.providers))
        conditions.append(_ROW.merchant_id.in_(theirs))
    if filter_.since is not None:
        conditions.append(_since >= filter_.since)
    if filter_.until is not None:
        conditions.append(_since < filter_.until)
    return conditions


def _sum(column: ColumnElement[int]) -> ColumnElement[int]:
    return func.sum(column)
