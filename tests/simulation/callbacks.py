"""POSes that call back, in some runs: late, twice, in any order, while the database is away.

Their chance is their own, so that the other runs stay as they are.
"""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

from pos_gateway.adapters.pos_fields import endpoint
from pos_gateway.adapters.steps import several_steps
from pos_gateway.domain.callback import Callback
from pos_gateway.domain.errors import LedgerUnavailable
from pos_gateway.domain.outcome import Kind, Lifecycle
from pos_gateway.events.event import dehydrated
from pos_gateway.ledger.callback_rules import CallbackResult, Received
from pos_gateway.ledger.callbacks import CallbackLedger
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.runtime.vault import Vault
from tests.simulation.adapters import ADAPTERS
from tests.simulation.scheduler import Process

if TYPE_CHECKING:
    from tests.simulation.pos import Pos, Record
    from tests.simulation.world import World

#: The part of all runs in which POSes call; and of orders with steps in these that the shop ends by itself.
PART, ENDS = 0.3, 0.2
#: What a POS says of an order that it has accepted.
STAGES = (Lifecycle.PREPARING, Lifecycle.READY, Lifecycle.COMPLETED)


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
        self.says(order_id, Kind(status), *(STAGES if status == "accepted" else ()))

    def says(self, order_id: str, *meanings: Kind | Lifecycle) -> None:
        """Its POS says so."""
        for meaning in meanings if self._is_on else ():
            self._say(order_id, meaning)

    def may_end(self, order_id: str, end: Callable[[], None]) -> None:
        """The shop may end an order by itself at any time from now on."""

        def run() -> None:
            self._scheduler.sleep(self._random.choice((1, 10, 300)) * self._random.random())
            end()
            self.open -= 1
            self._say(order_id, self._random.choice((Kind.CANCELLED, Kind.REJECTED)))

        if self._is_on and self._random.random() < ENDS:
            self.open += 1
            self._scheduler.spawn(self._server, "end", run)

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
        adapter = self._world.merchants[merchant_id][-1][1].adapter
        # Of an order that it refuses at once it makes no record.
        records = self._world.records(order_id)
        said = Callback(event_id, meaning, order_id, records[0].known_as if records else None)
        if self._applied(self._received(adapter, merchant_id, said)):
            while self._is_waiting(event_id):  # for the id of a reopened order
                self._scheduler.sleep(self._random.uniform(1, 10))
                self._try_again()
        self.open -= 1

    def _applied(self, *received: Received) -> bool:
        """Apply these, as often as it takes; whether one waits."""
        while True:
            ledger = self._ledger()
            try:
                results = [each.result for each in ledger.apply(received)]
            except LedgerUnavailable:
                self._scheduler.sleep(self._random.uniform(1, 10))  # the POS calls again
            else:
                for each, result in zip(received, results, strict=True):
                    said = each.callback
                    self._scheduler.say(f"{said.event_id} {said.meaning}: {result}")
                return CallbackResult.WAITING in results
            finally:
                ledger.close()

    def _try_again(self) -> None:
        """What a server does every second."""
        ledger = self._ledger()
        try:
            due = ledger.due(100)
        except SQLAlchemyError:
            return
        finally:
            ledger.close()
        if due:
            self._applied(
                *(
                    self._received(each.adapter, each.merchant_id, each.callback, each.since)
                    for each in due
                )
            )

    def _received(
        self, adapter: str, merchant_id: str, said: Callback, since: float | None = None
    ) -> Received:
        steps = several_steps(ADAPTERS[adapter])
        return Received(adapter, merchant_id, said, self._owners(merchant_id), since, steps)

    def _is_waiting(self, event_id: str) -> bool:
        query = "select 1 from callbacks where again_at is not null and event_id = ?"
        return bool(self._world.database.rows(query, event_id))

    def _owners(self, merchant_id: str) -> dict[str, tuple[str, ...]]:
        merchant = self._world.merchants[merchant_id][-1][1]
        return {merchant_id: (endpoint(merchant, ADAPTERS[merchant.adapter]),)}

    def _ledger(self) -> CallbackLedger:
        payloads = Payloads(Vault(self._world.operators.secret_keys()))
        return CallbackLedger(self._world.database.engine, payloads, dehydrated, self._scheduler)
