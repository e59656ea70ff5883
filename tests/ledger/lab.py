"""Ledgers on one database, each with a clock that the test sets, and access to the rows."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Engine, Table, select

from pos_gateway.database.schema import events, orders, workers
from pos_gateway.domain.outcome import Kind
from pos_gateway.events.event import dehydrated
from pos_gateway.ledger.batch import Looking
from pos_gateway.ledger.lease import LEASE, Lease
from pos_gateway.ledger.ledger import Ledger
from pos_gateway.ledger.states import Abandoned, Claim, ClaimResult, Entry, Key, State

#: Seconds after which a wait fails.
SOON = float(os.environ.get("SOON", "30"))
KEY = Key("m", "o1")
#: The time of day at which tests begin.
DAY = 1_800_000_000.0


class Clock:
    """Both clocks of one machine; the test sets them. ``of_day`` can be stepped by itself."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.of_day = DAY

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.of_day, UTC)

    def advance(self, seconds: float) -> None:
        self.seconds += seconds
        self.of_day += seconds


class Worker(Ledger):
    """A ledger with a green worker's lease and no thread: the test renews the lease."""

    def __init__(self, engine: Engine, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        super().__init__(engine, clock=self.clock)
        self.lease = Lease(LEASE, self.clock)

    def beat(self) -> None:
        """What the ledger's thread does: renew the lease if due, and read the others'."""
        self._write([Looking()])

    def together(self, *operations: Any) -> list[Any]:
        """Run operations in one transaction."""
        return self._write(operations)

    @contextmanager
    def using(self, claim: Claim) -> Iterator[None]:
        """Abandon the claim if the block raises, as ``Spine.attempt`` does."""
        try:
            yield
        except BaseException:
            self.abandon(claim, sent=claim.sending)
            raise

    def ticket(self) -> int:
        return next(self._tickets)

    @property
    def abandoned(self) -> dict[int, Abandoned]:
        return self._abandoned


class Rows:
    """The rows of the database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def order(self, key: Key = KEY) -> Any:
        with self._engine.connect() as connection:
            return connection.execute(
                select(orders).where(
                    orders.c.merchant_id == key.merchant_id,
                    orders.c.order_id == key.order_id,
                    orders.c.action == key.action,
                )
            ).one_or_none()

    def orders(self) -> list[Any]:
        return self._all(orders)

    def events(self) -> list[Any]:
        return self._all(events)

    def leases(self) -> set[str]:
        return {row.id for row in self._all(workers)}

    def _all(self, table: Table) -> list[Any]:
        with self._engine.connect() as connection:
            return list(connection.execute(select(table).order_by(*table.primary_key.columns)))


def an_entry(kind: Kind = Kind.ACCEPTED, *, key: Key = KEY, **fields: Any) -> Entry:
    """An attempt's outcome, with its event."""
    values: dict[str, Any] = {"at": DAY, "attempts": 1, "event": dehydrated(key, kind), **fields}
    return Entry(State(kind.value), **values)


def without_event(state: State = State.NEW, **fields: Any) -> Entry:
    """An attempt's outcome without an event."""
    return Entry(state, **{"at": DAY, "attempts": 1, **fields})


def claimed(result: ClaimResult) -> Claim:
    assert isinstance(result, Claim), result
    return result
