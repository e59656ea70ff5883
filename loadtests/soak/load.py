"""Orders at a steady rate, spread over the faults: a share of them for each."""

import threading
import time
from itertools import cycle
from typing import Self

from loadtests.bench.orders import place
from testkit.faults.backend import Backend

#: Orders placed a second. Some forty are in flight then; that workers start anew every few seconds
#: costs two cores as much again.
RATE = 100.0
#: Shares that the orders may be ahead of the faults: some workers are on their way to their faults.
AHEAD = 6
#: Beyond that, and past the last order, this many are placed each second: a worker that is to die at
#: its next acknowledgement needs one.
TRICKLE = RATE / 4
#: Seconds' worth of orders that nothing is known of yet, at most: what waits is not to outlive the
#: faults.
BEHIND = 10.0


class Load:
    """Places orders on a thread of its own while the block lasts, and then those that are left.

    Args:
        backend: through which.
        merchant_ids: with whom, in turn.
        orders: how many at least, and twice as many at most.
        faults: how many are planned.
    """

    def __init__(self, backend: Backend, merchant_ids: list[str], orders: int, faults: int) -> None:
        self._backend = backend
        self._merchants = cycle(merchant_ids)
        self._orders = orders
        #: Orders for each fault.
        self.share = orders / max(1, faults)
        self._number = self._faults = 0
        self._abandoned, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._over.set()
        if kind is not None:
            self._abandoned.set()
        else:
            self._thread.join()

    def fault_done(self) -> None:
        """One more fault has ended: its share of orders may be placed, too."""
        self._faults += 1

    def is_due(self) -> bool:
        """Whether the orders of all faults so far have been placed: the next one may come."""
        return self._number >= min(self._faults * self.share, self._orders)

    def _run(self) -> None:
        due = time.monotonic()
        while not self._abandoned.wait(max(0.0, due - time.monotonic())):
            if self._over.is_set() and self._number >= self._orders:
                return
            due = max(due, time.monotonic() - 1.0)  # what a broker that was away has cost is lost
            if self._number >= 2 * self._orders or self._backend.outstanding >= BEHIND * RATE:
                due += 1 / TRICKLE
                continue
            order = place(f"o{self._number}", next(self._merchants))
            if not self._backend.place(order):
                return
            self._number += 1
            due += 1 / (TRICKLE if self._is_ahead() else RATE)

    def _is_ahead(self) -> bool:
        if self._over.is_set():
            return False
        return self._number >= min((self._faults + AHEAD) * self.share, self._orders)
