"""The lab of ``tests/worker``, with POSes of every guarantee, a backend and invariants."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import text, update

from pos_gateway.adapters.protocol import Guarantee
from pos_gateway.database.schema import orders
from pos_gateway.simulated_merchants.client import SimulatedMerchants
from testkit.faults import books, invariants
from testkit.faults.adapters import ADAPTERS, install
from testkit.faults.backend import Backend
from testkit.faults.invariants import Evidence, Verdict
from tests.orders import an_order
from tests.worker.lab import PATIENCE, Lab, WorkerProcess

#: A simulated merchant without idempotency keys creates an order for each request.
UNKEYED = {"create": {"kind": "accept", "latency": 0.05}, "keyed": False}


class FaultLab(Lab):
    """One test's gateway, its backend, and the history of all submitted orders."""

    def __init__(
        self, broker_url: str, database_url: str, merchants: SimulatedMerchants, folder: Path
    ) -> None:
        super().__init__(broker_url, database_url, merchants, folder)
        self.backend = Backend(broker_url)
        self.backend.__enter__()
        #: Where workers find the adapters of ``testkit.faults``.
        self.python_path = install(folder)
        self._placed = 0

    def open_poses(self, count: int = 1, **fields: Any) -> list[str]:
        """This many merchants of every guarantee: ``keyed-0``, ``queryable-0``, ``blind-0``…

        No reply is too late for them, however busy the machine. Where a worker is killed, pass a
        shorter ``request_timeout``: an order of which a POS knows nothing waits for as long.
        """
        ids = []
        for guarantee, adapter in ADAPTERS.items():
            names = [f"{guarantee}-{number}" for number in range(count)]
            self.open_merchants(*names, adapter=adapter, **{"request_timeout": 30.0, **fields})
            if guarantee is not Guarantee.KEYED:
                self.merchants.profile(f"{guarantee}-*", UNKEYED)
            ids += names
        return ids

    def place(self, merchant_id: str, *order_ids: str, **fields: Any) -> None:
        """Submit orders to a merchant, as a backend that retries does."""
        for order_id in order_ids:
            self.backend.place(an_order(order_id, merchant_id, **fields))

    def place_some(self, merchants: list[str], each: int) -> None:
        """Submit this many new orders to each of the merchants."""
        for _ in range(each):
            for merchant_id in merchants:
                self._placed += 1
                self.place(merchant_id, f"o{self._placed}")

    @contextmanager
    def worker(
        self, *flags: str, environment: Mapping[str, str] | None = None, **settings: object
    ) -> Iterator[WorkerProcess]:
        with super().worker(
            *flags,
            environment=environment,
            python_path=self.python_path,
            **settings,  # type: ignore[arg-type]
        ) as worker:
            yield worker

    def wait_for_row(
        self, merchant_id: str, order_id: str, *, action: str = "submit", state: str | None = None
    ) -> None:
        """Wait until the ledger has this order in this state, or in a terminal one."""
        until = time.monotonic() + PATIENCE
        wanted = {state} if state else {"cancelled", "accepted", "rejected", "failed", "expired"}
        while (row := self.ledger(merchant_id, order_id, action) or (None,))[0] not in wanted:
            assert time.monotonic() < until, f"{order_id} is {row}"
            time.sleep(0.02)

    def wait_for_events(self, order_id: str, count: int) -> None:
        """Wait until the order has this many events, without duplicates."""
        happened = self.backend.wait(lambda: len(self.backend.events(order_id)) >= count, PATIENCE)
        assert happened, self.backend.events(order_id)

    def wait_for_event(self, order_id: str, type_: str) -> None:
        """Wait for an order's event of this type."""

        def has_it() -> bool:
            return any(event["type"] == type_ for event in self.backend.events(order_id))

        assert self.backend.wait(has_it, PATIENCE), self.backend.events(order_id)

    def settle(self) -> None:
        """Wait until every order is terminal or in doubt, and no longer than the patience for each.

        A broker that was killed sends a delayed retry a second time only after 180 s, if the first time the
        retry's queue had not started again (RabbitMQ's ``dead_letter_worker_publisher_confirm_timeout``).
        """
        left = self.backend.wait_until_settled(PATIENCE + 180.0, of_silence=True)
        assert not left, f"{len(left)} orders came to no end: {left[:5]}"

    def expire(self, merchant_id: str, order_id: str) -> None:
        """Let an order's deadline have passed, by the ledger."""
        row = (orders.c.merchant_id == merchant_id) & (orders.c.order_id == order_id)
        with self._engine.begin() as connection:
            connection.execute(update(orders).where(row).values(deliver_by=time.time() - 1))

    def left_in_sending(self, worker: WorkerProcess, merchants: str) -> int:
        """How many orders of merchants with this prefix a killed worker left in SENDING."""
        # PostgreSQL may still carry out what the worker had sent.
        sessions = text("select count(*) from pg_stat_activity where application_name = :name")
        with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            while connection.scalar(sessions, {"name": worker.name}):
                time.sleep(0.01)
        return len(books.sending(self._engine, worker.process.pid, merchants))

    def verdict(self, *, healthy: Callable[[str], bool] = lambda _merchant: False) -> Verdict:
        """Check the invariants; call it when no worker runs any more."""
        evidence = Evidence(
            self.backend.placed,
            self.backend.told,
            books.read(self._engine),
            invariants.records(self.merchants.orders()),
            positions=self.backend.positions,
            redelivered=self.backend.redelivered,
        )
        verdict = invariants.judge(evidence, healthy=healthy)
        assert not verdict.broken, str(verdict)
        return verdict

    def close(self) -> None:
        self.backend.__exit__()
        super().close()
        self._engine.dispose()
