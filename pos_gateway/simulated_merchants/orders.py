"""The orders that came to merchants: the newest in memory, and the others in a file.

A POS never forgets an order, and one that is sent again after hours must not pass for a new one.
So what is older is put away rather than thrown away, and a run of hours takes no more memory than
one of minutes.
"""

import pickle
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

#: Orders in memory: half a kilobyte each.
NEAR = 50_000
#: Orders that are put away at once: while that lasts no merchant answers (a few milliseconds).
_AT_ONCE = 500


@dataclass(slots=True)
class ReceivedOrder:
    """One order of one merchant, by the key under which it was sent."""

    first_at: float
    first_monotonic: float
    last_at: float = 0.0
    last_monotonic: float = 0.0
    requests: int = 0
    creates: int = 0
    #: Calls in flight that hold it.
    open: int = 0
    external_id: int = 0
    cancelled: bool = False
    decided_at: float = 0.0
    statuses: list[str] = field(default_factory=list)
    #: The header ``traceparent`` of each POST that had one.
    traces: list[str] = field(default_factory=list)
    body: bytes | None = None

    def state(self) -> str:
        """The status that the merchant's API shows."""
        if self.cancelled:
            return "cancelled"
        return "accepted" if time.monotonic() >= self.decided_at else "pending"


class ReceivedOrders:
    """All orders, by merchant and key."""

    def __init__(self, near: int = NEAR) -> None:
        self._most = near
        self._near: OrderedDict[tuple[str, str], ReceivedOrder] = OrderedDict()
        self._away = 0
        # Without a name it is in a temporary file that no other process sees, and that goes with us.
        self._file = sqlite3.connect("", isolation_level=None)
        self._file.executescript(
            "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;"
            "CREATE TABLE orders (merchant, id, value, PRIMARY KEY (merchant, id)) WITHOUT ROWID"
        )

    def find(self, merchant_id: str, order_id: str) -> ReceivedOrder | None:
        """The order, wherever it is."""
        key = merchant_id, order_id
        order = self._near.get(key)
        if order is None and self._away:
            order = self._bring(key)
        return order

    def add(self, merchant_id: str, order_id: str, order: ReceivedOrder) -> None:
        """One that has not been there."""
        self._near[merchant_id, order_id] = order
        if len(self._near) >= self._most + _AT_ONCE:
            self._put_away()

    def close(self) -> None:
        """Remove the file."""
        self._file.close()

    def __len__(self) -> int:
        return len(self._near) + self._away

    def __iter__(self) -> Iterator[tuple[str, str, ReceivedOrder]]:
        """Every order as merchant id, order id, order."""
        for merchant_id, order_id, value in self._file.execute("SELECT * FROM orders"):
            yield merchant_id, order_id, pickle.loads(value)
        for (merchant_id, order_id), order in self._near.items():
            yield merchant_id, order_id, order

    def _put_away(self) -> None:
        oldest = [self._near.popitem(last=False) for _ in range(_AT_ONCE)]
        self._near.update((key, order) for key, order in oldest if order.open)
        rows = [(*key, pickle.dumps(order)) for key, order in oldest if not order.open]
        self._file.execute("BEGIN")
        self._file.executemany("INSERT INTO orders VALUES (?, ?, ?)", rows)
        self._file.execute("COMMIT")
        self._away += len(rows)

    def _bring(self, key: tuple[str, str]) -> ReceivedOrder | None:
        row = self._file.execute(
            "DELETE FROM orders WHERE merchant = ? AND id = ? RETURNING value", key
        ).fetchone()
        if row is None:
            return None
        self._away -= 1
        order: ReceivedOrder = pickle.loads(row[0])
        self._near[key] = order
        return order
