"""Pods with a pipeline, a broker in memory, and a consumer, on a real database.

Every pod calls its ``at`` with the name of the place that it reached, between any two of its steps:
a test pauses or kills it there.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Engine, delete, insert

from pos_gateway.broker.message import Message
from pos_gateway.database.schema import events, orders
from pos_gateway.domain.errors import BatchCutShort
from pos_gateway.events.helping import Helping
from pos_gateway.events.hydration import Hydration
from pos_gateway.events.leadership import Leadership
from pos_gateway.events.outbox import Outbox, Row, Term
from pos_gateway.events.pipeline import Pipeline
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.runtime.vault import Vault
from tests.ledger.lab import DAY, Clock, Worker

At = Callable[[str], None]
#: Every place that a leader reaches, in order.
PLACES = (
    *("assign", "assigned", "read", "rows", "hydrated"),
    *("publish 1", "publish 2", "published"),
)


class Consumer:
    """The order backend: acts on the next position only, and records the events it acted on."""

    def __init__(self) -> None:
        self.acted: list[dict[str, Any]] = []
        #: Positions that arrived before an earlier one.
        self.early: list[int] = []

    def take(self, body: bytes) -> None:
        event = json.loads(body)
        position = event["position"]
        if position == len(self.acted) + 1:
            self.acted.append(event)
        elif position > len(self.acted):
            self.early.append(position)
        else:
            assert self.acted[position - 1]["id"] == event["id"], "a position has changed"

    @property
    def ids(self) -> list[str]:
        return [event["id"] for event in self.acted]


class Broker:
    """Stores published messages, and hands them to the consumer."""

    def __init__(self) -> None:
        self.consumer = Consumer()
        self.bodies: list[bytes] = []
        self.batches: list[int] = []
        self.is_down = False
        #: The numbers of the coming messages that are refused.
        self.refused: set[int] = set()
        self.was_refused = False
        #: Written before a connection was lost; may still arrive, in order.
        self.in_flight: list[list[Message]] = []

    @property
    def positions(self) -> list[int]:
        return [json.loads(body)["position"] for body in self.bodies]

    def publish(self, messages: Sequence[Message], at: At = lambda _: None) -> int:
        self.batches.append(len(messages))
        fates: list[bool] = []
        for number, message in enumerate(messages, 1):
            at(f"publish {number}")
            if self.is_down:
                self.in_flight.append(list(messages[number - 1 :]))
                raise BatchCutShort([*fates, False].index(False), "down")
            fates.append(self.arrive(message))
        at("published")
        return [*fates, False].index(False)

    def arrive(self, message: Message) -> bool:
        is_refused = 0 in self.refused
        self.refused = {count - 1 for count in self.refused if count}
        if is_refused:
            self.was_refused = True
            return False
        self.bodies.append(message.body)
        self.consumer.take(message.body)
        return True


class WatchedOutbox(Outbox):
    """Reports each place that it reaches."""

    def __init__(self, engine: Engine, at: At) -> None:
        super().__init__(engine)
        self._at = at

    def assign(self, term: Term, most: int) -> Term | None:
        self._at("assign")
        after = super().assign(term, most)
        self._at("assigned")
        return after

    def show(self, term: Term) -> None:
        super().show(term)
        self._at("shown")

    def read(self, after: int, most: int) -> list[Row]:
        self._at("read")
        found = super().read(after, most)
        self._at("rows")
        return found

    def take(self, leader: str, epoch: int) -> Term | None:
        self._at("take")
        term = super().take(leader, epoch)
        self._at("taken")
        return term

    def chunk(self, *args: Any, **kwargs: Any) -> list[Row]:
        found = super().chunk(*args, **kwargs)
        self._at("chunk")
        return found


class Pod:
    """A worker that leads if it can, and helps."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        broker: Broker,
        *,
        batch: int = 5,
        chunk: int = 3,
        behind: int = 4,
        vault: Vault | None = None,
        at: At = lambda _: None,
    ) -> None:
        self.at = at
        self.clock = clock
        self.worker = Worker(engine, clock)
        self.hydration = Hydration(Payloads(vault or Vault()))
        self.outbox, self.helpers_outbox = (WatchedOutbox(engine, self._is_at) for _ in range(2))
        self.hydrated: list[int] = []
        self.leadership = Leadership(self.outbox, self.worker, clock)
        self.pipeline = Pipeline(
            self.outbox,
            self.leadership,
            hydrate=self._hydrate,
            publish=lambda messages, on_sent: broker.publish(messages, self._is_at),
            clock=clock,
            batch=batch,
        )
        self.helping = Helping(
            self.helpers_outbox,
            lambda: self.worker.lease,
            seal=self.hydration.sealed,
            clock=clock,
            chunk=chunk,
            behind=behind,
        )

    @property
    def leads(self) -> bool:
        return self.leadership.leads

    def beat(self) -> None:
        self.worker.beat()

    def step(self) -> int:
        """Renew the lease, read the leadership and do the next batch."""
        self.beat()
        self.leadership._look_at = 0.0
        return self.pipeline.step()

    def finish(self) -> None:
        """Step until nothing is left to do."""
        while self.step() or self.pipeline.in_trouble:
            pass

    def close(self) -> None:
        for each in (self.outbox, self.helpers_outbox, self.worker._writer):
            each.close()

    def _is_at(self, place: str) -> None:
        self.at(place)

    def _hydrate(self, row: Row) -> Message:
        if row.body is None:
            self.hydrated.append(row.position or 0)
        message = self.hydration.message(row)
        self.at("hydrated")
        return message


class Events:
    """Writes events as outcomes do, and can corrupt them."""

    def __init__(self, engine: Engine, vault: Vault | None = None) -> None:
        self._engine = engine
        self._payloads = Payloads(vault or Vault())
        self.ids: list[str] = []

    def write(self, count: int = 1, **values: Any) -> list[str]:
        """Write events of this many orders, each in a separate transaction; returns their ids."""
        return [self.write_one(f"o{len(self.ids)}", **values) for _ in range(count)]

    def write_one(self, order_id: str, *, order: bool = True, **values: Any) -> str:
        event_id = values.pop("event_id", f"e{len(self.ids)}")
        with self._engine.begin() as connection:
            if order:
                payload = values.pop("order_payload", f'{{"order_id":"{order_id}"}}')
                self.keep(connection, order_id, payload)
            connection.execute(insert(events).values(**row(order_id, event_id, **values)))
        self.ids.append(event_id)
        return event_id

    def keep(self, connection: Any, order_id: str, payload: str | None) -> None:
        connection.execute(delete(orders).where(orders.c.order_id == order_id))
        connection.execute(
            insert(orders).values(
                merchant_id="m",
                order_id=order_id,
                action="submit",
                state="accepted",
                ticket=1,
                epoch=1,
                attempts=1,
                deaths=0,
                pending=False,
                reopened=0,
                created_at=DAY,
                updated_at=DAY,
                payload=payload,
            )
        )

    def change(self, **values: Any) -> None:
        """In every event."""
        with self._engine.begin() as connection:
            connection.execute(events.update().values(**values))

    def remove(self, **values: Any) -> None:
        with self._engine.begin() as connection:
            conditions = [events.c[name] == value for name, value in values.items()]
            connection.execute(delete(events).where(*conditions))


def row(order_id: str, event_id: str, **values: Any) -> dict[str, Any]:
    """An event's row."""
    return {
        "event_id": event_id,
        "type": "accepted",
        "merchant_id": "m",
        "order_id": order_id,
        "occurred_at": DAY,
        "attempts": 1,
        **values,
    }
