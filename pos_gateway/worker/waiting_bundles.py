"""Parked bundles waiting in the worker until their merchant can take the orders.

The broker delays by whole seconds; a merchant taking 500 orders a second would idle in between. A bundle occupies one
message of the prefetch window for up to 64 orders.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from time import time
from typing import Any

import gevent
import structlog

from pos_gateway.admission.admission import Admission
from pos_gateway.admission.limits import LONGEST_HERE
from pos_gateway.broker.bundle import Bundle

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class ReturnedBundle:
    """A message with parked orders, from arrival to acknowledgement."""

    bundle: Bundle
    message: Any
    _connection_errors: tuple[type[BaseException], ...]
    #: Since when the bundle waits in the worker.
    since: float = inf

    @property
    def is_late(self) -> bool:
        """Whether an order in the bundle has expired."""
        return is_late(self.bundle.deliver_by)

    def acknowledge(self) -> None:
        """Acknowledge the message: all orders are stored elsewhere."""
        self.message.ack_log_error(log, self._connection_errors)

    def requeue(self) -> None:
        """Requeue the message."""
        self.message.reject_log_error(log, self._connection_errors, True)


def is_late(deliver_by: float | None, within: float = 0.0) -> bool:
    """Whether the deadline has passed, or will within ``within`` seconds."""
    return deliver_by is not None and deliver_by - within <= time()


class WaitingBundles:
    """Waiting bundles per merchant, unparked first in, first out. No method blocks.

    Args:
        admission: says how long a bundle waits, and how many of the orders to unpark.
        settle: unparks a number of a bundle's orders, and parks the rest.
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
        #: By merchant, and whether they are look-ups.
        self._of: dict[tuple[str, bool], _Kept] = {}
        self._number, self._most = 0, admission.limits.max_blocked // 4
        self._loop = gevent.get_hub().loop

    @property
    def orders(self) -> int:
        """Orders in the waiting bundles."""
        return sum(back.bundle.orders for kept in self._of.values() for back in kept.bundles)

    def has(self, bundle: Bundle) -> bool:
        """Whether bundles of the same merchant and kind wait; a returning bundle queues at the end."""
        return (bundle.merchant_id, bundle.look_ups) in self._of

    def keep(self, back: ReturnedBundle) -> bool:
        """Let a bundle wait; False: park the bundle instead."""
        key = merchant_id, look_ups = back.bundle.merchant_id, back.bundle.look_ups
        kept = self._of.get(key)
        orders = sum(each.bundle.orders for each in kept.bundles) if kept else 0
        wait = self._admission.look_again(merchant_id, orders, self._now(), look_ups=look_ups)
        if wait is None or self._number >= self._most:
            return False
        if not self._admission.takes(merchant_id, back.bundle.size, look_ups=look_ups):
            return False
        self._number += 1
        back.since = self._now()
        if kept is not None:
            kept.bundles.append(back)
        else:
            # A timer, and no green thread: hundreds of merchants' bundles may wait.
            kept = self._of[key] = _Kept(deque([back]))
            self._look_in(wait, key, kept)
        return True

    def drop(self) -> list[ReturnedBundle]:
        """Remove and return all bundles."""
        dropped = [back for kept in self._of.values() for back in kept.bundles]
        for back in dropped:
            self._left(back)
        for kept in self._of.values():
            kept.timer.close()
        self._of.clear()
        self._number = 0
        return dropped

    def _left(self, back: ReturnedBundle) -> None:
        bundle = back.bundle
        self._admission.left(bundle.merchant_id, bundle.size, look_ups=bundle.look_ups)

    def _look_in(self, seconds: float, key: tuple[str, bool], kept: "_Kept") -> None:
        kept.timer = self._loop.timer(seconds)
        kept.timer.start(self._look, key, kept)

    def _look(self, key: tuple[str, bool], kept: "_Kept") -> None:
        """Unpark as many of the first bundle's orders as may return, or let it wait."""
        kept.timer.close()
        (merchant_id, look_ups), back, now = key, kept.bundles[0], self._now()
        number = self._admission.unpark(merchant_id, back.bundle.orders, now, look_ups=look_ups)
        again = self._admission.look_again(merchant_id, 0, now, look_ups=look_ups)
        if number or again is None or back.is_late or now - back.since >= LONGEST_HERE:
            kept.bundles.popleft()
            self._number -= 1
            self._left(back)
            self._settle(back, number)
        if kept.bundles:
            self._look_in(again or 0.0, key, kept)
        else:
            del self._of[key]


class _Kept:
    """One merchant's waiting bundles, and the timer until the next check."""

    __slots__ = ("bundles", "timer")

    def __init__(self, bundles: deque[ReturnedBundle]) -> None:
        self.bundles = bundles
        self.timer: Any = None
