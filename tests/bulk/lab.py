"""Thousands of dead letters, quickly; and what is in the queues afterwards."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from kombu import Connection
from sqlalchemy import Engine, func, select

from pos_gateway.administration.bulk.filter import BulkFilter
from pos_gateway.administration.bulk.operations import BulkOperations
from pos_gateway.administration.bulk.options import BulkOptions
from pos_gateway.administration.bulk.run import BulkAction, BulkRun
from pos_gateway.administration.bulk.runner import Watcher
from pos_gateway.broker import topology, wire
from pos_gateway.database.schema import audit
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.runtime.vault import Vault
from pos_gateway.settings import Settings
from testkit.patience import PATIENCE

#: As many a second as there can be.
FAST = BulkOptions(rate=1_000.0)
EVERYTHING = BulkFilter()


def an_order(order_id: str, merchant_id: str = "m-1", **fields: Any) -> dict[str, Any]:
    """An order that is right but for the fields given."""
    now = datetime.now(UTC)
    return {
        "order_id": order_id,
        "merchant_id": merchant_id,
        "placed_at": now.isoformat(),
        "deliver_by": (now + timedelta(hours=1)).isoformat(),
        "currency": "EUR",
        "items": [{"sku": "s", "name": "Soup", "quantity": 1, "unit_price": 450}],
        "total": 450,
        **fields,
    }


def dead_letter(order: dict[str, Any], *, code: str, at: float | None = None) -> dict[str, Any]:
    """What is published for it to be a dead letter since then, by default now."""
    order_id = str(order["order_id"])
    headers = {"task": wire.SUBMIT_ORDER, "id": order_id, "lang": "py"}
    reasons = {"x-reason-code": code, "x-reason": f"that is {code}"}
    return {
        "body": wire.body_of(json.dumps(order).encode()),
        "headers": {**headers, **reasons},
        "message_id": order_id,
        "timestamp": int(time.time() if at is None else at),
    }


def publish(broker_url: str, letters: Iterable[dict[str, Any]], *, is_idle: bool = True) -> None:
    """Publish dead letters; while the queue has no consumer, wait until the broker counts them."""
    with Connection(broker_url) as connection:
        topology.declare(connection)
        before, count = depth(connection), 0
        producer = connection.Producer()
        for letter in letters:
            count += 1
            producer.publish(
                exchange="orders",
                routing_key=topology.DEAD_KEY,
                content_type="application/json",
                content_encoding="utf-8",
                delivery_mode=2,
                **letter,
            )
        until = time.monotonic() + PATIENCE
        while is_idle and depth(connection) < before + count:
            assert time.monotonic() < until, "published without confirms, and not there"
            time.sleep(0.01)


def depth(connection: Connection, queue: str = topology.DEAD_KEY) -> int:
    """How many messages a queue has."""
    with connection.channel() as channel:
        return int(channel.queue_declare(queue, passive=True).message_count)


def ids(broker_url: str, queue: str) -> Counter[str]:
    """How often each order's message is in a queue, which has them afterwards, too."""
    found: Counter[str] = Counter()
    with Connection(broker_url) as connection:
        channel = connection.channel()
        count = depth(connection, queue)
        consumer = connection.Consumer(
            channel=channel,
            queues=[topology.dead_queue if queue == topology.DEAD_KEY else topology.orders_queue],
            on_message=lambda message: found.update([message.properties["message_id"]]),
            auto_declare=False,
            prefetch_count=count,
        )
        with consumer:
            while found.total() < count:
                connection.drain_events(timeout=PATIENCE)
        channel.close()
        until = time.monotonic() + PATIENCE
        while depth(connection, queue) < count:
            assert time.monotonic() < until, f"{queue} has not got its messages back"
            time.sleep(0.01)
    return found


def audited(engine: Engine, what: str) -> Counter[str]:
    """How many lines of the audit each order has."""
    with engine.connect() as connection:
        query = select(audit.c.order_id, func.count()).where(audit.c.what == what)
        return Counter(
            dict(tuple(row) for row in connection.execute(query.group_by(audit.c.order_id)))
        )


class Desk:
    """One operator's bulk operations."""

    def __init__(self, engine: Engine, broker_url: str, operator: str) -> None:
        settings = Settings.model_validate({"broker_url": broker_url, "metrics_port": 0})
        self.operator = operator
        self.bulk = BulkOperations(settings, engine, Payloads(Vault(None)))
        self.store = self.bulk.store

    def preview(
        self,
        action: BulkAction = BulkAction.REPLAY,
        filter_: BulkFilter = EVERYTHING,
        options: BulkOptions = FAST,
    ) -> BulkRun:
        """A run that is to be confirmed."""
        return self.bulk.preview(action, filter_, options, self.operator)

    def run(
        self,
        run: BulkRun,
        *,
        is_stopped: Callable[[], bool] = lambda: False,
        on_item: Callable[..., None] = lambda *_: None,
    ) -> BulkRun:
        """Run it, or resume it."""
        watcher = Watcher(is_stopped=is_stopped, on_item=on_item)
        return self.bulk.run(run.id, self.operator, watcher=watcher)
