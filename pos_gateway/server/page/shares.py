"""Bounds how many pages of one token or user are read at once: the other threads are for others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pos_gateway.server.problems import Problem

#: Pages of one holder that are read at once, and maximum that are read or wait.
OWN, WAITING = 2, 32


class _Share:
    def __init__(self) -> None:
        self.turns = asyncio.Semaphore(OWN)
        self.count = 0


class Shares:
    """For the event loop."""

    def __init__(self) -> None:
        self._of: dict[str, _Share] = {}

    @asynccontextmanager
    async def reading(self, holder: str) -> AsyncIterator[None]:
        """Wait for a turn, and have it while entered. Raises Problem 429.

        Args:
            holder: the token's digest.
        """
        share = self._of.setdefault(holder, _Share())
        if share.count >= WAITING:
            detail = f"{WAITING} pages of this login are being read: wait for one"
            raise Problem(429, "too_many_requests", detail, retry_after=1)
        share.count += 1
        try:
            async with share.turns:
                yield
        finally:
            share.count -= 1
            if not share.count:
                del self._of[holder]
