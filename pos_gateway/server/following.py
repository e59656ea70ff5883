"""Published events for every client of this process, read from the database once.

One task follows the positions while a client listens, and keeps the last events. A client has a
position of its own: it gets what is kept from memory, and what is older from the database.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import NamedTuple

import structlog

from pos_gateway.server.problems import Problem
from pos_gateway.telemetry import metrics

log = structlog.get_logger(__name__)

#: Seconds between two reads while a client listens, and after one that failed.
POLL, AGAIN = 0.05, 1.0
#: Most events of a page.
PAGE = 1000
#: Most events that are kept, and most bytes of them.
KEPT, KEPT_BYTES = 5000, 16 * 1024 * 1024


class Event(NamedTuple):
    """A published event."""

    position: int
    #: ``order.accepted``, for example.
    type: str
    #: As JSON.
    body: bytes


#: Published events behind a position, at most so many, in order.
Read = Callable[[int, int], Awaitable[Sequence[Event]]]


class Following:
    """Follows the events. For the event loop.

    Args:
        read: reads a page.
        last: the last published position.
    """

    def __init__(self, read: Read, last: Callable[[], Awaitable[int]]) -> None:
        self._read = read
        self._last = last
        #: The events behind position ``_from``, up to ``_seen``, without gap.
        self._kept: deque[Event] = deque()
        self._bytes = 0
        self._from: int | None = None
        self._seen = 0
        self._listeners = 0
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._is_stopping = False

    @property
    def is_stopping(self) -> bool:
        """Whether this process stops: streams end, so that their clients go elsewhere."""
        return self._is_stopping

    async def page(self, after: int, most: int, wait: float) -> Sequence[Event]:
        """The next events behind this position, in order; none if none came within ``wait`` s.

        Raises:
            Problem: 503: the database is away.
        """
        until = asyncio.get_running_loop().time() + wait
        self._listen()
        try:
            while True:
                news = self._news
                found = self._remembered(after, most)
                if found is None:
                    found = await self._read(after, most)
                left = until - asyncio.get_running_loop().time()
                if found or left <= 0 or self._is_stopping:
                    return found
                try:
                    async with asyncio.timeout(left):
                        await news.wait()
                except TimeoutError:
                    return ()
        finally:
            self._listeners -= 1

    async def last(self) -> int:
        """The last published position. Raises Problem."""
        return await self._last()

    def stop(self) -> None:
        """Wake all who wait. Idempotent."""
        self._is_stopping = True
        self._tell()
        if self._task is not None:
            self._task.cancel()

    def _listen(self) -> None:
        self._listeners += 1
        if (self._task is None or self._task.done()) and not self._is_stopping:
            self._task = asyncio.create_task(self._follow())

    def _remembered(self, after: int, most: int) -> Sequence[Event] | None:
        """What is kept behind this position; None: it is older."""
        if self._from is None or after < self._from:
            return None
        if after >= self._seen:
            return ()
        found = []
        for event in reversed(self._kept):
            if event.position <= after:
                break
            found.append(event)
        found.reverse()
        return found[:most]

    async def _follow(self) -> None:
        try:
            while self._listeners:
                pause = await self._step()
                if pause:
                    await asyncio.sleep(pause)
        finally:
            # What is published from here on is not seen.
            self._kept.clear()
            self._bytes, self._from = 0, None

    async def _step(self) -> float:
        """Read what is new; returns the seconds until the next time."""
        try:
            if self._from is None:
                self._from = self._seen = await self._last()
                self._tell()  # who has waited meanwhile reads once more
            events = await self._read(self._seen, PAGE)
        except Problem:
            return AGAIN
        for event in events:
            self._keep(event)
        if events:
            self._tell()
        return 0.0 if len(events) == PAGE else POLL

    def _keep(self, event: Event) -> None:
        self._kept.append(event)
        self._seen = event.position
        self._bytes += len(event.body)
        while len(self._kept) > KEPT or self._bytes > KEPT_BYTES:
            dropped = self._kept.popleft()
            self._bytes -= len(dropped.body)
            self._from = dropped.position

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


async def stream(
    following: Following, after: int, *, heartbeat: float, shown: Callable[[bytes], bytes]
) -> AsyncIterator[bytes]:
    """The events behind a position as server-sent events, until this process stops.

    A slow client delays no other: the next events are read for it when it has taken what came before.

    Args:
        heartbeat: seconds without an event after which a comment is sent.
        shown: what this client may see of an event's body.
    """
    metrics.http_streams.inc()
    try:
        yield b"retry: 1000\n\n"
        while not following.is_stopping:
            try:
                events = await following.page(after, PAGE, heartbeat)
            except Problem:
                await asyncio.sleep(AGAIN)
                events = ()
            if events:
                after = events[-1].position
                yield b"".join(_written(event, shown(event.body)) for event in events)
            else:
                yield b": still here\n\n"
        yield b": this server stops; reconnect\n\n"
    finally:
        metrics.http_streams.dec()


def _written(event: Event, body: bytes) -> bytes:
    # JSON has line breaks between its parts only: a backend's order may be laid out on many lines.
    line = body.replace(b"\r", b" ").replace(b"\n", b" ")
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.position, event.type.encode(), line)
