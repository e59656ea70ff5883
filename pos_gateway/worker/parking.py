"""Parks orders that cannot start in the broker, and unparks them.

They are parked many to a message, a bundle. Published singly, the twenty thousand orders of one
dead merchant cost the broker a minute, and another one every time that they return.
"""

from collections.abc import Callable, Sequence
from math import inf
from time import time
from typing import Any, Protocol

import gevent
import structlog
from gevent import GreenletExit
from gevent.event import Event
from gevent.lock import Semaphore
from gevent.pool import Group

from pos_gateway.admission.admission import Admission
from pos_gateway.broker.bundle import MAX_BYTES, MAX_ORDERS, Bundle, ParkedOrder, joined
from pos_gateway.broker.message import FINE, Message
from pos_gateway.domain.errors import InvalidBundle, PublishError
from pos_gateway.processing.gateway import Gateway
from pos_gateway.runtime.green import yield_control
from pos_gateway.telemetry import metrics
from pos_gateway.worker.bundles import ReturnedBundle, is_late
from pos_gateway.worker.waiting_bundles import WaitingBundles

log = structlog.get_logger(__name__)

#: Seconds that a bundle stays open after its first order; the second while its merchant is silent,
#: and no order is due back soon.
OPEN_FOR, OPEN_FOR_SILENT = 0.2, 2.0
#: Messages published at once. Hundreds of merchants' orders may be due for parking at the same
#: time, and orders in flight must run in between.
CONCURRENCY = 8

#: Acknowledgements in a row before other green threads run.
YIELD_EVERY = 50


class Original(Protocol):
    """A message whose orders are being parked: it is acknowledged once they are stored."""

    def acknowledge(self) -> None: ...
    def reject(self, requeue: bool) -> None: ...


