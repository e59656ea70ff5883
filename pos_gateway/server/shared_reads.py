"""Database reads that requests share, so that a flood of requests costs one read at a time."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from pos_gateway.server.reading import Reading

K = TypeVar("K")
V = TypeVar("V")

#: Minimum seconds from one read's beginning to the next one's.
EVERY = 0.005


class SharedReads(Generic[K, V]):
    """Reads for many requests at once: those that ask during a read share the next one.

    So a result is never older than its request. For the event loop.

    Args:
        reading: runs the reads.
        read: finds values by key; each key is given once, in any order.
        every: minimum seconds from one read's beginning to the next one's.
    """

    def __init__(
        self,
        reading: Reading,
        read: Callable[[Sequence[K]], Mapping[K, V]],
        every: float = EVERY,
    ) -> None:
        self._reading = reading
        self._read = read
        self._every = every
        #: The keys of the next read.
        self._wanted: set[K] = set()
        self._present: asyncio.Task[Mapping[K, V]] | None = None
        self._next: asyncio.Task[Mapping[K, V]] | None = None
        self._not_before = 0.0

    async def __call__(self, keys: Iterable[K]) -> Mapping[K, V]:
        """The values of these keys, as far as they exist, and perhaps of others. Raises Problem 503."""
        self._wanted.update(keys)
        if self._next is None:
            self._next = asyncio.ensure_future(self._read_next(self._present))
            self._next.add_done_callback(_note_error)
        return await asyncio.shield(self._next)

    async def _read_next(self, before: "asyncio.Task[Mapping[K, V]] | None") -> Mapping[K, V]:
        loop = asyncio.get_running_loop()
        if before is not None:
            await asyncio.wait([before])
        await asyncio.sleep(self._not_before - loop.time())
        wanted, self._wanted = list(self._wanted), set()
        self._present, self._next = self._next, None
        self._not_before = loop.time() + self._every
        return await self._reading(lambda: self._read(wanted))


def _note_error(read: "asyncio.Task[Any]") -> None:
    if not read.cancelled():
        read.exception()  # its requests may have given up
