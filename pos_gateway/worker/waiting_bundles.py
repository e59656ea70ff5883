"""Parked bundles that wait in the worker until their merchant can take the orders.

The broker delays by whole seconds; a merchant that takes 500 orders a second would idle meanwhile.
A bundle occupies one message of the prefetch window for up to 64 orders.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

import gevent
from gevent.pool import Group

from pos_gateway.admission.admission import Admission
from pos_gateway.worker.bundles import ReturnedBundle


class WaitingBundles:
    """Waiting bundles per merchant, unparked first in, first out. No method blocks.

    Args:
        admission: says how long a bundle waits, and how many of its orders to unpark.
        settle: unparks that many of a bundle's orders, and parks the rest.
        now: admission's clock.
    """

    def __init__(
        self,
        admission: Admission[Any],
        settle: Callable[[ReturnedBundle, int], None],
        now: Callable[[], float],
    ) -> None:
        self._admission = admission
        self._settle = settle
        self._now = now
        self._of: dict[str, deque[ReturnedBundle]] = {}
        self._number, self._most = 0, admission.limits.max_blocked // 4
        #: Green threads that check the bundles, one per merchant.
        self._looking = Group()

    @property
    def orders(self) -> int:
        """Orders in the waiting bundles."""
        return sum(back.bundle.orders for kept in self._of.values() for back in kept)

    def has(self, merchant_id: str) -> bool:
        """Whether bundles of the merchant wait; a returning one queues behind them."""
        return merchant_id in self._of

    def keep(self, back: ReturnedBundle) -> bool:
        """Let a bundle wait; False: park it instead."""
        merchant_id = back.bundle.merchant_id
        kept = self._of.get(merchant_id, deque())
        orders = sum(each.bundle.orders for each in kept)
        wait = self._admission.look_again(merchant_id, orders, self._now())
        if wait is None or self._number >= self._most:
            return False
        kept.append(back)
        self._number += 1
        if merchant_id not in self._of:
            self._of[merchant_id] = kept
            self._looking.spawn(self._look, merchant_id, kept, wait)
        return True

    def drop(self) -> list[ReturnedBundle]:
        """Remove and return all bundles."""
        dropped = [back for kept in self._of.values() for back in kept]
        for kept in self._of.values():
            kept.clear()  # ends its green thread
        self._of.clear()
        self._number = 0
        return dropped

    def _look(self, merchant_id: str, kept: deque[ReturnedBundle], wait: float) -> None:
        gevent.sleep(wait)
        while kept:
            back, now = kept[0], self._now()
            number = self._admission.unpark(merchant_id, back.bundle.orders, now)
            again = self._admission.look_again(merchant_id, 0, now)
            if number or again is None or back.is_late:
                kept.popleft()
                self._number -= 1
                self._settle(back, number)
            if kept:
                gevent.sleep(again or 0.0)
        if self._of.get(merchant_id) is kept:
            del self._of[merchant_id]
