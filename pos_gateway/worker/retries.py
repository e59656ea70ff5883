"""Orders whose next attempt is so soon that it is waited for here.

A message that the broker delays costs it some 2 ms and several writes; one that stays unacknowledged
costs nothing, and comes again if this worker dies. They take places in its window, so that they are
few, and each for seconds only.
"""

import heapq
from itertools import count
from math import inf
from time import perf_counter, thread_time

from pos_gateway.broker.message import Message
from pos_gateway.domain.outcome import CallResult
from pos_gateway.processing.decision import Decision
from pos_gateway.worker.request import OrderRequest

#: Seconds: the first two attempts after a failure as a rule, and some of the later ones.
LONGEST = 4
#: Seconds of CPU time after which no further order is read anew before others have had their turn:
#: hundreds may be due in one moment, each of the largest kind.
BUSY = 0.002
#: Times that a message is kept. An order that its POS has and does not decide about is asked for every
#: few seconds, for hours, and RabbitMQ ends a channel over a message that is not acknowledged for half
#: an hour (``consumer_timeout``).
TIMES = 4


class Retries:
    """Keeps orders until their next attempt. Safe from green threads: nothing here blocks.

    Args:
        most: how many; copies of one that is kept are kept with it.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: list[tuple[float, int, OrderRequest, Message]] = []
        self._numbers = count()
        #: How many will be kept once their outcomes are stored: they have their places already.
        self.coming = 0

    def __len__(self) -> int:
        return len(self._kept)

    def takes(self, request: OrderRequest, decision: Decision) -> bool:
        """Whether an order of which that was decided can be kept.

        Only after a call on its merchant: whatever else stands in its way may be in the hands of
        another worker, which the message is to reach. And not when the merchant asked to be left
        alone for so long: an order that is kept goes back to the broker if this worker stops, and
        may be sent before its time.
        """
        again, outcome = decision.again, decision.outcome
        is_short = again is not None and again.delay <= LONGEST
        was_called = outcome.contact is not CallResult.NONE and outcome.retry_after is None
        has_room = request.kept < TIMES and len(self._kept) + self.coming < self._most
        return is_short and was_called and has_room

    def keep(self, request: OrderRequest, again: Message, now: float) -> None:
        """Keep an order until the message would have brought it again."""
        request.kept += 1
        heapq.heappush(self._kept, (now + again.delay, next(self._numbers), request, again))

    @property
    def next_at(self) -> float:
        """When the next one is due."""
        return self._kept[0][0] if self._kept else inf

    def due(self, now: float) -> list[OrderRequest]:
        """Those whose time has come, as the messages would have brought them; the caller's.

        As many as may be read in one go: it is to be asked again, once others have had their turn.
        """
        due: list[OrderRequest] = []
        until = thread_time() + BUSY
        while self.next_at <= now and (not due or thread_time() < until):
            _, _, request, again = heapq.heappop(self._kept)
            request.become(again, perf_counter())
            due.append(request)
        return due

    def drop(self) -> list[OrderRequest]:
        """Let go of all, as they came."""
        dropped = [request for _, _, request, _ in sorted(self._kept)]
        self._kept.clear()
        return dropped
