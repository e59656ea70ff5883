"""Holds orders in the worker whose retry is due within seconds.

A delayed message costs the broker some 2 ms and several writes; an unacknowledged message costs nothing, and is
redelivered if this worker dies. Unacknowledged messages occupy the prefetch window, so retries here are few, and wait
for seconds only.
"""

import heapq
from itertools import count
from math import inf
from time import perf_counter, thread_time

from pos_gateway.attempt.decision import Decision
from pos_gateway.broker.message import Message
from pos_gateway.domain.outcome import CallResult
from pos_gateway.worker.request import OrderRequest

#: Longest delay in seconds: the first two retries as a rule, and some later retries.
LONGEST = 4
#: Seconds of CPU time for parsing due orders before further green threads run: hundreds of the largest kind may be due
#: at the same time.
BUSY = 0.002
#: Waits of a message here. A pending order is looked up every few seconds, for hours, and RabbitMQ closes a channel
#: with a message unacknowledged for half an hour (``consumer_timeout``).
TIMES = 4


class Retries:
    """Orders that wait for their retries. Safe for green threads: nothing here blocks.

    Args:
        most: how many may wait; copies of a waiting order are not limited.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: list[tuple[float, int, OrderRequest, Message]] = []
        self._numbers = count()
        #: Places reserved for orders with an outcome being committed.
        self.coming = 0

    def __len__(self) -> int:
        return len(self._kept)

    def takes(self, request: OrderRequest, decision: Decision) -> bool:
        """Whether an order can wait here for a retry.

        Only after a call on the merchant: after any other failure, a different worker may be able to go on, and must
        be able to receive the message. Not after a ``Retry-After``: if this worker stops, a waiting order is requeued,
        and may be sent too early.
        """
        again, outcome = decision.again, decision.outcome
        is_short = again is not None and again.delay <= LONGEST
        was_called = outcome.contact is not CallResult.NONE and outcome.retry_after is None
        has_room = request.kept < TIMES and len(self._kept) + self.coming < self._most
        return is_short and was_called and has_room

    def keep(self, request: OrderRequest, again: Message, now: float) -> None:
        """Let an order wait until the retry is due."""
        request.kept += 1
        heapq.heappush(self._kept, (now + again.delay, next(self._numbers), request, again))

    @property
    def next_at(self) -> float:
        """Due time of the next retry."""
        return self._kept[0][0] if self._kept else inf

    def due(self, now: float) -> list[OrderRequest]:
        """Remove and return due orders, each as a retry.

        At most ``BUSY`` seconds' worth: call again after a turn of the green threads.
        """
        due: list[OrderRequest] = []
        until = thread_time() + BUSY
        while self.next_at <= now and (not due or thread_time() < until):
            _, _, request, again = heapq.heappop(self._kept)
            request.become(again, perf_counter())
            due.append(request)
        return due

    def close(self) -> None:
        """Take no more orders: the worker stops."""
        self._most = 0

    def drop(self) -> list[OrderRequest]:
        """Remove and return all orders unchanged, the next due first."""
        dropped = [request for _, _, request, _ in sorted(self._kept)]
        self._kept.clear()
        return dropped
