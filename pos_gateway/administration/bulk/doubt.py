"""A bulk run's work on orders in doubt: one answer of their merchants for all of them."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial

from pos_gateway.administration.bulk.read_ahead import TOGETHER, in_batches
from pos_gateway.administration.bulk.run import BulkItem, NewItem
from pos_gateway.administration.bulk.work import Task
from pos_gateway.administration.refusal import Refusal
from pos_gateway.administration.resolve import Resolution, is_resolved
from pos_gateway.domain.errors import AdminError, InvalidOrder, OrderChanged, PublishError
from pos_gateway.ledger.order_admin import OrderAdmin, OrderStanding
from pos_gateway.ledger.states import Key, State

#: The states of orders that may be in doubt: a worker may have died with one.
DOUBTFUL = (State.IN_DOUBT, State.CLAIMED, State.SENDING)
#: Bytes of an order, as what is read ahead of many counts it: few have as many.
_ORDER = 32 * 1024
_CHANGED = Refusal(
    "something has happened to it since the preview; ask the merchant again",
    "something has happened to it since the preview; ask the merchant again",
)
_UNKNOWN = Refusal("the ledger does not know it any more", "the ledger does not know it any more")


class DoubtWork:
    """The orders in doubt that the filter selects.

    Args:
        ledger: order administration.
        is_selected: whether the filter selects an order.
        resolving: makes a resolution by this operator, with this note for the audit; without an
            operator one that only judges.
        ahead: reads what that needs of these orders.
        connect: raises PublishError if no message can be published now.
        there: whether the merchants have them: ``accepted`` rather than ``not_sent``.
        until: the new deadline of an order whose turn is now.
    """

    def __init__(
        self,
        ledger: OrderAdmin,
        *,
        is_selected: Callable[[OrderStanding], bool],
        resolving: Callable[[str, str], Resolution],
        ahead: Callable[[Sequence[OrderStanding]], None],
        connect: Callable[[], None],
        there: bool,
        until: Callable[[datetime], datetime | None],
    ) -> None:
        self._ledger = ledger
        self._is_selected = is_selected
        self._resolving = resolving
        self._ahead = ahead
        self._connect = connect
        self._there = there
        self._until = until

    def found(self) -> Iterator[NewItem]:
        """The orders that the filter selects, each once: of a state those that changed longest ago first."""
        for orders in in_batches(filter(self._is_selected, self._doubtful()), lambda _: _ORDER):
            self._ahead(orders)
            for order in orders:
                yield NewItem(
                    _mark(order),
                    order.order_id,
                    order.merchant_id,
                    order.order_id,
                    self._why_not(order),
                )

    def tasks(self, items: Iterable[BulkItem], operator: str, note: str) -> Iterator[Task | None]:
        """The orders of these items."""
        if not self._there:  # before anything is written: the order must be published afterwards
            self._connect()
        for item in items:
            yield Task(item, partial(self._act, item, operator, note))

    def wait(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def _doubtful(self) -> Iterator[OrderStanding]:
        # Of hundreds of thousands no more is kept than a number each.
        seen: set[int] = set()
        for state in DOUBTFUL:
            for order in self._ledger.in_state(state, TOGETHER):
                if order.is_in_doubt and (number := hash(order.key)) not in seen:
                    seen.add(number)
                    yield order

    def _why_not(self, order: OrderStanding) -> Refusal | None:
        try:
            until = self._until(datetime.now(UTC))
            self._resolving("", "").require_possible(order, until, there=self._there)
        except (AdminError, InvalidOrder) as error:
            return Refusal.of(error)
        return None

    def _act(self, item: BulkItem, operator: str, note: str) -> Refusal | None:
        order = self._ledger.one(Key(item.merchant_id or "", item.order_id or ""))
        if order is None:
            return _UNKNOWN
        # Its decision may have been written, and its process have died before the next step.
        is_repeated = item.has_begun and is_resolved(order)
        if not is_repeated and _mark(order) != item.mark:
            return _CHANGED
        resolving = self._resolving(operator, note)
        try:
            if self._there:
                resolving.accepted(order, None)
            else:
                until = None if is_repeated else self._until(datetime.now(UTC))
                resolving.not_sent(order, until)
        except (AdminError, OrderChanged, InvalidOrder) as error:
            if isinstance(error.__cause__, PublishError):
                raise error.__cause__ from error
            return Refusal.of(error)
        return None


def _mark(order: OrderStanding) -> str:
    """The order as it is seen: every claim, and every change, has another."""
    return f"{order.epoch}.{order.reopened}.{order.state.value}"
