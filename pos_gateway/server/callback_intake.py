"""Applies verified callbacks; logs and counts their results."""

from collections.abc import Sequence

from pos_gateway.adapters.protocol import Adapter
from pos_gateway.adapters.steps import several_steps
from pos_gateway.domain.callback import Callback
from pos_gateway.domain.merchant import Merchant
from pos_gateway.ledger.callback_rules import CallbackResult, Received
from pos_gateway.ledger.callbacks import report
from pos_gateway.server.callback_merchants import CallbackMerchants
from pos_gateway.server.callback_writer import CallbackWriter
from pos_gateway.server.problems import Problem
from pos_gateway.telemetry import metrics

#: What may follow from a callback that waits, and counts as waiting already.
_COUNTED_BEFORE = (CallbackResult.WAITING, CallbackResult.DUPLICATE, CallbackResult.BUSY)


class CallbackIntake:
    """Applies callbacks whose signature was verified. For the event loop."""

    def __init__(self, merchants: CallbackMerchants, writer: CallbackWriter) -> None:
        self._merchants = merchants
        self._writer = writer

    async def apply(
        self, adapter: Adapter, merchant: Merchant, said: Sequence[Callback]
    ) -> list[CallbackResult]:
        """The result of each, once it is durable. Raises Problem 503: the POS calls again.

        Args:
            merchant: of the URL that they came to.
        """
        received = []
        for each in said:
            owners = await self._merchants.owners(adapter, merchant, each)
            steps = several_steps(adapter)
            received.append(Received(adapter.name, merchant.id, each, owners, steps=steps))
        return await self.apply_received(received)

    async def apply_received(self, received: Sequence[Received]) -> list[CallbackResult]:
        """The result of each, once it is durable. Callbacks without an owner are written only if they have waited."""
        results = [CallbackResult.UNKNOWN] * len(received)
        places = [
            place
            for place, each in enumerate(received)
            if each.owners or each.waiting_since is not None
        ]
        applied = await self._writer.apply([received[place] for place in places]) if places else []
        for place, one in zip(places, applied, strict=True):
            results[place] = one.result
            key = one.key
            report(received[place], one, self._merchants.provider(key.merchant_id) if key else None)
        for each, result in zip(received, results, strict=True):
            if each.waiting_since is None or result not in _COUNTED_BEFORE:
                metrics.callbacks(each.adapter, result).inc()
        if CallbackResult.BUSY in results:
            detail = "a worker is writing the order at this moment; send the same again"
            raise Problem(503, "order_busy", detail, retry_after=1)
        return results
