"""Writes callbacks in transactions that many requests share."""

import asyncio
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import structlog

from pos_gateway.domain.errors import LedgerUnavailable, OrderChanged
from pos_gateway.ledger.callback_rules import Applied, Received
from pos_gateway.ledger.callbacks import CallbackLedger
from pos_gateway.server.problems import Problem

log = structlog.get_logger(__name__)

#: A request's callbacks, and their results, for which it waits.
_Call = tuple[Sequence[Received], asyncio.Future[list[Applied]]]

#: Seconds that a call waits for the database. Square waits 10 s for the answer, Toast 2 s, and both
#: call again: it is a duplicate then.
TIMEOUT = 5.0
#: Maximum callbacks of a transaction.
GROUP = 256


class CallbackWriter:
    """Applies callbacks in groups: those that come during a transaction share the next.

    For the event loop.
    """

    def __init__(self, ledger: CallbackLedger) -> None:
        self._ledger = ledger
        self._thread = ThreadPoolExecutor(1, "callbacks")
        self._waiting: deque[_Call] = deque()
        self._writing: asyncio.Task[None] | None = None

    async def apply(self, received: Sequence[Received]) -> list[Applied]:
        """What followed from each, once that is durable. Raises Problem 503."""
        result: asyncio.Future[list[Applied]] = asyncio.get_running_loop().create_future()
        self._waiting.append((received, result))
        if self._writing is None:
            self._writing = asyncio.ensure_future(self._write())
        try:
            async with asyncio.timeout(TIMEOUT):
                return await result
        except TimeoutError:
            problem = f"the database did not answer within {TIMEOUT:g} s"
        except (LedgerUnavailable, OrderChanged) as error:
            log.warning("database.unavailable", error=str(error))
            problem = "the database does not answer"
        raise Problem(503, "database_unavailable", problem, retry_after=1)

    def close(self) -> None:
        """End, once the present group is written."""
        self._thread.shutdown(cancel_futures=True)
        self._ledger.close()

    async def _write(self) -> None:
        try:
            while self._waiting:
                if group := self._next_group():
                    await self._write_group(group)
        finally:
            self._writing = None

    def _next_group(self) -> list[_Call]:
        group: list[_Call] = []
        size = 0
        while self._waiting and size < GROUP:
            one = self._waiting.popleft()
            if not one[1].done():  # its request may have given up
                group.append(one)
                size += len(one[0])
        return group

    async def _write_group(self, group: Sequence[_Call]) -> None:
        received = [each for those, _ in group for each in those]
        loop = asyncio.get_running_loop()
        try:
            applied = await loop.run_in_executor(self._thread, self._ledger.apply, received)
        except Exception as error:  # noqa: BLE001  (each has a waiting request)
            if len(group) > 1 and not isinstance(error, LedgerUnavailable):
                for each in group:  # one is to blame; the others are written
                    await self._write_group([each])
                return
            for _, result in group:
                if not result.done():
                    result.set_exception(error)
            return
        for those, result in group:
            if not result.done():
                result.set_result(applied[: len(those)])
            applied = applied[len(those) :]
