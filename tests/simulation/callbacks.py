"""POSes that call back, in some runs: late, twice, in any order, while the database is away.

Their chance is their own, so that the other runs stay as they are.
"""

from random import Random
from typing import TYPE_CHECKING

from pos_gateway.adapters.pos_fields import endpoint
from pos_gateway.domain.callback import Callback
from pos_gateway.domain.errors import LedgerUnavailable
from pos_gateway.domain.outcome import Kind, Lifecycle
from pos_gateway.events.event import dehydrated
from pos_gateway.ledger.callback_rules import Received
from pos_gateway.ledger.callbacks import CallbackLedger
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.runtime.vault import Vault
from tests.simulation.adapters import ADAPTERS
from tests.simulation.scheduler import Process

if TYPE_CHECKING:
    from tests.simulation.pos import Pos, Record
    from tests.simulation.world import World

#: The part of all runs in which POSes call.
PART = 0.3


class Callbacks:
    """What POSes say by themselves, and the server that takes it."""

    def __init__(self, world: "World", seed: int) -> None:
        self._world, self._scheduler = world, world.scheduler
        self._random = Random(f"callbacks {seed}")
        self._is_on = self._random.random() < PART
        self._server = Process("server")
        self._number = 0
        #: Calls that have not been answered.
        self.open = 0

    def happened(self, order_id: str, status: str) -> None:
        """Its POS has decided so about an order."""
        if not self._is_on:
            return
        self._say(order_id, Kind(status))
        if status == "accepted":
            for stage in (Lifecycle.PREPARING, Lifecycle.READY, Lifecycle.COMPLETED):
                self._say(order_id, stage)

    def will_decide(self, pos: "Pos", record: "Record") -> None:
        """Its POS decides about an order at that time, unless it was cancelled before."""

        def decide() -> None:
            self._scheduler.sleep(max(0.0, record.decides_at - self._scheduler.time))
            pos.decide(record)
            self.open -= 1
            if record.status == record.decides_as:
                self.happened(record.order_id, record.status)

        if self._is_on:
            self.open += 1
            self._scheduler.spawn(self._server, "decide", decide)

    def _say(self, order_id: str, meaning: Kind | Lifecycle) -> None:
        """Call, perhaps twice, or never."""
        random = self._random
        self._number += 1
        event_id = f"call-{self._number}"
        for _ in range(random.choice((0, 1, 1, 2))):
            delays = (0.0, random.uniform(0, 0.5), random.uniform(0, 30), random.uniform(0, 300))
            seconds = random.choice(delays)
            self.open += 1
            self._scheduler.spawn(
                self._server,
                f"{meaning} {order_id}",
                lambda seconds=seconds: self._call(event_id, order_id, meaning, seconds),
            )

    def _call(
        self, event_id: str, order_id: str, meaning: Kind | Lifecycle, seconds: float
    ) -> None:
        self._scheduler.sleep(seconds)
        merchant_id = self._world.submitted[order_id].merchant_id
        while order_id not in self._world.reopened:  # a call about an earlier generation
            merchant = self._world.merchants[merchant_id][-1][1]
            where = endpoint(merchant, ADAPTERS[merchant.adapter])
            said = Callback(event_id, meaning, order_id, f"at-{order_id}")
            received = Received(merchant.adapter, merchant_id, said, {merchant_id: (where,)})
            payloads = Payloads(Vault(self._world.operators.secret_keys()))
            ledger = CallbackLedger(
                self._world.database.engine, payloads, dehydrated, self._scheduler
            )
            try:
                [applied] = ledger.apply([received])
            except LedgerUnavailable:
                self._scheduler.sleep(self._random.uniform(1, 10))  # the POS calls again
            else:
                self._scheduler.say(f"{event_id} {meaning}: {applied.result}")
                break
            finally:
                ledger.close()
        self.open -= 1
