"""Orders for as long as there are faults: so many for each, and never a broken flow."""

import threading
import time
from itertools import count, cycle
from typing import Self

from loadtests.bench.orders import place
from loadtests.faults.backend import Backend

#: Orders that nothing is known of yet, at most: what waits is not to outlive the faults.
OUTSTANDING = 2000
#: Seconds after which a few more are placed although no fault has come to its end: it may wait for
#: an order that reaches it.
PATIENCE, FEW = 3.0, 50


class Load:
    """Places orders on a thread of its own while the block lasts.

    Args:
        backend: through which.
        merchant_ids: with whom, in turn.
        orders: how many, if as many faults as planned come to their end.
        faults: how many are planned.
    """

    def __init__(self, backend: Backend, merchant_ids: list[str], orders: int, faults: int) -> None:
        self._backend = backend
        self._merchants = cycle(merchant_ids)
        self._orders, self._faults = orders, faults
        self._allowed = orders / faults
        self._more = threading.Condition()
        self._over = False
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._more:
            self._over = True
            self._more.notify()
        self._thread.join()

    def fault_done(self) -> None:
        """One more fault has come to its end: so many more orders may be placed."""
        with self._more:
            self._allowed += self._orders / self._faults
            self._more.notify()

    def _run(self) -> None:
        for number in count():
            with self._more:
                if not self._over and number >= self._allowed and not self._more.wait(PATIENCE):
                    self._allowed = max(self._allowed, number) + FEW
            while not self._over and self._backend.outstanding >= OUTSTANDING:
                time.sleep(0.01)
            if self._over and number >= self._orders:
                return
            self._backend.place(place(f"o{number}", next(self._merchants)))