class Parking:
    """Parks orders, and unparks them to the queue when their merchant can take them.

    A publish is confirmed before its original is acknowledged: a crash in between duplicates an
    order, and never loses it. Only ``requeue_waiting`` blocks.

    Args:
        gate: what to publish through.
        admission: says when parked orders return, and how many to unpark then.
        quarantine: dead-letters a message, with a reason code and a sentence.
        now: admission's clock.
    """

    def __init__(
        self,
        gate: Gateway,
        admission: Admission[Any],
        quarantine: Callable[[Any, str, str], None],
        now: Callable[[], float],
    ) -> None:
        self._gate = gate
        self._admission = admission
        self._quarantine = quarantine
        self._now = now
        self._open: dict[tuple[str, str], _Gathering] = {}
        self._waiting = WaitingBundles(admission, self._settle, now)
        #: Messages in open bundles, and how many there may be: they occupy the prefetch window that
        #: all merchants share, and hundreds of merchants may have one order each in it.
        self._gathered, self._most_gathered = 0, admission.limits.max_blocked // 2
        #: Green threads that publish, or wait for a bundle to fill.
        self._publishing = Group()
        self._few_at_a_time = Semaphore(CONCURRENCY)

    def park(self, merchant_id: str, order: ParkedOrder, original: Original) -> None:
        """Park an order; its message is acknowledged once the broker has stored it."""
        self._gather(Bundle.of_one(merchant_id, order.message.routing_key, order), original)

    def take_back(self, back: ReturnedBundle) -> None:
        """Unpark as many of a bundle's orders as may return; else it waits, or is parked again."""
        bundle, number = back.bundle, 0
        if not self._waiting.has(bundle.merchant_id):
            number = self._admission.unpark(bundle.merchant_id, bundle.orders, self._now())
        if number or back.is_late or not self._waiting.keep(back):
            self._settle(back, number)

    def _settle(self, back: ReturnedBundle, number: int) -> None:
        """Unpark ``number`` of a bundle's orders, and the expired ones; park the rest again."""
        bundle = back.bundle
        if number or back.is_late:
            self._publishing.spawn(self._unpark, back, number)
        elif bundle.is_small() or bundle.orders == 1:
            if self._opened(back) is not None:  # a malformed bundle must not spoil another
                self._gather(bundle, back)
        else:
            self._publishing.spawn(self._park, bundle, [back])

    @property
    def waiting_orders(self) -> int:
        """Orders in bundles that wait in the worker."""
        return self._waiting.orders

    def forget(self) -> None:
        """Drop all orders after a lost connection: the broker redelivers them.

        Publishing them from now on would duplicate them, so publishing stops.
        """
        self._open.clear()
        self._gathered = 0
        self._waiting.drop()
        self._publishing.kill(block=False)

    def requeue_waiting(self, timeout: float) -> None:
        """Requeue what is not being published yet; wait ``timeout`` seconds for the rest."""
        for key, gathering in list(self._open.items()):
            gathering.requeued = True
            self._close(key)
            _reject(gathering.originals)
        _reject(self._waiting.drop())
        self._publishing.join(timeout)

    def _gather(self, bundle: Bundle, original: Original) -> None:
        key = bundle.merchant_id, bundle.routing_key
        if key in self._open and not self._open[key].has_room_for(bundle):
            self._close(key)
        gathering = self._open.get(key)
        if gathering is None:
            gathering = self._open[key] = _Gathering()
            answers = self._admission.answers(bundle.merchant_id, self._now())
            open_for = OPEN_FOR if answers else OPEN_FOR_SILENT
            self._publishing.spawn(self._park_gathered, key, gathering, open_for)
        gathering.add(bundle, original)
        self._gathered += 1
        if gathering.is_full or is_late(bundle.deliver_by, within=2 * OPEN_FOR_SILENT):
            self._close(key)
        elif self._gathered > self._most_gathered:
            self._close(next(iter(self._open)))  # the oldest

    def _close(self, key: tuple[str, str]) -> None:
        """Close a bundle to further orders: it is published as it is."""
        gathering = self._open.pop(key)
        gathering.closed.set()
        self._gathered -= len(gathering.originals)

    def _park_gathered(
        self, key: tuple[str, str], gathering: "_Gathering", open_for: float
    ) -> None:
        gathering.closed.wait(open_for)
        if self._open.get(key) is gathering:
            self._close(key)
        if not gathering.requeued:
            self._park(joined(gathering.parts), gathering.originals)

    def _park(self, bundle: Bundle, originals: list[Original]) -> None:
        message = self._delayed(bundle)
        if self._store(message):
            self._count(bundle, message)
            for number, original in enumerate(originals, 1):
                original.acknowledge()
                if number % YIELD_EVERY == 0:
                    yield_control()
        else:
            _reject(originals)

    def _unpark(self, back: ReturnedBundle, number: int) -> None:
        bundle, orders = back.bundle, self._opened(back)
        if orders is None:
            return
        late = [order for order in orders if is_late(order.deliver_by)]
        rest = [order for order in orders if not is_late(order.deliver_by)]
        messages = [order.message for order in (*late, *rest[:number])]
        staying = None
        if rest[number:]:
            staying = Bundle.of(bundle.merchant_id, bundle.routing_key, rest[number:])
            messages.append(self._delayed(staying))
        threads = [self._publishing.spawn(self._store, message) for message in messages]
        gevent.joinall(threads)
        if any(isinstance(thread.value, GreenletExit) for thread in threads):
            return  # lost connection: a killed thread that had not begun ends before this one
        if not all(thread.value is True for thread in threads):
            _reject([back])
            return
        back.acknowledge()
        if staying is not None:
            self._count(staying, messages[-1])

    def _opened(self, back: ReturnedBundle) -> list[ParkedOrder] | None:
        """The orders in a bundle; None if it is malformed, and dead-lettered as a whole."""
        try:
            return back.bundle.open()
        except InvalidBundle as error:
            self._quarantine(back.message, "invalid_bundle", str(error))
            return None

    def _delayed(self, bundle: Bundle) -> Message:
        """The message that returns the bundle at its turn, or when its first order expires."""
        few = bundle.is_small()
        delay = self._admission.park_delay(bundle.merchant_id, self._now(), few=few)
        left = inf if bundle.deliver_by is None else bundle.deliver_by - time()
        return bundle.message().delayed(min(delay, left), before=left, bits=FINE)

    def _store(self, message: Message) -> bool:
        """Publish a message; False if this process stops before it is stored."""
        try:
            with self._few_at_a_time:
                self._gate.store([message])
        except PublishError as error:
            log.warning("orders.not_parked", error=str(error))
            return False
        return True

    def _count(self, bundle: Bundle, message: Message) -> None:
        due = self._now() + message.delay
        self._admission.parked_count.add(bundle.merchant_id, bundle.orders, due)
        metrics.parked.inc(bundle.orders)


class _Gathering:
    """A bundle that is open to more orders."""

    __slots__ = ("_orders", "_size", "closed", "originals", "parts", "requeued")

    def __init__(self) -> None:
        self.parts: list[Bundle] = []
        self.originals: list[Original] = []
        #: Set once it takes no more orders.
        self.closed = Event()
        self.requeued = False
        self._orders = self._size = 0

    @property
    def is_full(self) -> bool:
        return self._orders >= MAX_ORDERS or self._size >= MAX_BYTES

    def has_room_for(self, bundle: Bundle) -> bool:
        return self._orders + bundle.orders <= MAX_ORDERS and self._size + bundle.size <= MAX_BYTES

    def add(self, bundle: Bundle, original: Original) -> None:
        self.parts.append(bundle)
        self.originals.append(original)
        self._orders += bundle.orders
        self._size += bundle.size


def _reject(originals: Sequence[Original]) -> None:
    for original in originals:
        original.reject(requeue=True)
