"""Published events for every client of this process, read from the database once.

One task follows the positions while a client listens, and keeps the last events. A client has a
position of its own: it gets what is kept from memory, and what is older from the database.
"""

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

import structlog

from pos_gateway.domain.http_limits import PAGE
from pos_gateway.server.problems import Problem
from pos_gateway.tokens.token import Capability, Token

log = structlog.get_logger(__name__)

#: Seconds between two reads while a client listens, a quarter of a millisecond of CPU each; and after one
#: that failed.
POLL, RETRY_AFTER = 0.02, 1.0
#: Seconds between two times at which all clients that wait are woken.
HEARTBEAT = 15.0
#: Maximum events kept in memory, and maximum bytes of them.
KEPT, KEPT_BYTES = 5000, 16 * 1024 * 1024
#: Maximum bytes of a page with more than one event: one may have a megabyte.
PAGE_BYTES = 1024 * 1024


class Event(NamedTuple):
    """A published event."""

    position: int
    #: ``order.accepted``, for example.
    type: str
    #: As JSON.
    body: bytes


#: The published events after a position, in order: a number at most, and ``cut`` to a size in bytes.
Read = Callable[[int, int, int], Awaitable[Sequence[Event]]]
#: A client's wait, which any cause may end.
Waiter = asyncio.Future[None]


class Following:
    """Follows the events. For the event loop.

    Args:
        read: reads a page. Raises Problem.
        last: reads the last published position. Raises Problem.
    """

    def __init__(self, read: Read, last: Callable[[], Awaitable[int]]) -> None:
        self._read = read
        self.last = last
        #: The events after position ``_from``, up to ``_seen``, without gap.
        self._kept: deque[Event] = deque()
        self._bytes = 0
        self._from: int | None = None
        self._seen = 0
        self._listeners = 0
        self._task: asyncio.Task[None] | None = None
        self._waiters: set[Waiter] = set()
        self._beat_at = 0.0
        #: How often all clients were woken for a sign of life.
        self.beats = 0
        #: Whether this process stops: streams end, so that their clients go elsewhere.
        self.is_stopping = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Follow while entered."""
        self._listeners += 1
        if (self._task is None or self._task.done()) and not self.is_stopping:
            self._task = asyncio.create_task(self._follow())
        try:
            yield
        finally:
            self._listeners -= 1

    @contextmanager
    def waiter(self) -> Iterator[Waiter]:
        """A future that is done at the next news. Take it before you look for them."""
        waiter: Waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            yield waiter
        finally:
            self._waiters.discard(waiter)

    async def events_after(self, position: int, most: int, size: int) -> Sequence[Event]:
        """The events after this position that there are, in order: as ``page``."""
        found = self._remembered(position, most, size)
        return await self._read(position, most, size) if found is None else found

    async def page(self, after: int, most: int, size: int, wait: float) -> Sequence[Event]:
        """The next events after this position, in order; none if none came within ``wait`` s.

        Args:
            most: maximum events.
            size: maximum bytes, if there is more than one.

        Raises:
            Problem: 503: the database is away.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + wait
        with self.listening():
            while True:
                with self.waiter() as waiter:
                    found = await self.events_after(after, most, size)
                    if found or self.is_stopping or loop.time() >= until:
                        return found
                    timer = loop.call_at(until, end, waiter)
                    await waiter
                    timer.cancel()

    def stop(self) -> None:
        """Wake all who wait. Idempotent."""
        self.is_stopping = True
        self._wake()
        if self._task is not None:
            self._task.cancel()

    def _remembered(self, after: int, most: int, size: int) -> Sequence[Event] | None:
        """What is kept after this position; None: it is older."""
        if self._from is None or after < self._from:
            return None
        if after >= self._seen:
            return ()
        first = bisect_right(self._kept, after, key=attrgetter("position"))
        return cut(islice(self._kept, first, first + most), size)

    async def _follow(self) -> None:
        self._beat_at = asyncio.get_running_loop().time() + HEARTBEAT
        try:
            while self._listeners:
                try:
                    pause = await self._step()
                except Exception:  # a bug, or a row that cannot be read
                    log.exception("events.not_followed")
                    pause = RETRY_AFTER
                    self._forget()
                    self._wake()  # each client reads for itself, and gets the error
                await asyncio.sleep(pause)
                self._beat()
        finally:
            self._forget()

    def _forget(self) -> None:
        """Keep no event: later ones are not seen until the next read."""
        self._kept.clear()
        self._bytes, self._from = 0, None

    async def _step(self) -> float:
        """Read what is new; returns the seconds until the next time."""
        try:
            if self._from is None:
                self._from = self._seen = await self.last()
                self._wake()  # who has waited meanwhile reads once more
            events = await self._read(self._seen, PAGE, PAGE_BYTES)
        except Problem:
            return RETRY_AFTER
        for event in events:
            self._keep(event)
        if events:
            self._wake()
        return 0.0 if len(events) == PAGE else POLL

    def _beat(self) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._beat_at:
            self._beat_at = now + HEARTBEAT
            self.beats += 1
            self._wake()

    def _keep(self, event: Event) -> None:
        self._kept.append(event)
        self._seen = event.position
        self._bytes += len(event.body)
        while len(self._kept) > KEPT or self._bytes > KEPT_BYTES:
            dropped = self._kept.popleft()
            self._bytes -= len(dropped.body)
            self._from = dropped.position

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            end(waiter)


class Feeds(NamedTuple):
    """The events as the roles may see them: a masked one is masked once, for all who see it so."""

    plain: Following
    masked: Following

    def of(self, token: Token) -> Following:
        """Those that this token's holder may see."""
        return self.plain if token.role.allows(Capability.REVEAL) else self.masked

    def stop(self) -> None:
        """Wake all who wait. Idempotent."""
        for each in self:
            each.stop()


def cut(events: Iterable[Event], size: int) -> Sequence[Event]:
    """The first of these events, up to a size in bytes together; and the very first in any case."""
    found: list[Event] = []
    for event in events:
        size -= len(event.body)
        if found and size < 0:
            break
        found.append(event)
    return found


def end(waiter: Waiter) -> None:
    """End a wait. Idempotent."""
    if not waiter.done():
        waiter.set_result(None)
