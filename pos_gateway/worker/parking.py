"""Parking: orders that cannot start are handed back to the broker, and taken in again.

They are parked many to a message, a bundle. Published one by one, the twenty thousand orders of a
single dead merchant cost the broker a minute, and as much again every time that they come back.
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
from pos_gateway.broker.bundle import MOST_BYTES, MOST_ORDERS, Bundle, ParkedOrder, joined
from pos_gateway.broker.message import FINE, Message
from pos_gateway.domain.errors import InvalidBundle, PublishError
from pos_gateway.processing.gateway import Gateway
from pos_gateway.runtime.green import give_turn
from pos_gateway.telemetry import metrics
from pos_gateway.worker.at_hand import AtHand
from pos_gateway.worker.bundles import ReturnedBundle, is_late

log = structlog.get_logger(__name__)

#: Seconds after its first order that a bundle waits for more; and while its merchant does not
#: answer, so that nobody waits for it to be back.
OPEN_FOR, OPEN_FOR_SILENT = 0.2, 2.0
#: Messages that are published at once. Hundreds of merchants' orders can be due to be parked in
#: the same moment, and orders under way are to have their turns in between.
AT_ONCE = 8

#: Acknowledgements after which other green threads have their turn.
IN_A_ROW = 50


class Original(Protocol):
    """A message whose orders are parked: it is acknowledged when they are."""

    def acknowledge(self) -> None: ...
    def reject(self, requeue: bool) -> None: ...


class Parking:
    """Parks orders, and lets those that are back out to the queue when there is room for them.

    What is published is confirmed before what it came from is acknowledged: a crash in between
    leaves an order there twice, never not at all. No method blocks.

    Args:
        gate: what to publish through.
        admission: says when parked orders are to be back, and how many may come then.
        quarantine: sets a message aside, with a code and a sentence.
        now: admission's time.
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
        self._at_hand = AtHand(admission, self._settle, now)
        #: Messages that wait in open bundles, and how many may: they are in the window through
        #: which everybody's come, and hundreds of merchants can have one order each in it.
        self._gathered, self._most_gathered = 0, admission.limits.max_blocked // 2
        #: The green threads that publish, or wait for a bundle to be full.
        self._publishing = Group()
        self._few_at_a_time = Semaphore(AT_ONCE)

    def park(self, merchant_id: str, order: ParkedOrder, original: Original) -> None:
        """Hand an order back to the broker, and acknowledge its message."""
        self._gather(Bundle.of_one(merchant_id, order.message.routing_key, order), original)

    def take_back(self, back: ReturnedBundle) -> None:
        """Let out as many of a bundle's orders as may come, or keep it until some may, or park it."""
        bundle, number = back.bundle, 0
        if not self._at_hand.has(bundle.merchant_id):
            number = self._admission.let_out(bundle.merchant_id, bundle.orders, self._now())
        if number or back.is_late or not self._at_hand.keep(back):
            self._settle(back, number)

    def _settle(self, back: ReturnedBundle, number: int) -> None:
        """Let so many of a bundle's orders out, and those that are late; park the others again."""
        bundle = back.bundle
        if number or back.is_late:
            self._publishing.spawn(self._let_out, back, number)
        elif bundle.is_small() or bundle.orders == 1:
            if self._opened(back) is not None:  # what is no bundle is not to spoil another one
                self._gather(bundle, back)
        else:
            self._publishing.spawn(self._park, bundle, [back])

    @property
    def at_hand(self) -> int:
        """Orders in bundles that are back and kept until there is room for them."""
        return self._at_hand.orders

    def forget(self) -> None:
        """The connection is gone that the orders came by, and the broker has them back.

        Whatever is published of them from now on is there twice, so nothing more is.
        """
        self._open.clear()
        self._gathered = 0
        self._at_hand.drop()
        self._publishing.kill(block=False)

    def hand_back(self, timeout: float) -> None:
        """Give back to the broker what is not being published yet; the rest has so many seconds."""
        for key, gathering in list(self._open.items()):
            gathering.handed_back = True
            self._close(key)
            _reject(gathering.originals)
        _reject(self._at_hand.drop())
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
        """Nothing more comes into the bundle: it goes as it is."""
        gathering = self._open.pop(key)
        gathering.closed.set()
        self._gathered -= len(gathering.originals)

    def _park_gathered(
        self, key: tuple[str, str], gathering: "_Gathering", open_for: float
    ) -> None:
        gathering.closed.wait(open_for)
        if self._open.get(key) is gathering:
            self._close(key)
        if not gathering.handed_back:
            self._park(joined(gathering.parts), gathering.originals)

    def _park(self, bundle: Bundle, originals: list[Original]) -> None:
        message = self._delayed(bundle)
        if self._store(message):
            self._count(bundle, message)
            for number, original in enumerate(originals, 1):
                original.acknowledge()
                if number % IN_A_ROW == 0:
                    give_turn()
        else:
            _reject(originals)

    def _let_out(self, back: ReturnedBundle, number: int) -> None:
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
            return  # the connection is gone: a thread that had not begun is over before this one
        if not all(thread.value is True for thread in threads):
            _reject([back])
            return
        back.acknowledge()
        if staying is not None:
            self._count(staying, messages[-1])

    def _opened(self, back: ReturnedBundle) -> list[ParkedOrder] | None:
        """The orders in a bundle; None if it is none, and it is set aside as a whole."""
        try:
            return back.bundle.open()
        except InvalidBundle as error:
            self._quarantine(back.message, "invalid_bundle", str(error))
            return None

    def _delayed(self, bundle: Bundle) -> Message:
        """The message that has the bundle back when its turn comes, or an order in it is worthless."""
        few = bundle.is_small()
        delay = self._admission.park_delay(bundle.merchant_id, self._now(), few=few)
        left = inf if bundle.deliver_by is None else bundle.deliver_by - time()
        return bundle.message().delayed(min(delay, left), before=left, bits=FINE)

    def _store(self, message: Message) -> bool:
        """Whether the broker has it; not when this process is going down."""
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
    """A bundle that is still open for more orders."""

    __slots__ = ("_orders", "_size", "closed", "handed_back", "originals", "parts")

    def __init__(self) -> None:
        self.parts: list[Bundle] = []
        self.originals: list[Original] = []
        #: Nothing more comes into it.
        self.closed = Event()
        self.handed_back = False
        self._orders = self._size = 0

    @property
    def is_full(self) -> bool:
        return self._orders >= MOST_ORDERS or self._size >= MOST_BYTES

    def has_room_for(self, bundle: Bundle) -> bool:
        return (
            self._orders + bundle.orders <= MOST_ORDERS and self._size + bundle.size <= MOST_BYTES
        )

    def add(self, bundle: Bundle, original: Original) -> None:
        self.parts.append(bundle)
        self.originals.append(original)
        self._orders += bundle.orders
        self._size += bundle.size


def _reject(originals: Sequence[Original]) -> None:
    for original in originals:
        original.reject(requeue=True)
