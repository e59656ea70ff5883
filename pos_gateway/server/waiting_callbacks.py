"""Retries callbacks that wait for their order's id: the POS called before the worker had committed it."""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TypeVar

import structlog

from pos_gateway.adapters.protocol import Adapter
from pos_gateway.adapters.steps import several_steps
from pos_gateway.ledger.callback_rules import Received
from pos_gateway.ledger.callbacks import CallbackLedger, WaitingCallback
from pos_gateway.server.callback_intake import CallbackIntake
from pos_gateway.server.callback_merchants import CallbackMerchants, require_readable
from pos_gateway.server.problems import Problem
from pos_gateway.server.reading import Reading

log = structlog.get_logger(__name__)

T = TypeVar("T")

#: Seconds between two looks, and most that are tried at once.
EVERY, MAX_RETRIED = 1.0, 256


class WaitingCallbacks:
    """Retries the callbacks that are due, every second. For the event loop."""

    def __init__(
        self,
        adapters: Mapping[str, Adapter],
        ledger: CallbackLedger,
        merchants: CallbackMerchants,
        intake: CallbackIntake,
        reading: Reading,
    ) -> None:
        self._adapters = adapters
        self._ledger = ledger
        self._merchants = merchants
        self._intake = intake
        self._reading = reading
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start. Call it in the event loop."""
        self._task = asyncio.ensure_future(self._run())

    def stop(self) -> None:
        """Stop. Idempotent."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(EVERY)
            try:
                with suppress(Problem):  # the log has it, and what is due now is due again soon
                    await self.retry()
            except Exception as error:
                log.error("callback.not_tried", exc_info=error)

    async def retry(self) -> None:
        """Apply the callbacks that are due, each by itself. Raises Problem: the database is away."""
        due = await self._reading(lambda: self._ledger.due(MAX_RETRIED))
        received = await asyncio.gather(*map(self._received, due), return_exceptions=True)
        tries = [self._intake.apply_received([each]) for each in _without_errors(received)]
        _without_errors(await asyncio.gather(*tries, return_exceptions=True))

    async def _received(self, one: WaitingCallback) -> Received:
        """The callback as it was stored, with its present owners. Raises Problem 503."""
        adapter = self._adapters.get(one.adapter)
        merchant = None
        if adapter is not None:
            merchant = await self._merchants.get(adapter, one.merchant_id)
        owners: Mapping[str, tuple[str, ...]] = {}
        steps = {} if adapter is None else several_steps(adapter)
        if adapter is not None and merchant is not None:
            require_readable(merchant)
            owners = await self._merchants.owners(adapter, merchant, one.callback)
        return Received(one.adapter, one.merchant_id, one.callback, owners, one.since, steps)


def _without_errors(results: Iterable[T | BaseException]) -> list[T]:
    """The results that are none. What has an error is due again soon."""
    found = []
    for each in results:
        if not isinstance(each, BaseException):
            found.append(each)
        elif not isinstance(each, Problem):  # which the log has, or which a worker causes
            log.error("callback.not_tried", exc_info=each)
    return found
