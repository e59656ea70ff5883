"""Tries callbacks again that wait for their order's id: the POS was faster than the worker's commit."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress

import structlog

from pos_gateway.adapters.protocol import Adapter
from pos_gateway.ledger.callback_rules import Received
from pos_gateway.ledger.callbacks import CallbackLedger, Waiting
from pos_gateway.server.callback_intake import CallbackIntake
from pos_gateway.server.callback_merchants import CallbackMerchants
from pos_gateway.server.problems import Problem
from pos_gateway.server.reading import Reading

log = structlog.get_logger(__name__)

#: Seconds between two looks, and most that are tried at once.
EVERY, MOST = 1.0, 256


class WaitingCallbacks:
    """Tries what is due, every second. For the event loop."""

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
        """Try what is due. Raises Problem: the database is away."""
        due = await self._reading(lambda: self._ledger.due(MOST))
        received = [await self._again(each) for each in due]
        if received:
            await self._intake.apply_received(received)

    async def _again(self, one: Waiting) -> Received:
        """As it came; its owners are those of today."""
        merchant = await self._merchants.get(one.merchant_id)
        adapter = self._adapters.get(one.adapter)
        owners = {}
        if merchant is not None and adapter is not None and merchant.adapter == adapter.name:
            owners = await self._merchants.owners(adapter, merchant, one.callback)
        return Received(one.adapter, one.merchant_id, one.callback, owners, one.since)
