"""Measures a backend's outbox: ``python -m loadtests.outbox`` starts RabbitMQ, PostgreSQL and MariaDB.

What the request pays for ``add``, how long after the commit an order is in the queue, and how many
orders a relay submits a second, also with a long backlog.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from typing import Any

from pos_gateway.client import OrderClient, SubmitResult, outbox
from pos_gateway.client.outbox.connections import PlainConnection
from pos_gateway.client.outbox.opening import connector
from pos_gateway.domain.order import Order
from testkit.servers.mariadb import MariaDB
from testkit.servers.postgresql import PostgreSQL
from testkit.servers.rabbitmq import RabbitMQ


def an_order(number: int) -> dict[str, Any]:
    now = datetime.now(UTC)
    return {
        "order_id": f"o{number}",
        "merchant_id": f"m{number % 100}",
        "placed_at": now.isoformat(),
        "deliver_by": (now + timedelta(hours=1)).isoformat(),
        "currency": "EUR",
        "items": [{"sku": "burger", "name": "Burger", "quantity": 2, "unit_price": 850}],
        "total": 1700,
    }


class Watched:
    """A client that notes when each order was confirmed."""

    def __init__(self, client: OrderClient) -> None:
        self._client = client
        self.confirmed: dict[str, float] = {}

    def submit_many(
        self, orders: Iterable[Order | Mapping[str, Any]], *, again: bool = False
    ) -> list[SubmitResult]:
        results = self._client.submit_many(orders, again=again)
        now = time.perf_counter()
        self.confirmed.update({each.order_id: now for each in results})
        return results

    def cancel(
        self, order_id: str, merchant_id: str, *, deliver_by: datetime | None = None
    ) -> None:
        self._client.cancel(order_id, merchant_id, deliver_by=deliver_by)


def milliseconds(values: list[float]) -> str:
    cuts = statistics.quantiles(values, n=100)
    return f"p50 {cuts[49] * 1000:.2f} ms, p99 {cuts[98] * 1000:.2f} ms"


def adding(connect: Callable[[], Any], number: int) -> None:
    """What ``add`` costs the request, beside its own insert and commit."""
    with closing(connect()) as connection:
        own = PlainConnection(connection)
        for what in ("with add", "without"):
            times = []
            for each in range(number):
                begin = time.perf_counter()
                own.execute("insert into placed (order_id) values (?)", (f"{what}{each}",))
                if what == "with add":
                    outbox.add(connection, an_order(each))
                connection.commit()
                times.append(time.perf_counter() - begin)
            print(f"  a transaction {what}: {milliseconds(times)}")


def latency(connect: Callable[[], Any], url: str, client: OrderClient, number: int) -> None:
    """From the commit to the broker's confirm, with a relay that has nothing else to do."""
    watched = Watched(client)
    relay = outbox.Relay(watched, url).start()
    times = []
    try:
        with closing(connect()) as connection:
            for each in range(number):
                outbox.add(connection, an_order(1_000_000 + each))
                connection.commit()
                committed = time.perf_counter()
                name = f"o{1_000_000 + each}"
                while name not in watched.confirmed:
                    time.sleep(0.0005)
                times.append(watched.confirmed[name] - committed)
    finally:
        relay.stop()
    print(f"  from the commit to the confirm: {milliseconds(times)}")


def backlog(connect: Callable[[], Any], url: str, client: OrderClient, number: int) -> None:
    """Orders a second that one relay submits."""
    with closing(connect()) as connection:
        for each in range(number):
            outbox.add(connection, an_order(2_000_000 + each), notify=False)
        connection.commit()
    begin = time.perf_counter()
    submitted = outbox.Relay(client, url).drain()
    took = time.perf_counter() - begin
    print(f"  a backlog of {submitted}: {submitted / took:,.0f} orders/s")


def main() -> None:
    """Print the figures of each database."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backlog", type=int, default=20_000)
    parser.add_argument("--number", type=int, default=500)
    options = parser.parse_args()
    with ExitStack() as stack:
        broker = stack.enter_context(RabbitMQ())
        client = stack.enter_context(OrderClient(broker.url))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        urls = {
            "postgresql": stack.enter_context(PostgreSQL()).database(),
            "mysql": stack.enter_context(MariaDB()).database(),
            "sqlite": f"sqlite:///{folder}/backend.db",
        }
        for dialect, url in urls.items():
            print(dialect)
            connect = connector(url)
            with closing(connect()) as connection:
                own = PlainConnection(connection)
                if dialect == "sqlite":
                    own.execute("pragma journal_mode = wal")
                for statement in outbox.ddl(dialect):
                    own.execute(statement)
                own.execute("create table placed (order_id varchar(128) primary key)")
                connection.commit()
            adding(connect, options.number)
            outbox.Relay(client, url).drain()
            latency(connect, url, client, options.number // (10 if dialect != "postgresql" else 1))
            backlog(connect, url, client, options.backlog)


if __name__ == "__main__":
    main()
