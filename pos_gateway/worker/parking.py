"""Parks orders that cannot start in the broker, and unparks them.

Orders are parked many to a message, a bundle. Published singly, the twenty thousand orders of one dead merchant cost
the broker a minute, and a minute more at every return.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from time import time
from typing import Any, Protocol

import gevent
import structlog

from pos_gateway.admission.admission import Admission
from pos_gateway.attempt.gateway import Gateway
from pos_gateway.broker.bundle import MAX_BYTES, MAX_ORDERS, Bundle, ParkedOrder, joined
from pos_gateway.broker.message import FINE, Message
from pos_gateway.domain.errors import InvalidBundle, PublishError
from pos_gateway.runtime.green import yield_control
from pos_gateway.telemetry import metrics
from pos_gateway.worker.job_queue import JobQueue
from pos_gateway.worker.waiting_bundles import ReturnedBundle, WaitingBundles, is_late

log = structlog.get_logger(__name__)

#: Seconds that a bundle stays open after the first order; the second while the merchant is silent, or yields to the
#: reader, and no order is due back soon.
OPEN_FOR, OPEN_FOR_LATER = 0.2, 2.0
#: Bytes of orders in open bundles, as a part of ``max_bytes`` by this divisor: half of the bytes at which the reader
#: stops, since time alone would let the reader go on.
OPEN_PART = 16
#: Messages published at once. Hundreds of merchants' orders may be due for parking at the same
#: time, and orders in flight must run in between.
CONCURRENCY = 8

#: Acknowledgements in a row before other green threads run.
YIELD_EVERY = 50


class Original(Protocol):
    """A message with orders being parked, acknowledged once the orders are stored."""

    def acknowledge(self) -> None: ...
    def requeue(self) -> None: ...


class Parking:
    """Parks orders, and unparks orders to the queue when their merchant can take them.

    A publish is confirmed before the original is acknowledged: a crash in between duplicates an order, and never loses
    an order. Only ``requeue_waiting`` blocks.

    Args:
        gate: the publisher.
        admission: says when parked orders return, and how many to unpark then.
        dead_letter: dead-letters a message, with a reason code and a sentence.
        now: admission's clock.
    """

    def __init__(
        self,
        gate: Gateway,
        admission: Admission[Any],
        dead_letter: Callable[[Any, str, str], None],
        now: Callable[[], float],
    ) -> None:
        self._gate = gate
        self._admission = admission
        self._dead_letter = dead_letter
        self._now = now
        #: By merchant, routing key, and whether they are look-ups.
        self._open: dict[tuple[str, str, bool], _Gathering] = {}
        self._waiting = WaitingBundles(admission, self._settle, now)
        #: Messages in open bundles, and the maximum: the messages occupy the prefetch window that all merchants share,
        #: and hundreds of merchants may each have an order here.
        self._gathered, self._most_gathered = 0, admission.limits.max_blocked // 2
        self._open_bytes, self._most_open_bytes = 0, admission.limits.max_bytes // OPEN_PART
        #: An open bundle has a timer, and a closed bundle waits here: neither has a stack.
        self._publishing = JobQueue(CONCURRENCY)
        #: Messages on their way to the broker, with the bytes of their orders, and the sum of all bytes.
        self._leaving: dict[Original, int] = {}
        self.bytes = 0
        self._loop = gevent.get_hub().loop

    def park(self, merchant_id: str, order: ParkedOrder, original: Original) -> None:
        """Park an order; the message is acknowledged once the broker has stored the order."""
        bundle = Bundle.of_one(merchant_id, order.message.routing_key, order)
        self._leaves(original, bundle.size)
        self._gather(bundle, original)

    def take_back(self, back: ReturnedBundle) -> None:
        """Unpark as many of a bundle's orders as may return; else the bundle waits, or is parked again."""
        bundle, number = back.bundle, 0
        if not self._waiting.has(bundle):
            number = self._admission.unpark(
                bundle.merchant_id,
                bundle.orders,
                self._now(),
                look_ups=bundle.look_ups,
                may_probe=not back.is_late or self._takes_expired(bundle),
            )
        if number or back.is_late or not self._waiting.keep(back):
            self._settle(back, number)

    def _settle(self, back: ReturnedBundle, number: int) -> None:
        """Unpark ``number`` of a bundle's orders, and the expired ones; park the rest again."""
        bundle = back.bundle
        self._leaves(back, bundle.size)
        if number or (back.is_late and self._takes_expired(bundle)):
            self._publishing.add(partial(self._unpark, back, number))
        elif (bundle.orders > 1 and not bundle.is_small()) or self._opened(back) is not None:
            self._park_again(bundle, back)  # a malformed bundle must spoil no good bundle

    def _park_again(self, bundle: Bundle, back: ReturnedBundle) -> None:
        """Park the rest of a returned bundle; few orders with their merchant's others, since each bundle costs a look."""
        if bundle.is_small():
            self._gather(bundle, back)
        else:
            self._publishing.add(partial(self._park, bundle, [back]))

    def _takes_expired(self, bundle: Bundle) -> bool:
        """Whether the bundle's expired orders may come back; else, parked whole: opening costs as much as some starts."""
        return self._admission.cpu.takes_expired(bundle.orders)

    @property
    def waiting_orders(self) -> int:
        """Orders in bundles that wait in the worker."""
        return self._waiting.orders

    def forget(self) -> None:
        """Drop all orders after a lost connection: the broker redelivers them.

        Publishing dropped orders would cause duplicates, so publishing stops.
        """
        for key in list(self._open):
            self._take(key)
        self._waiting.drop()
        self._publishing.end()
        self._publishing = JobQueue(CONCURRENCY)
        self._leaving.clear()
        self.bytes = 0

    def requeue_waiting(self, timeout: float) -> None:
        """Park all gathered orders, and requeue waiting bundles; wait ``timeout`` seconds for the broker to store.

        Gathered orders are not requeued: another part of their bundle may have been unparked, and would be there twice.
        """
        # The rest of a bundle in the course of unparking waits for no others either.
        self._most_gathered = 0
        for key in list(self._open):
            self._close(key)
        self._have_left(self._waiting.drop(), is_stored=False)
        self._publishing.join(timeout)

    def _gather(self, bundle: Bundle, original: Original) -> None:
        key = bundle.merchant_id, bundle.routing_key, bundle.look_ups
        if key in self._open and not self._open[key].has_room_for(bundle):
            self._close(key)
        gathering = self._open.get(key)
        if gathering is None:
            is_soon = self._admission.returns_soon(bundle.merchant_id, self._now())
            timer = self._loop.timer(OPEN_FOR if is_soon else OPEN_FOR_LATER)
            gathering = self._open[key] = _Gathering(timer)
            timer.start(self._close, key)
        gathering.add(bundle, original)
        self._gathered += 1
        self._open_bytes += bundle.size
        is_due = is_late(bundle.deliver_by, within=2 * OPEN_FOR_LATER)
        if gathering.is_full or (is_due and not is_late(bundle.deliver_by)):
            self._close(key)
        while self._gathered > self._most_gathered or self._open_bytes > self._most_open_bytes:
            self._close(next(iter(self._open)))  # the oldest

    def _close(self, key: tuple[str, str, bool]) -> None:
        """Close a bundle to further orders, and publish the bundle."""
        gathering = self._take(key)
        self._publishing.add(lambda: self._park(joined(gathering.parts), gathering.originals))

    def _take(self, key: tuple[str, str, bool]) -> "_Gathering":
        """Take an open bundle out: no more orders are added."""
        gathering = self._open.pop(key)
        gathering.timer.close()
        self._gathered -= len(gathering.originals)
        self._open_bytes -= gathering.size
        return gathering

    def _park(self, bundle: Bundle, originals: Sequence[Original]) -> None:
        try:
            message = self._delayed(bundle)
            is_stored = self._store(message)
        except BaseException:  # a bug, or the worker stops: nothing waits for the originals
            self._count_no_more(originals)
            raise
        if is_stored:
            self._count(bundle, message)
        self._have_left(originals, is_stored=is_stored)

    def _leaves(self, original: Original, size: int) -> None:
        """Count a message with orders of ``size`` bytes until ``_have_left``."""
        self._leaving[original] = size
        self.bytes += size

    def _have_left(self, originals: Sequence[Original], *, is_stored: bool) -> None:
        """Acknowledge messages whose orders are stored, or requeue them."""
        self._count_no_more(originals)
        for number, original in enumerate(originals, 1):
            if is_stored:
                original.acknowledge()
            else:
                original.requeue()
            if number % YIELD_EVERY == 0:
                yield_control()

    def _unpark(self, back: ReturnedBundle, number: int) -> None:
        bundle, orders = back.bundle, self._opened(back)
        if orders is None:
            return
        late = [order for order in orders if is_late(order.deliver_by)]
        rest = [order for order in orders if not is_late(order.deliver_by)]
        if late and self._admission.cpu.takes_expired(len(late)):
            self._admission.cpu.took_expired(len(late))
        else:
            rest, late = rest + late, []  # the last to return
        messages = [order.message for order in (*late, *rest[:number])]
        staying = None
        if rest[number:]:
            staying = Bundle.of(bundle.merchant_id, bundle.routing_key, rest[number:])
        stored: list[bool] = []

        def store(message: Message) -> None:
            try:
                stored.append(self._store(message))
            except Exception:
                stored.append(False)
                raise
            finally:  # a lost connection kills one call at least: then not all come here
                if len(stored) == len(messages):
                    self._unparked(back, staying, is_stored=all(stored))

        if not messages:  # the header is wrong, or expired orders of other bundles came first
            self._unparked(back, staying, is_stored=True)
        # Before waiting jobs, so that few bundles are open at a time.
        self._publishing.add_first([partial(store, message) for message in messages])

    def _unparked(self, back: ReturnedBundle, staying: Bundle | None, *, is_stored: bool) -> None:
        if is_stored and staying is not None:
            self._park_again(staying, back)
        else:
            self._have_left([back], is_stored=is_stored)

    def _count_no_more(self, originals: Sequence[Original]) -> None:
        self.bytes -= sum(self._leaving.pop(each, 0) for each in originals)

    def _opened(self, back: ReturnedBundle) -> list[ParkedOrder] | None:
        """The orders in a bundle; None: the bundle is malformed, and dead-lettered as a whole."""
        try:
            return back.bundle.open()
        except InvalidBundle as error:
            self._count_no_more([back])
            self._dead_letter(back.message, "invalid_bundle", str(error))
            return None

    def _delayed(self, bundle: Bundle) -> Message:
        """The message that returns the bundle in turn, or once the first order has expired."""
        left = inf if bundle.deliver_by is None else bundle.deliver_by - time()
        delay = self._admission.park_delay(
            bundle.merchant_id,
            self._now(),
            few=bundle.is_small(),
            look_ups=bundle.look_ups,
            left=left,
        )
        if left <= 0:  # expired: rounding the delay up saves queues
            return bundle.message().delayed(delay)
        return bundle.message().delayed(delay, before=max(left, delay + 1), bits=FINE)

    def _store(self, message: Message) -> bool:
        """Publish a message; False if this process stops before the message is stored."""
        try:
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
    """A bundle open to more orders."""

    __slots__ = ("_orders", "originals", "parts", "size", "timer")

    def __init__(self, timer: Any) -> None:
        self.parts: list[Bundle] = []
        self.originals: list[Original] = []
        #: Closes the bundle.
        self.timer = timer
        #: Bytes of the orders.
        self.size = 0
        self._orders = 0

    @property
    def is_full(self) -> bool:
        return self._orders >= MAX_ORDERS or self.size >= MAX_BYTES

    def has_room_for(self, bundle: Bundle) -> bool:
        return self._orders + bundle.orders <= MAX_ORDERS and self.size + bundle.size <= MAX_BYTES

    def add(self, bundle: Bundle, original: Original) -> None:
        self.parts.append(bundle)
        self.originals.append(original)
        self._orders += bundle.orders
        self.size += bundle.size
