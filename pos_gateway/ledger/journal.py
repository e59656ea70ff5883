"""The outcomes of the last seconds, for a replay after a failover: a lagging standby lacks some.

Replay is idempotent: outcomes in the database stay as they are.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from pos_gateway.ledger.batch import Finishing, Operation, Recording
from pos_gateway.ledger.states import Key
from pos_gateway.runtime.clock import Clock

#: Seconds to keep outcomes, and bytes of their orders. No standby should be promoted that
#: lags further.
REMEMBERED, MAX_BYTES = 10.0, 32 * 2**20
#: Maximum outcomes in a replayed batch.
BATCH = 256


class Journal:
    """Keeps committed outcomes, in order. For one caller at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: Time of the confirmation, bytes of the order, and the outcome.
        self._written: deque[tuple[float, int, Finishing | Recording]] = deque()
        self._bytes = 0

    def add(self, operations: Sequence[Operation], results: Sequence[Any]) -> None:
        """Add the outcomes of a transaction just confirmed, and forget those too old for any lag.

        Age counts up to this transaction: a failover may take far longer, and then all outcomes
        left are replayed.
        """
        now = self._clock.monotonic()
        for each, result in zip(operations, results, strict=True):
            if type(each) is Finishing and result:
                payload = each.claim.payload
            elif type(each) is Recording:
                payload = each.payload
            else:
                continue
            size = len(payload or "")
            self._written.append((now, size, each))
            self._bytes += size
        while self._written and (now - self._written[0][0] > REMEMBERED or self._bytes > MAX_BYTES):
            self._bytes -= self._written.popleft()[1]

    def batches(self) -> Iterator[list[Finishing | Recording]]:
        """All outcomes, in order. A batch has an order at most once, so its outcomes stay apart."""
        batch: list[Finishing | Recording] = []
        keys: set[Key] = set()
        for *_, each in self._written:
            key = each.claim.key if isinstance(each, Finishing) else each.key
            if key in keys or len(batch) == BATCH:
                yield batch
                batch, keys = [], {key}
            batch.append(each)
            keys.add(key)
        if batch:
            yield batch
