"""Bounds the memory of large requests: each counts until the end, or is parked, or keeps a place without a body."""

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

from pos_gateway.admission.admission import Admission
from pos_gateway.worker.parking import Parking
from pos_gateway.worker.request import COPIES, OrderRequest

#: Messages on their way to the broker may take an eighth of ``max_bytes``, by this divisor.
LEAVING = 8
#: Times of setting a message aside, at most. RabbitMQ counts each return, and dead-letters a message after
#: 100 returns; a parked message is a new message.
REDELIVERIES = 20


class LargeRequests:
    """Decides which large requests stay in the worker.

    Args:
        admission: has the bytes of each merchant's large requests.
        parking: has the bytes on their way to the broker.
        park: parks a request.
    """

    def __init__(
        self,
        admission: Admission[OrderRequest],
        parking: Parking,
        park: Callable[[OrderRequest], None],
    ) -> None:
        self._admission, self._parking, self._park = admission, parking, park
        self._limit = admission.limits.max_bytes // LEAVING
        #: Requests set aside, without their messages' bodies: requeued once they can be parked.
        self.aside: deque[OrderRequest] = deque()
        self._most_aside = admission.limits.max_blocked // 2
        #: Bytes of requests here for a moment, beside the bytes in admission.
        self._brief = 0

    @property
    def is_full(self) -> bool:
        """Whether no message may be read before some of the bytes here have left for the broker."""
        leaving = self._parking.bytes
        if leaving > self._limit and len(self.aside) >= self._most_aside:
            return True
        # Bundles and ordinary orders are not set aside.
        return self._brief > self._limit or leaving > 2 * self._limit

    def take(self, request: OrderRequest, *, may_park: bool) -> bool:
        """Count a request until the end; False: turn the request away, for want of room."""
        merchant_id, size, look_up = request.merchant_id, request.size, request.raw.look_up
        if self._admission.takes(merchant_id, size, look_ups=look_up):
            request.on_over = partial(self._admission.left, merchant_id, size, look_ups=look_up)
            return True
        if not may_park:
            self.count_briefly(request)
        return not may_park

    def count_briefly(self, request: OrderRequest) -> None:
        """Count a request here for a moment, if parking is impossible."""
        self._brief += request.size
        request.on_over = partial(self._leaves, request.size)

    def turn_away(self, request: OrderRequest) -> None:
        """Park a request; or keep nothing but the place while enough is being parked.

        The broker has the message. Thus the next messages can be read, perhaps of further merchants.
        """
        is_new = request.redeliveries < REDELIVERIES
        is_busy = self._parking.bytes > self._limit
        if is_new and is_busy and len(self.aside) < self._most_aside:
            request.drop_body()
            self.aside.append(request)
        else:
            self._park(request)

    def requeue(self) -> None:
        """Requeue messages set aside, as many as can be parked soon."""
        room = self._limit // 2 - self._parking.bytes
        while self.aside and room > 0:
            request = self.aside.popleft()
            room -= request.size // COPIES
            request.requeue()

    def drop(self) -> Iterator[OrderRequest]:
        """Remove and return the requests set aside."""
        aside, self.aside = self.aside, deque()
        return iter(aside)

    def _leaves(self, size: int) -> None:
        self._brief -= size
