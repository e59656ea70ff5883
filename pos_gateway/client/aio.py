"""A client for asyncio: the calls of ``OrderClient`` or ``HttpOrderClient``, awaited.

    async with AsyncOrderClient(HttpOrderClient(url, token)) as client:
        await client.submit(order)
        async for event in client.events(after=position):
            ...

Each call runs in one of a few threads, with the deadlines, retries and errors of the client that it
is given: one implementation of what is hard to get right, and no further library.
"""

import asyncio
import types
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from datetime import datetime
from functools import partial
from typing import Any, Self, TypeVar

from pos_gateway.client.protocols import BlockingClient, ReadingClient
from pos_gateway.domain.order import Order
from pos_gateway.domain.submit_result import SubmitResult

Result = TypeVar("Result")
#: Marks the end of an iterator, which a coroutine cannot raise StopIteration for.
_END: Any = object()


class AsyncOrderClient:
    """Awaits a client's calls, which raise what they raise there. For one event loop.

    A task that is cancelled waits no longer; its call goes on in its thread until its time limit, and
    the order may be stored. To submit it again is harmless.

    Args:
        client: closed with this one.
        threads: calls at once at most; others wait for one of them. ``submit_many`` is one call.
    """

    def __init__(self, client: BlockingClient, *, threads: int = 32) -> None:
        self._client = client
        self._threads = ThreadPoolExecutor(threads, "order-client")

    async def submit(self, order: Order | Mapping[str, Any], *, again: bool = False) -> str | None:
        """Submit an order; over HTTP, its state."""
        return await self._run(partial(self._client.submit, order, again=again))

    async def submit_many(
        self, orders: Iterable[Order | Mapping[str, Any]], *, again: bool = False
    ) -> list[SubmitResult]:
        """Submit orders together; a result for each, in order."""
        return await self._run(partial(self._client.submit_many, orders, again=again))

    async def cancel(
        self, order_id: str, merchant_id: str, *, deliver_by: datetime | None = None
    ) -> None:
        """Request an order's cancellation."""
        await self._run(partial(self._client.cancel, order_id, merchant_id, deliver_by=deliver_by))

    async def find(self, order_id: str, merchant_id: str) -> dict[str, Any] | None:
        """The order's state, attempts and events; None: it is not known. Over HTTP."""
        client = self._reading()
        return await self._run(partial(client.find, order_id, merchant_id))

    async def events(self, after: int = 0, *, wait: float = 10.0) -> AsyncIterator[dict[str, Any]]:
        """Every event after this position, in order, until ``close``. Over HTTP.

        Args:
            after: the last position that you have; 0: none.
            wait: seconds that a request waits for an event. When the iteration ends, the last
                request ends within them.
        """
        found = self._reading().events(after, wait=wait)
        thread = ThreadPoolExecutor(1, "order-events")  # the others are for calls that end soon
        try:
            while (event := await self._run(partial(next, found, _END), thread)) is not _END:
                yield event
        finally:
            thread.submit(found.close)  # type: ignore[attr-defined]  # a generator, in its thread
            thread.shutdown(wait=False)

    async def close(self) -> None:
        """Close the client: ``events`` ends, and calls after it fail. Idempotent."""
        # Not in one of ours, which may all be busy: OrderClient's threads have seconds to end.
        await asyncio.to_thread(self._client.close)
        self._threads.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> None:
        await self.close()

    def _reading(self) -> ReadingClient:
        if not hasattr(self._client, "events"):
            name = type(self._client).__name__
            raise TypeError(f"client: {name} reads nothing; give an HttpOrderClient for that")
        return self._client  # type: ignore[return-value]

    async def _run(
        self, call: Callable[[], Result], threads: ThreadPoolExecutor | None = None
    ) -> Result:
        """In a thread, with this task's context: its span is the call's parent."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(threads or self._threads, copy_context().run, call)
