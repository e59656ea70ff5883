"""Publishes orders in groups: those that come while one group is being compared form the next group.

One thread compares a group's orders with the known ones, in one transaction, and publishes those that
are new together. Each request waits for its own orders' confirms, and no longer than
``TIMEOUT``. So orders share a commit and a round trip, and none waits for a stalled server.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Sequence
from queue import Empty, SimpleQueue

import structlog

from pos_gateway.broker.message import Message
from pos_gateway.broker.publisher import Publisher
from pos_gateway.domain.errors import BrokerUnavailable, PublishError
from pos_gateway.ledger.submissions import Known, Submissions, Submitting
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock
from pos_gateway.server.comparing import Comparing
from pos_gateway.server.posted import PendingRequest, Posted, PostResult
from pos_gateway.telemetry import metrics

log = structlog.get_logger(__name__)

#: Seconds that a request waits for the broker's confirm.
TIMEOUT = 1.5
#: Maximum messages of a group: the thread lets others run between two.
GROUP = 500
#: Seconds between two attempts to connect to a broker that is away.
RECONNECT_AFTER = 0.5
#: How often a message is written at most: again if its connection was lost before its confirm.
_WRITES = 2
#: Bytes of messages that a broker has not confirmed, beyond which it gets no more: the requests
#: have their replies by then, and the memory is the only bound.
UNCONFIRMED = 64 * 1024 * 1024


class Intake:
    """Publishes what requests post. ``post`` is for the event loop, the rest for any thread.

    Args:
        publisher: of its own.
        submissions: likewise.
    """

    def __init__(
        self, publisher: Publisher, submissions: Submissions, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._publisher = publisher
        self._comparing = Comparing(submissions, clock)
        self._queue: SimpleQueue[Sequence[Posted] | None] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        #: Results on their way to the event loop, which alone sets them.
        self._settled: deque[tuple[Posted, PostResult]] = deque()
        self._is_woken = False
        #: Messages that are written and not confirmed, by the message; and their bytes.
        self._written: dict[int, Posted] = {}
        self._unconfirmed = 0
        self._lock = threading.Lock()
        self._is_refused = self._is_stalled = False
        self._connect_at = 0.0
        #: Why there is no connection to the broker; None: there is one.
        self._problem: str | None = "this server has not connected to the broker yet"

    @property
    def problem(self) -> str | None:
        """Why the broker takes nothing; None: it does. Safe from threads."""
        if self._problem is None and self._unconfirmed > UNCONFIRMED:
            return "the broker confirms nothing"
        return self._problem

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Connect, and publish from now on."""
        self._loop = loop
        self._thread = threading.Thread(target=self._run, name="intake", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Publish what is posted, and end."""
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join(TIMEOUT)
        self._publisher.close()
        self._comparing.close()

    async def post(self, posted: Sequence[Posted]) -> None:
        """Return once each has its result, ``TIMEOUT`` seconds later at the latest."""
        loop = asyncio.get_running_loop()
        request = PendingRequest(len(posted), loop.create_future())
        for each in posted:
            each.request = request
        timer = loop.call_later(TIMEOUT, request.end)
        self._queue.put(posted)
        try:
            await request.done
        finally:
            timer.cancel()

    # The intake's thread.

    def _run(self) -> None:
        self._connect()
        stopping = False
        while not stopping:
            group, stopping = self._next_group()
            try:
                self._publish(self._to_publish(group))
            except Exception:  # any error: requests would wait for a thread that has ended
                log.exception("intake.failed")
                for each in group:
                    self._no_longer_written(each.message)
                    self._settle(each, PostResult.UNKNOWN)

    def _next_group(self) -> tuple[list[Posted], bool]:
        group: list[Posted] = []
        posted = self._next()
        while posted is not None:
            group += [each for each in posted if not each.is_given_up]
            if len(group) >= GROUP or self._queue.empty():
                return group, False
            posted = self._queue.get()
        return group, True

    def _next(self) -> Sequence[Posted] | None:
        """What is posted next; meanwhile a lost connection is made again.

        A server without one is not ready, so that no request may come that would notice.
        """
        while True:
            try:
                return self._queue.get(timeout=RECONNECT_AFTER if self._problem else None)
            except Empty:
                self._connect()

    def _to_publish(self, group: Sequence[Posted]) -> list[Posted]:
        """Those of a group that are to be published; the others are settled."""
        comparable = [each for each in group if each.order is not None and not each.is_compared]
        known = self._comparing.known([each.order for each in comparable if each.order is not None])
        if known is None:
            metrics.http_uncompared.inc(len(comparable))
            return list(group)
        unpublished = set()
        for each, answer in zip(comparable, known, strict=True):
            each.is_compared, each.is_new = True, not answer.is_known
            each.state = None if answer.state is None else answer.state.value
            result = _result_before(each, answer)
            if result is not None:
                unpublished.add(each)
                self._settle(each, result)
        return [each for each in group if each not in unpublished]

    def _publish(self, posted: Sequence[Posted]) -> None:
        if not posted:
            return
        if self._is_refused:  # a refusal may be the topology's: it is declared again
            self._is_refused = False
            self._publisher.renew()
        if self._problem is not None and time.monotonic() < self._connect_at:
            self._give_back(posted)
            return
        if self._unconfirmed > UNCONFIRMED:
            if not self._is_stalled:
                log.warning("broker.unavailable", error=self.problem)
            self._is_stalled = True
            self._give_back(posted)
            return
        self._is_stalled = False
        with self._lock:
            for each in posted:
                each.writes += 1
                self._written[id(each.message)] = each
                self._unconfirmed += len(each.message.body)
        try:
            self._publisher.start([each.message for each in posted], self._on_confirm)
        except PublishError as error:
            for each in posted:
                self._no_longer_written(each.message)
            self._connect_at = time.monotonic() + RECONNECT_AFTER
            self._set_problem(str(error))
            self._give_back(posted)
        else:
            self._problem = None

    def _set_problem(self, problem: str) -> None:
        if problem != self._problem:
            log.warning("broker.unavailable", error=problem)
        self._problem = problem

    def _give_back(self, posted: Sequence[Posted]) -> None:
        """Settle what was not written."""
        if not any(each.is_new for each in posted):
            self._settle_all(posted)
            return

        def unpublished() -> list[Submitting]:
            return [
                each.order
                for each in posted
                if each.order is not None and each.is_new and not each.is_given_up
            ]

        self._comparing.forget(unpublished, lambda: self._settle_all(posted))

    def _settle_all(self, posted: Sequence[Posted]) -> None:
        for each in posted:
            self._settle(each, PostResult.UNKNOWN)

    def _connect(self) -> None:
        try:
            self._publisher.connect()
            self._problem = None
        except PublishError as error:
            self._set_problem(str(error))

    # The thread that reads confirms, and the intake's.

    def _on_confirm(self, message: Message, error: PublishError | None) -> None:
        each = self._no_longer_written(message)
        if each is None:
            return
        if error is None:
            self._settle(each, PostResult.STORED)
        elif isinstance(error, BrokerUnavailable) and each.writes < _WRITES:
            each.is_new = False  # it may be stored
            self._queue.put([each])  # on a connection that turned out to be dead
        else:
            self._is_refused |= not isinstance(error, BrokerUnavailable)
            log.warning("broker.unavailable", error=str(error))
            self._settle(each, PostResult.UNKNOWN)

    # Any of these threads.

    def _no_longer_written(self, message: Message) -> Posted | None:
        with self._lock:
            each = self._written.pop(id(message), None)
            if each is not None:
                self._unconfirmed -= len(message.body)
            return each

    def _settle(self, each: Posted, result: PostResult) -> None:
        """Only the first call counts."""
        self._settled.append((each, result))
        if not self._is_woken and self._loop is not None:
            self._is_woken = True
            self._loop.call_soon_threadsafe(self._end_requests)

    # The event loop.

    def _end_requests(self) -> None:
        self._is_woken = False  # before the first is taken: a later one wakes again
        while self._settled:
            each, result = self._settled.popleft()
            request, each.request = each.request, None
            if request is None:
                continue
            each.result = result
            request.left -= 1
            if request.left == 0:
                request.end()


def _result_before(posted: Posted, known: Known) -> PostResult | None:
    """The result of an order that is not published; None: it is published."""
    if known.is_different:
        return PostResult.DIFFERENT
    if known.state is not None and known.state.is_final:
        return PostResult.ENDED
    if posted.order is not None and posted.order.is_late and not known.is_known:
        return PostResult.LATE
    return None
