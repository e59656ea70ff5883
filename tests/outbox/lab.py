"""A backend with an outbox in its own database, and a gateway that is told what to reply."""

import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from pos_gateway.client import SubmitResult, outbox
from pos_gateway.client.outbox.connections import PlainConnection
from pos_gateway.client.outbox.opening import connector
from pos_gateway.domain.errors import BrokerUnavailable
from pos_gateway.domain.order import Order
from testkit.patience import PATIENCE
from tests.orders import an_order

#: Seconds within which everything happens that a test waits for.
SOON = PATIENCE
AWAY = BrokerUnavailable("the broker is away")


class Backend:
    """A backend's database, with a table of its own beside the outbox."""

    def __init__(self, url: str, dialect: str) -> None:
        self.url, self.dialect = url, dialect
        self.connect: Callable[[], Any] = connector(url)
        own = "create table placed (order_id varchar(128) primary key)"
        self.run(*outbox.ddl(dialect), own)
        if dialect == "sqlite":
            self.run("pragma journal_mode = wal")

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements in a transaction; the last one's rows."""
        connection = self.connect()
        try:
            rows: list[tuple[Any, ...]] = []
            for statement in statements:
                rows = PlainConnection(connection).execute(statement)
            connection.commit()
            return rows
        finally:
            connection.close()

    def place(self, *orders: Mapping[str, Any]) -> None:
        """Add the orders in a transaction."""
        connection = self.connect()
        try:
            for order in orders:
                outbox.add(connection, order)
            connection.commit()
        finally:
            connection.close()

    def cancel(self, order_id: str, merchant_id: str = "fast-1") -> None:
        """Add a cancel request in a transaction."""
        connection = self.connect()
        try:
            outbox.cancel(connection, order_id, merchant_id)
            connection.commit()
        finally:
            connection.close()

    def kept(self) -> list[str]:
        """The ids in the outbox, in order."""
        return [
            order_id for (order_id,) in self.run(f"select order_id from {outbox.TABLE} order by id")
        ]

    def due(self) -> None:
        """Have the rows that wait for another attempt wait no longer."""
        self.run(f"update {outbox.TABLE} set not_before = null")


class Gateway:
    """A client that records what it is given, and replies as it is told."""

    def __init__(self) -> None:
        #: What was stored, in order.
        self.stored: list[str] = []
        #: What is raised for an order.
        self.errors: dict[str, Exception] = {}
        #: What is raised for a batch with an order.
        self.poison: dict[str, Exception] = {}
        self.is_away = False
        self.batches: list[list[str]] = []
        #: Called with each batch, before it is stored.
        self.before: Callable[[list[str]], None] = lambda ids: None
        self._news = threading.Condition()

    def submit_many(
        self, orders: Iterable[Order | Mapping[str, Any]], *, again: bool = False
    ) -> list[SubmitResult]:
        assert again
        ids = [Order.parse(each).order_id for each in orders]
        self.batches.append(ids)
        self.before(ids)
        errors: list[Exception | None] = [self.errors.get(each) for each in ids]
        if self.is_away:
            errors = [AWAY for _ in ids]
        elif any(each in self.poison for each in ids):
            errors = [next(self.poison[each] for each in ids if each in self.poison)] * len(ids)
        for each, error in zip(ids, errors, strict=True):
            if error is None:
                self._store(each)
        return [
            SubmitResult(each, None if error else "submitted", error)  # type: ignore[arg-type]
            for each, error in zip(ids, errors, strict=True)
        ]

    def cancel(
        self, order_id: str, merchant_id: str, *, deliver_by: datetime | None = None
    ) -> None:
        assert deliver_by is not None
        if self.is_away:
            raise AWAY
        if error := self.errors.get(f"cancel {order_id}"):
            raise error
        self._store(f"cancel {order_id}")

    def wait_for(self, *names: str) -> None:
        """Until all of these are stored."""
        with self._news:
            assert self._news.wait_for(lambda: {*names} <= {*self.stored}, SOON), self.stored

    def _store(self, name: str) -> None:
        with self._news:
            self.stored.append(name)
            self._news.notify_all()


def orders(*ids: str, **fields: Any) -> list[dict[str, Any]]:
    return [an_order(each, **fields) for each in ids]
