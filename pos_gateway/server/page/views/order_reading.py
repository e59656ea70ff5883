"""Reads all that a page shows of one order."""

import time
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import Any

from pydantic_core import from_json
from sqlalchemy import Engine, select

from pos_gateway.adapters.protocol import Adapter
from pos_gateway.adapters.registry import adapters
from pos_gateway.adapters.steps import steps_of
from pos_gateway.broker.message import Message
from pos_gateway.database.schema import merchants
from pos_gateway.domain.errors import AdminError
from pos_gateway.domain.record import identifier
from pos_gateway.events.archive import Archive
from pos_gateway.ledger.order_admin import OrderAdmin, OrderStanding
from pos_gateway.ledger.states import Action, Key
from pos_gateway.ledger.submissions import submitted_at
from pos_gateway.reports.fleet_view import Fleet, FleetTrouble, FleetView
from pos_gateway.runtime.clock import Clock
from pos_gateway.server.page.views.order_life import (
    OrderLifeEntry,
    attempt_entries,
    audit_entries,
    event_entries,
    total,
)
from pos_gateway.server.page.views.order_words import Facts, MerchantFacts
from pos_gateway.server.problems import Problem
from pos_gateway.tokens.token import Role

#: Seconds for which the workers' reports are kept: each open page would else read all of them.
_FLEET_FOR = 2.0
#: What begins an event's order: no text of a field before it has this, since its quotes are escaped.
_ORDER = b',"order":'


class OrderReading:
    """Safe from threads. Raises SQLAlchemyError while the database is away."""

    def __init__(
        self,
        database: Engine,
        orders: OrderAdmin,
        archive: Archive,
        fleet: FleetView,
        clock: Clock,
    ) -> None:
        self._database = database
        self.orders = orders
        self._archive = archive
        self._fleet = fleet
        self.clock = clock
        self._last: tuple[float, Fleet] | None = None

    def facts(self, values: Mapping[str, str]) -> Facts:
        """What is known of the order in a path. Raises Problem 404."""
        found = self.find(values)
        if found is None:
            merchant_id, order_id = (values.get(each, "") for each in ("merchant_id", "order_id"))
            detail = f"no order {order_id[:200]!r} of merchant {merchant_id[:200]!r} is known"
            raise Problem(404, "unknown_order", detail)
        return found

    def to_act_on(self, values: Mapping[str, str]) -> tuple[Key, Facts]:
        """The order's key, and what is known of it now. Raises AdminError."""
        key, found = key_of(values), self.find(values)
        if key is None or found is None:
            raise AdminError("no such order is known any more: nothing was done")
        return key, found

    def find(self, values: Mapping[str, str]) -> Facts | None:
        """The same; None: there is no such order."""
        key = key_of(values)
        if key is None:
            return None
        order, came_at = self.orders.one(key), submitted_at(self._database, key)
        if order is None and came_at is None and self.cancel_request(key) is None:
            return None
        is_open = order is None or not order.state.is_final
        return Facts(
            order,
            came_at,
            self._merchant(key.merchant_id),
            self._trouble(key.merchant_id) if is_open else None,
            self.clock.now().timestamp(),
        )

    def cancel_request(self, key: Key) -> OrderStanding | None:
        """The standing of its cancel request, if there is one."""
        return self.orders.one(Key(key.merchant_id, key.order_id, Action.CANCEL))

    def life(self, key: Key, facts: Facts, role: Role | None) -> list[OrderLifeEntry]:
        """What happened to it, in the order of time; with no role nothing is masked."""
        request = self.cancel_request(key)
        recorded = [
            (action, self.orders.attempts(Key(key.merchant_id, key.order_id, action)))
            for action in Action
        ]
        entries = []
        if facts.submitted_at is not None:
            entries.append(OrderLifeEntry(facts.submitted_at, "Submitted over HTTP"))
        rows = (
            ("A worker had it for the first time", facts.order),
            ("A cancel request came", request),
        )
        for (title, row), (_, attempts) in zip(rows, recorded, strict=True):
            if row is not None:
                # By the database's clock, and an attempt by its worker's: it came first all the same.
                first = min(row.created_at, *(each.at for each in attempts), row.created_at)
                entries.append(OrderLifeEntry(first, title))
        longest = max((total(each) for _, those in recorded for each in those), default=0.0)
        for action, attempts in recorded:
            entries += attempt_entries(attempts, action, role, longest)
        reopened = facts.order.reopened if facts.order is not None else 0
        messages = self._archive.of_order(key, reopened, request.reopened if request else 0)
        entries += event_entries([_event(each) for each in messages], role)
        entries += audit_entries(self.orders.audit(key), role)
        return sorted(entries, key=lambda each: each.at)

    def _merchant(self, merchant_id: str) -> MerchantFacts | None:
        columns = merchants.c.adapter, merchants.c.provider, merchants.c.paused
        with self._database.connect() as connection:
            row = connection.execute(select(*columns).where(merchants.c.id == merchant_id)).first()
        if row is None:
            return None
        adapter = _adapters().get(row.adapter)
        if adapter is None:
            return MerchantFacts(row.adapter, row.provider, row.paused, None)
        return MerchantFacts(
            row.adapter, row.provider, row.paused, adapter.guarantee, steps_of(adapter)
        )

    def _trouble(self, merchant_id: str) -> FleetTrouble | None:
        now, last = time.monotonic(), self._last
        if last is None or now - last[0] > _FLEET_FOR:
            last = self._last = now, self._fleet.now()
        return last[1].trouble(merchant_id)


def key_of(values: Mapping[str, str]) -> Key | None:
    """The key in a path; None: no order can have such ids."""
    merchant_id = identifier(values.get("merchant_id"))
    order_id = identifier(values.get("order_id"))
    return None if merchant_id is None or order_id is None else Key(merchant_id, order_id)


@cache
def _adapters() -> Mapping[str, Adapter]:
    return adapters()


def _event(message: Message) -> dict[str, Any]:
    """An event without its order, which the page has by itself."""
    head, _, _ = message.body.partition(_ORDER)
    event: dict[str, Any] = from_json(head + b"}")
    at = event.get("occurred_at")
    event["at"] = datetime.fromisoformat(at).timestamp() if at else 0.0
    return event
