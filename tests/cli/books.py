"""A ledger with orders in it, written as workers write them; and letters in ``orders.dead``."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kombu import Connection
from sqlalchemy import update

from pos_gateway.broker import topology, wire
from pos_gateway.broker.message import Message
from pos_gateway.broker.publisher import Publisher
from pos_gateway.database.engine import open_database
from pos_gateway.database.schema import orders
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind, Reason
from pos_gateway.events.event import dehydrated
from pos_gateway.events.outbox import Outbox
from pos_gateway.ledger.ledger import Ledger
from pos_gateway.ledger.order_admin import OrderAdmin, OrderStanding
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Action, AttemptHistory, Claim, Entry, Key, State
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.runtime.vault import Vault
from testkit.patience import PATIENCE
from tests.schema import make_tables

WHY = Reason("timeout", "no reply in time")


class Books:
    """One test's ledger. A worker writes to it, and an operator reads what is there."""

    def __init__(self, database_url: str, make: Callable[..., dict[str, Any]], keys: str | None):
        self.url = database_url
        self.engine = open_database(database_url)
        make_tables(self.engine)
        self.vault = Vault(keys)
        self.payloads = Payloads(self.vault)
        self.ledger = Ledger(self.engine, self.payloads)
        self.order_admin = OrderAdmin(self.engine, self.payloads)
        self._make = make

    def claimed(self, order_id: str = "o-1", *, send: bool = True, **fields: Any) -> Claim:
        """An order that the worker has in its hands."""
        order = Order.parse(self._make(order_id, **fields))
        key = Key(order.merchant_id, order.order_id)
        claim = self.ledger.claim(
            key,
            send=send,
            deliver_by=order.deliver_by.timestamp(),
            order=order.to_json(),
        )
        assert isinstance(claim, Claim)
        return claim

    def order(
        self,
        order_id: str,
        state: State,
        *,
        reason: Reason | None = WHY,
        at: float | None = None,
        history: AttemptHistory | None = None,
        **fields: Any,
    ) -> Key:
        """An order that stands like this, since that moment."""
        claim = self.claimed(order_id, **fields)
        at = time.time() if at is None else at
        history = history or AttemptHistory()
        told = Kind(state.value) if state.value in list(Kind) else None
        entry = Entry(
            state,
            at,
            attempts=1,
            doubt_since=history.doubt_since,
            pending=history.pending,
            reason=reason,
            event=dehydrated(claim.key, told) if told else None,
        )
        assert self.ledger.finish(claim, entry)
        return claim.key

    def in_doubt(self, order_id: str = "o-1", **fields: Any) -> Key:
        """An order that the POS may have."""
        now = time.time()
        return self.order(
            order_id, State.IN_DOUBT, history=AttemptHistory(doubt_since=now), at=now, **fields
        )

    def in_step(self, key: Key, step: str, **columns: Any) -> None:
        """The order is at a Square shop, in this step, as a worker writes that."""
        shop = {"id": key.merchant_id, "adapter": "square", "base_url": "https://pos.example.com"}
        MerchantStore(self.engine, vault=self.vault).put([Merchant.parse(shop)])
        is_it = orders.c.order_id == key.order_id
        with self.engine.begin() as connection:
            values = {"step": step, "facts": "sealed", **columns}
            connection.execute(update(orders).where(is_it).values(values))

    def cancellation(
        self, key: Key, state: State, *, at: float | None = None, deliver_by: float | None = None
    ) -> None:
        """A wish to cancel it that stands like this."""
        wish = Key(key.merchant_id, key.order_id, Action.CANCEL)
        claim = self.ledger.claim(wish, send=False, deliver_by=deliver_by)
        assert isinstance(claim, Claim)
        assert self.ledger.finish(claim, Entry(state, at or time.time(), attempts=1))

    def now(self, key: Key) -> OrderStanding:
        """How it stands."""
        standing = self.order_admin.one(key)
        assert standing is not None
        return standing

    def audit(self, key: Key) -> list[tuple[str, str]]:
        """Who did what."""
        return [(each["operator"], each["what"]) for each in self.order_admin.audit(key)]

    def told(self, key: Key) -> list[str]:
        """The events of it that are written."""
        return [each["type"] for each in self.order_admin.events(key)]

    def publish(self) -> None:
        """The backend has been told of all that is written."""
        outbox = Outbox(self.engine)
        term = outbox.take("leader", outbox.look()[0].epoch)
        assert term is not None
        while (after := outbox.assign(term, 1000)) != term:
            assert after is not None
            term = replace(after, published=after.assigned)
        outbox.close()

    def worker_dies(self) -> None:
        """Its lease is gone, and what it had in its hands is still there."""
        self.ledger.close()
        self.ledger = Ledger(self.engine, self.payloads)

    def close(self) -> None:
        self.ledger.close()
        self.engine.dispose()


class Letters:
    """What is set aside on a broker, and what is put on its other queues."""

    def __init__(self, broker_url: str) -> None:
        self.url = broker_url
        self._publisher = Publisher(broker_url)
        self._publisher.connect()

    def order(self, order: dict[str, Any], *, code: str = "unknown_merchant") -> None:
        """An order that was set aside for a reason."""
        body = json.dumps(order).encode()
        message = wire.submit_message(str(order["order_id"]), body, routing_key="orders")
        self._publisher.publish(wire.dead_letter(message, code=code, reason=f"that is {code}"))

    def raw(self, body: bytes, headers: dict[str, Any], number: str = "") -> None:
        """Any message."""
        self._publisher.publish(Message("orders", topology.DEAD_KEY, body, number, headers))

    def on(self, queue: str, *, back: int = 0) -> list[Any]:
        """What is on a queue, in its order; it stays there. First wait until ``back`` messages are back."""
        with Connection(self.url) as connection:
            self._wait(connection, queue, back)
            channel = connection.channel()
            found = []
            while (message := channel.basic_get(queue)) is not None:
                found.append(message)
            channel.close()
            self._wait(connection, queue, len(found))
            return found

    @staticmethod
    def _wait(connection: Connection, queue: str, back: int) -> None:
        """A broker gives messages of several channels back one channel after the other."""
        asking, until = connection.channel(), time.monotonic() + PATIENCE
        while asking.queue_declare(queue, passive=True).message_count < back:
            assert time.monotonic() < until, f"{queue} has not got its messages back"
            time.sleep(0.005)

    def bodies(self, queue: str) -> list[Any]:
        """The same, decoded."""
        return [json.loads(each.body) for each in self.on(queue)]

    def numbers(self, queue: str = topology.DEAD_KEY, *, back: int = 0) -> list[str]:
        """The ids of the messages on a queue, in its order. First wait until ``back`` are back."""
        return [each.properties["message_id"] for each in self.on(queue, back=back)]

    def close(self) -> None:
        self._publisher.close()
