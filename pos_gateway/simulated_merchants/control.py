"""Questions and instructions under ``/_/``: the truth, and how merchants behave from now on."""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from pos_gateway.simulated_merchants import replies
from pos_gateway.simulated_merchants.connection import ClientConnections, Exchange
from pos_gateway.simulated_merchants.errors import ScenarioError
from pos_gateway.simulated_merchants.levels import BUCKETS, Past
from pos_gateway.simulated_merchants.orders import ReceivedOrder
from pos_gateway.simulated_merchants.pos import PointOfSale
from pos_gateway.simulated_merchants.records import Counts
from pos_gateway.simulated_merchants.watch import Watches


class Control:
    """The control API. Its own requests are counted nowhere.

    Lists of orders are built in one go, while which no merchant answers: ask when a run is over.
    """

    def __init__(self, pos: PointOfSale, connections: ClientConnections) -> None:
        self._pos = pos
        self._records = pos.records
        self._connections = connections
        self._watches = Watches(pos.records)

    def handle(self, exchange: Exchange) -> None:
        """Answer one request; a mistake in it is answered with 400 and what would do."""
        try:
            value = self._dispatch(exchange)
        except (ScenarioError, ValueError) as wrong:
            exchange.answer(replies.error_reply(400, "bad_request", str(wrong)))
            return
        if value is not None:
            exchange.answer(replies.json_reply(200, value))

    def _dispatch(self, exchange: Exchange) -> object:
        url = urlsplit(exchange.target.decode("latin-1"))
        query = dict(parse_qsl(url.query))
        path = [unquote(part) for part in url.path.split("/")[2:]]
        match (exchange.method, path):
            case (b"GET", ["summary"]):
                return self._summary()
            case (b"GET", ["merchants"]):
                return {id_: self._merchant(id_) for id_ in self._records.merchants}
            case (b"GET", ["merchants", merchant]):
                return self._merchant(merchant)
            case (b"GET", ["orders"]):
                return self._orders(query.get("merchant"), lambda order: True)
            case (b"GET", ["merchants", merchant, "orders", order_id]):
                return self._order(exchange, merchant, order_id)
            case (b"GET", ["doubled"]):
                return self._orders(None, lambda order: order.creates > 1)
            case (b"GET", ["timeline"]):
                return self._by_bucket(self._records.timeline, float(query.get("since", 0.0)))
            case (b"GET", ["levels"]):
                return self._by_bucket(self._records.levels, float(query.get("since", 0.0)))
            case (b"GET", ["feed"]):
                return self._records.feed.since(int(query.get("since", 0)))
            case (b"GET", ["arrivals"]):
                return self._arrivals()
            case (b"GET", ["wait"]):
                return self._watches.wait(exchange, query)
            case (b"PUT", ["merchants", pattern, "profile"]):
                return self._switch(pattern, exchange.body)
            case (b"POST", ["reset"]):
                return self._reset(exchange)
        exchange.answer(replies.NOT_FOUND)
        return None

    def _summary(self) -> dict[str, Any]:
        merchants = self._records.merchants.values()
        busiest = max(merchants, key=lambda each: each.counts.max_in_flight, default=None)
        return {
            **self._records.totals.as_json(),
            "orders": len(self._records.orders),
            "merchants": len(merchants),
            "busiest_merchant": busiest.id if busiest else None,
            "max_in_flight_per_merchant": busiest.counts.max_in_flight if busiest else 0,
            "hanging": len(self._pos.hanging),
            "late": self._records.lateness.as_json(),
            "malformed": self._records.malformed,
            "profiles": {name: c.as_json() for name, c in self._records.profiles.items()},
            "connections": self._connections.as_json(),
            "cpu_seconds": time.process_time(),
        }

    def _merchant(self, merchant_id: str) -> dict[str, Any]:
        merchant = self._records.merchants.get(merchant_id)
        if merchant is None:  # nothing has come to it yet, which is no mistake
            group, profile = self._pos.scenario.cast(merchant_id)
            return {"group": group, "profile": profile.name, "orders": 0, **Counts().as_json()}
        return {
            "group": merchant.group,
            "profile": merchant.profile.name,
            "orders": merchant.orders,
            **merchant.counts.as_json(),
        }

    def _orders(
        self, merchant_id: str | None, wanted: Callable[[ReceivedOrder], bool]
    ) -> list[dict[str, Any]]:
        return [
            _order_json(merchant, order_id, order)
            for merchant, order_id, order in self._records.orders
            if merchant_id in (None, merchant) and wanted(order)
        ]

    def _order(self, exchange: Exchange, merchant_id: str, order_id: str) -> object:
        order = self._records.orders.find(merchant_id, order_id)
        if order is None:
            exchange.answer(replies.NOT_FOUND)
            return None
        body = None if order.body is None else order.body.decode("utf-8", "replace")
        return {**_order_json(merchant_id, order_id, order), "body": body}

    def _by_bucket(self, groups: Mapping[str, Past], since: float) -> dict[str, Any]:
        past = {group: buckets.since(since) for group, buckets in groups.items()}
        return {"bucket_seconds": 1 / BUCKETS, "groups": past}

    def _arrivals(self) -> dict[str, list[Any]]:
        orders = list(self._records.orders)
        return {
            "merchants": [merchant for merchant, _, _ in orders],
            "order_ids": [order_id for _, order_id, _ in orders],
            "arrived_at": [order.first_at for _, _, order in orders],
        }

    def _switch(self, pattern: str, body: bytes) -> dict[str, Any]:
        value = json.loads(body)
        release = False
        if isinstance(value, dict):
            release = bool(value.pop("release", False))
            value = value.get("profile", value)
        profile = self._pos.scenario.profile(value)
        self._pos.switch(pattern, profile, release=release)
        return {"pattern": pattern, "profile": profile.name}

    def _reset(self, exchange: Exchange) -> dict[str, Any]:
        self._watches.end()
        self._connections.reset(spare=exchange)
        self._pos.reset()
        return {}


def _order_json(merchant_id: str, order_id: str, order: ReceivedOrder) -> dict[str, Any]:
    return {
        "merchant": merchant_id,
        "order_id": order_id,
        "requests": order.requests,
        "creates": order.creates,
        "first_at": order.first_at,
        "last_at": order.last_at,
        "first_monotonic": order.first_monotonic,
        "last_monotonic": order.last_monotonic,
        "statuses": order.statuses,
        "traces": order.traces,
        "state": order.state() if order.creates else None,
    }
