"""A whole gateway on a ledger in SQLite, with a function as its POS and a list as its broker."""

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import text

from pos_gateway.adapters.protocol import Guarantee
from pos_gateway.adapters.rest import RestAdapter
from pos_gateway.attempt.attempt import Attempt
from pos_gateway.attempt.decision import Decision
from pos_gateway.attempt.gateway import Gateway
from pos_gateway.broker.message import Message
from pos_gateway.broker.wire import RawMessage
from pos_gateway.database.engine import open_database
from pos_gateway.domain.merchant import Merchant
from pos_gateway.events.outbox import Outbox
from pos_gateway.ledger.states import Action
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.settings import Settings
from pos_gateway.transport.exchange import Reply
from testkit.patience import PATIENCE
from tests.orders import an_order, received
from tests.schema import make_tables

#: A POS's answer to a request: a status and an object, or an exception.
Pos = Callable[[Any], Any]


@cache
def _template() -> str:
    """A database with the schema, to be copied."""
    file = tempfile.NamedTemporaryFile(suffix=".db")  # noqa: SIM115  (it lives as long as the process)
    _kept.append(file)
    engine = open_database(f"sqlite:///{file.name}")
    make_tables(engine)
    engine.dispose()
    return file.name


_kept: list[Any] = []


class Clock:
    """Both clocks; the test sets them."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return datetime(2026, 11, 20, 12, tzinfo=UTC) + timedelta(seconds=self.seconds)


#: Gates that the present test has made.
OPEN: "list[Gate]" = []


class Gate(Gateway):
    """Delivers messages one after the other."""

    def __init__(
        self,
        folder: Path,
        pos: Pos,
        *,
        clock: Clock | None = None,
        settings: dict[str, Any] | None = None,
        **merchant: Any,
    ) -> None:
        OPEN.append(self)
        self.hand = clock or Clock()
        shutil.copy(_template(), folder / "gateway.db")
        url = f"sqlite:///{folder}/gateway.db"
        super().__init__(
            Settings.model_validate({"database_url": url, "metrics_port": 0, **(settings or {})}),
            self.hand,
        )
        self.pos = pos
        fields = {"id": "m", "adapter": "rest", "base_url": "https://pos.example.com", **merchant}
        MerchantStore(self.database).put([Merchant.parse(fields)])
        #: The requests to the POS: methods and paths.
        self.said: list[tuple[str, str]] = []
        #: The messages stored by the broker.
        self.stored: list[Message] = []
        self.caller.exchange = self._exchange  # type: ignore[method-assign, assignment]

    def _exchange(self, request: Any, *, fence: Callable[[], None], **_: Any) -> Reply:
        fence()
        self.said.append((request.method, request.url.removeprefix("https://pos.example.com")))
        answer = self.pos(request)
        if isinstance(answer, BaseException):
            raise answer
        status, body = answer
        return Reply(status, {}, json.dumps(body).encode())

    def store(self, messages: Any, *, timeout: float = 0) -> None:
        self.stored.extend(messages)

    def take(
        self,
        record: Any,
        action: Action = Action.SUBMIT,
        *,
        settled: bool = True,
        may_call: bool = True,
        expired: bool = False,
        **said: Any,
    ) -> Decision:
        """Process a message from its delivery to its acknowledgement."""
        attempt: Attempt[Any] = Attempt(
            None, received(record, said), action, may_call=may_call, expired=expired
        )
        decision = self.spine.attempt(attempt, timeout=PATIENCE)
        assert attempt.outcome is not None
        assert (decision is not None) is settled
        return decision or Decision(attempt.outcome)

    def promise(self, guarantee: Guarantee) -> None:
        """Have an adapter of the reference API with this guarantee."""
        adapter = RestAdapter()
        adapter.guarantee = guarantee  # type: ignore[misc]
        self.adapters["rest"] = adapter

    def take_cancel(self, order_id: str = "o1", *, seconds: float = 60) -> Decision:
        """Process a cancel request for an order with a deadline this many seconds away."""
        return self.take(self.a_request(order_id, seconds=seconds), Action.CANCEL)

    def an_order(
        self, order_id: str = "o1", *, seconds: float = 600, **fields: Any
    ) -> dict[str, Any]:
        """An order that was placed now."""
        now = self.clock.now()
        until = (now + timedelta(seconds=seconds)).isoformat()
        return an_order(order_id, "m", placed_at=now.isoformat(), deliver_by=until, **fields)

    def a_request(self, order_id: str = "o1", *, seconds: float = 60) -> dict[str, Any]:
        """A request to cancel it."""
        until = (self.clock.now() + timedelta(seconds=seconds)).isoformat()
        return {"order_id": order_id, "merchant_id": "m", "deliver_by": until}

    def wait(self, seconds: float) -> None:
        self.hand.seconds += seconds
        self.directory.look()  # as its thread does, each second

    def publish_events(self) -> list[str]:
        """Publish recorded events; returns the types of all published ones."""
        outbox = Outbox(self.database)
        term = outbox.take("leader", outbox.look()[0].epoch)
        assert term is not None
        while (after := outbox.assign(term, 100)) != term:
            assert after is not None
            term = replace(after, published=after.assigned)
        outbox.close()
        return [kind for kind, *_ in self.rows("select type from events order by position")]

    def recorded(self, order_id: str = "o1") -> list[tuple[str, str | None]]:
        """The recorded events of an order: type, and the reason's code."""
        query = "select type, reason_code from events where order_id = :id order by id"
        return [(kind, code) for kind, code in self.rows(query, id=order_id)]

    def row_state(self, order_id: str = "o1", action: str = "submit") -> str | None:
        """The state of its row."""
        query = "select state from orders where order_id = :id and action = :action"
        found = self.rows(query, id=order_id, action=action)
        return found[0][0] if found else None

    def repeated(self) -> list[dict[str, Any]]:
        """The events that were repeated out of order since the last call."""
        again = [each for each in self.stored if each.exchange == "order-events"]
        self.stored = [each for each in self.stored if each.exchange != "order-events"]
        return [json.loads(each.body) for each in again]

    def dead(self) -> list[str]:
        """The reason codes of dead-lettered messages."""
        return [
            each.headers["x-reason-code"]
            for each in self.stored
            if each.routing_key == "orders.dead"
        ]

    def rows(self, query: str, **values: Any) -> list[Any]:
        with self.database.connect() as connection:
            return list(connection.execute(text(query), values))


def deliver(
    gate: Gateway, message: RawMessage, action: Action = Action.SUBMIT, **facts: Any
) -> Decision:
    """Attempt once to do as a message asks, and decide; nothing is committed."""
    attempt: Attempt[Any] = Attempt(facts.pop("order", None), message, action, **facts)
    return gate.spine._decided(attempt, gate.spine._read(attempt))
