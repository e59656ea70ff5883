"""Order administration that reads what is asked next of many orders together, not of each."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from pos_gateway.ledger.order_admin import OrderAdmin, OrderStanding
from pos_gateway.ledger.states import Key

#: Orders that are read at once; PostgreSQL and SQLite look each up by the primary key.
TOGETHER = 200
#: Bytes of letters, which may be of any size, that are held for it.
BYTES = 4 * 1024 * 1024

T = TypeVar("T")


class ReadAheadOrderAdmin(OrderAdmin):
    """For a preview, on one thread. What was not read ahead is read when it is asked for."""

    _rows: dict[Key, OrderStanding | None] | None = None
    _orders: dict[Key, str | None] | None = None

    def read(self, keys: Iterable[Key], *, with_orders: bool = False) -> None:
        """Read these orders, and their cancel requests, and forget those before.

        Args:
            with_orders: their JSON as well.
        """
        wanted = {Key(each.merchant_id, each.order_id) for each in keys}
        self._rows = dict(self.some(wanted))
        self._orders = self.payloads_of(wanted) if with_orders else None

    def one(self, key: Key) -> OrderStanding | None:
        """This row's standing, as it was read; None if the ledger did not know it."""
        if self._rows is None or key not in self._rows:
            return super().one(key)
        return self._rows[key]

    def order_json(self, key: Key) -> bytes | None:
        """The order's JSON; None if it is not kept. Raises CannotOpen."""
        submission = Key(key.merchant_id, key.order_id)
        if self._orders is None or submission not in self._orders:
            return super().order_json(key)
        return self.opened(submission, self._orders[submission])


def in_batches(items: Iterable[T], size: Callable[[T], int]) -> Iterator[Sequence[T]]:
    """The items, ``TOGETHER`` at a time, or fewer if these bytes are more than ``BYTES``."""
    batch: list[T] = []
    total = 0
    for item in items:
        batch.append(item)
        total += size(item)
        if len(batch) >= TOGETHER or total >= BYTES:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch
