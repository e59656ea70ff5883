"""Merchants that share one POS, a kitchen with several brands, and have orders with the same id."""

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

import pytest

from pos_gateway.adapters.marks import merchant_digest
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind, Outcome
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.transport.errors import NoValidReply
from pos_gateway.transport.exchange import Reply, Request, Send
from tests.adapters.scripted import reply
from tests.adapters.vendors import (
    CLOVER,
    SQUARE,
    SQUARE_PAID,
    TOAST,
    Vendor,
    body,
    guid,
    sku_of,
    square_made,
    square_payment,
)
from tests.gate import Clock, Gate
from tests.orders import an_order

Body = dict[str, Any]
#: When each order is placed, and made at its POS, by the gate's clock: what the adapters compare.
NOW = Clock().now()


class Kitchen:
    """One POS, named by all brands' merchants."""

    vendor: ClassVar[Vendor]

    def __init__(self) -> None:
        self.orders: list[Body] = []
        self.refuses = False
        self.loses = False

    def __call__(self, request: Request) -> Reply:
        answer = self.handle(request, json.loads(request.body or b"{}"))
        if self.loses and self.orders and request.changes:
            raise NoValidReply("timeout", "no reply in time")
        return answer

    def handle(self, request: Request, said: Body) -> Reply:
        raise NotImplementedError

    def unmark(self, made: Body) -> None:
        """Turn the order into one that the previous release sent."""
        raise NotImplementedError

    def is_cancelled(self, made: Body) -> bool:
        raise NotImplementedError

    def merchant(self, brand: str) -> Merchant:
        record = {"base_url": "https://pos.example.com", "adapter": self.vendor.adapter.name}
        return Merchant.parse({"id": brand, **record, **self.vendor.record})

    def submit(self, order: Order) -> Outcome:
        return self.vendor.create(order, Send(self), self.merchant(order.merchant_id))

    def look_up(self, order: Order) -> Outcome | None:
        return self.vendor.look_up(order, Send(self), self.merchant(order.merchant_id))

    def cancel(self, order: Order) -> Outcome:
        return self.vendor.undo(order, Send(self), self.merchant(order.merchant_id))


class Square(Kitchen):
    vendor = SQUARE

    def handle(self, request: Request, said: Body) -> Reply:
        if request.url.endswith("/search"):
            return reply(200, {"orders": self.orders})
        if request.method in ("GET", "PUT"):
            [made] = [each for each in self.orders if request.url.endswith(f"/{each['id']}")]
            if request.method == "PUT":
                made.update(state="CANCELED", version=made["version"] + 1)
            return reply(200, {"order": made})
        if request.url.endswith("/payments"):
            [made] = [each for each in self.orders if each["id"] == said["order_id"]]
            made.update(SQUARE_PAID)
            return reply(200, {"payment": square_payment("1001")})
        if self.refuses:
            return reply(400, {"errors": [{"code": "BAD_REQUEST"}]})
        for made in self.orders:
            if made["key"] == said["idempotency_key"]:
                if made["said"] == said["order"]:
                    return reply(200, {"order": made})
                return reply(400, {"errors": [{"code": "IDEMPOTENCY_KEY_REUSED"}]})
        made = {**square_made(said["order"]), "id": f"S{len(self.orders)}"}
        self.orders.append({**made, "key": said["idempotency_key"], "said": said["order"]})
        return reply(200, {"order": made})

    def unmark(self, made: Body) -> None:
        made["metadata"] = {"order_id": made["metadata"]["order_id"]}
        made["said"] = {**made["said"], "metadata": made["metadata"]}

    def is_cancelled(self, made: Body) -> bool:
        return bool(made["state"] == "CANCELED")


class Toast(Kitchen):
    vendor = TOAST

    def handle(self, request: Request, said: Body) -> Reply:
        path = urlsplit(request.url).path
        for check in said.get("checks", []):
            amount = 8.5 * check["selections"][0]["quantity"]
            check.update(amount=amount - 1, totalAmount=amount, paymentStatus="CLOSED")
        if path.endswith("/prices"):
            return reply(200, said)
        if request.method == "GET" or path.endswith("/void"):
            name = unquote(path.removesuffix("/void").rpartition("/")[2])
            for made in self.orders:
                if name in (made["guid"], made["externalId"]):
                    made["voided"] = made["voided"] or path.endswith("/void")
                    return reply(200, made)
            return reply(404)
        if self.refuses:
            return reply(400, {"message": "an item is out of stock"})
        if any(made["externalId"] == said["externalId"] for made in self.orders):
            return reply(400, {"message": "externalId is used"})
        known = {"guid": guid(len(self.orders)), "approvalStatus": "APPROVED", "voided": False}
        self.orders.append({**said, **known, "createdDate": _said(NOW)})
        return reply(200, self.orders[-1])

    def unmark(self, made: Body) -> None:
        made["externalId"] = made["externalId"][: -len("-0123456789ab")]

    def is_cancelled(self, made: Body) -> bool:
        return bool(made["voided"])


class Clover(Kitchen):
    vendor = CLOVER

    def handle(self, request: Request, said: Body) -> Reply:
        path = urlsplit(request.url).path
        known_as = path.rpartition("/orders/")[2] if "/orders/" in path else ""
        [made] = [each for each in self.orders if each["id"] == known_as.partition("/")[0]] or [{}]
        if path.endswith("/checkouts"):
            return reply(200, {"total": _clover_total(said)})
        if request.method == "GET":
            return reply(200, made or {"elements": self.orders})
        if request.method == "DELETE":
            made["deletedTime"] = 1
            return reply(200)
        if path.endswith("/payments"):
            return reply(200, {**said, "id": "P"})
        if path.endswith("/print_event"):
            self.orders[-1]["lineItems"] = {"elements": [{"printed": True}]}
            return reply(200, {"id": "E"})
        if self.refuses:
            return reply(409)
        known = {"id": f"C{len(self.orders)}", "state": "open", "total": _clover_total(said)}
        names = ("note", "externalReferenceId")
        self.orders.append({**{name: said["orderCart"][name] for name in names}, **known})
        return reply(200, self.orders[-1])

    def unmark(self, made: Body) -> None:
        first, _, *rest = made["note"].split(" ")
        made["note"] = " ".join([first, *rest])
        del made["externalReferenceId"]

    def is_cancelled(self, made: Body) -> bool:
        return "deletedTime" in made


def _clover_total(said: Body) -> int:
    return sum(line["price"] for line in said["orderCart"]["lineItems"])


def _said(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.000%z")


@pytest.fixture(params=[Square, Toast, Clover])
def kitchen(request: pytest.FixtureRequest) -> Kitchen:
    made: Callable[[], Kitchen] = request.param
    return made()


def order_of(brand: str, number: int = 1, customer: str = "Ada", order_id: str = "1001") -> Order:
    items = [{"sku": sku_of("b"), "name": "Burger", "quantity": number, "unit_price": 850}]
    fields = {"items": items, "total": 850 * number, "customer": {"name": customer}}
    fields |= {"placed_at": NOW.isoformat(), "deliver_by": (NOW + timedelta(minutes=5)).isoformat()}
    return Order.parse(an_order(order_id, brand, **fields))


A, B = order_of("brand-a"), order_of("brand-b", 2, "Bob")


def test_each_brands_order_is_created_looked_up_and_cancelled_separately(kitchen: Kitchen) -> None:
    outcomes = [kitchen.submit(order) for order in (A, B)]
    assert [each.kind for each in outcomes] == [Kind.ACCEPTED] * 2
    assert len(kitchen.orders) == 2
    for order, outcome in zip((A, B), outcomes, strict=True):
        assert kitchen.look_up(order) == outcome
    assert kitchen.cancel(B).kind is Kind.CANCELLED
    assert [kitchen.is_cancelled(made) for made in kitchen.orders] == [False, True]


def test_an_order_of_another_brand_is_not_ours(kitchen: Kitchen) -> None:
    kitchen.submit(A)
    assert kitchen.look_up(B) is None
    cancelled = kitchen.cancel(B)
    assert cancelled.reason is not None
    assert cancelled.reason.code == "unknown_order"


def test_an_order_of_the_previous_release_is_found_and_cancelled(kitchen: Kitchen) -> None:
    accepted = kitchen.submit(A)
    kitchen.unmark(kitchen.orders[0])
    assert kitchen.look_up(A) == accepted
    assert kitchen.cancel(A).kind is Kind.CANCELLED
    assert kitchen.is_cancelled(kitchen.orders[0])


def test_a_different_order_of_the_previous_release_is_in_doubt(kitchen: Kitchen) -> None:
    kitchen.submit(A)
    kitchen.unmark(kitchen.orders[0])
    known = kitchen.look_up(B)
    assert known is not None
    assert known.kind is Kind.IN_DOUBT
    assert kitchen.cancel(B).kind is Kind.IN_DOUBT
    assert not kitchen.is_cancelled(kitchen.orders[0])


def test_our_order_is_found_beside_one_of_the_previous_release(kitchen: Kitchen) -> None:
    kitchen.submit(A)
    kitchen.unmark(kitchen.orders[0])
    accepted = kitchen.submit(B)
    assert accepted.kind is Kind.ACCEPTED
    assert kitchen.look_up(B) == accepted


def test_two_orders_of_the_previous_release_are_ambiguous() -> None:
    for kitchen in (Square(), Clover()):
        like_a = order_of("brand-b")
        for order in (A, like_a):
            kitchen.submit(order)
            kitchen.unmark(kitchen.orders[-1])
        known = kitchen.look_up(A)
        assert known is not None
        assert known.kind is Kind.IN_DOUBT


def test_a_refused_order_is_not_taken_for_another_brands(kitchen: Kitchen) -> None:
    kitchen.submit(A)
    kitchen.refuses = True
    assert kitchen.submit(B).kind in (Kind.REJECTED, Kind.IN_DOUBT)
    kitchen.unmark(kitchen.orders[0])
    assert kitchen.submit(B).kind is Kind.IN_DOUBT


def test_a_refused_order_at_toast_is_not_taken_for_one_of_another_day() -> None:
    """Toast looks an order up among all orders that it ever had."""
    kitchen, like_a = Toast(), order_of("brand-b")
    kitchen.submit(A)
    kitchen.unmark(kitchen.orders[0])
    kitchen.refuses = True
    for days, kind in ((1, Kind.REJECTED), (0, Kind.ACCEPTED)):
        kitchen.orders[0]["createdDate"] = _said(NOW - timedelta(days=days))
        assert kitchen.submit(like_a).kind is kind
    for odd in ("yesterday", None, "2020-01-01", 7):
        kitchen.orders[0]["createdDate"] = odd
        assert kitchen.submit(like_a).kind is Kind.ACCEPTED


def test_an_order_in_doubt_since_the_previous_release_is_created_once(
    kitchen: Kitchen, tmp_path: Path
) -> None:
    def pos(request: Request) -> Any:
        answer = kitchen(request)
        return answer.status, json.loads(answer.body)

    gate = Gate(tmp_path, pos)
    MerchantStore(gate.database).put([kitchen.merchant("m")])
    order = {**gate.an_order(seconds=3600), **_content(A)}
    kitchen.loses = True
    gate.take(order)
    kitchen.unmark(kitchen.orders[0])
    kitchen.loses = False
    gate.wait(60)
    gate.ledger.catch_up()
    gate.take(order)
    assert gate.recorded() == [("accepted", None)]
    assert len(kitchen.orders) == 1


def _content(order: Order) -> Body:
    fields = json.loads(order.source)
    return {name: fields[name] for name in ("items", "total", "customer")}


def test_the_longest_ids_fit_into_a_mark_unchanged() -> None:
    brands = ["m" * 127 + last for last in "ab"]
    for vendor, mark, most in (
        (SQUARE, lambda sent: json.dumps(sent["order"]["metadata"]), 2 * 255),
        (TOAST, lambda sent: sent["externalId"].partition(":")[2], 256),
        (CLOVER, lambda sent: sent["orderCart"]["note"].removesuffix(" Ada"), 255),
    ):
        marks = set()
        for brand in brands:
            order, sent = order_of(brand, order_id="x" * 128), list[Request]()

            def send(request: Request) -> Reply:
                sent.append(request)  # noqa: B023
                prices = {"checks": [{"amount": 8, "totalAmount": 8.5}], "total": 850}
                return reply(200, prices)

            vendor.create(order, Send(send))
            found = mark(body(sent[-1]))
            assert "x" * 128 in found
            assert brand in found or found.endswith(merchant_digest(order))
            assert len(found) <= most
            marks.add(found)
        assert len(marks) == 2
