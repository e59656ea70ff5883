"""The replies of each POS, from its public documentation: the conformance suite's script."""

import hashlib
import json
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

from pos_gateway.adapters import (
    clover_api,
    clover_order,
    hubrise_order,
    square_api,
    square_order,
    toast_order,
)
from pos_gateway.adapters.clover import CloverAdapter
from pos_gateway.adapters.hubrise import HubRiseAdapter
from pos_gateway.adapters.protocol import Adapter
from pos_gateway.adapters.rest import RestAdapter
from pos_gateway.adapters.square import SquareAdapter
from pos_gateway.adapters.steps import steps_of
from pos_gateway.adapters.toast import ToastAdapter
from pos_gateway.adapters.unsupported import NOTHING, Reads
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Item, Modifier, Order
from pos_gateway.domain.outcome import Kind, Outcome
from pos_gateway.transport.exchange import Reply, Request, Send
from testkit.vendors import hubrise
from testkit.vendors.way import VendorSend, Way
from tests.adapters.scripted import reply
from tests.adapters.toast_pos import ToastPos
from tests.orders import an_order
from tests.planting import ROOT

Body = dict[str, Any]
ADDRESS = {
    "line1": "1 Main St",
    "city": "Boston",
    "region": "MA",
    "postal_code": "02215",
    "country": "US",
}


@dataclass(frozen=True)
class Vendor:
    """One POS: the merchant's record, and replies that depend on the order."""

    adapter: Adapter
    record: Body
    #: A complete acceptance of the order with this id.
    accepted: Callable[[str], Body]
    #: The reply to a look-up of the order.
    found: Callable[[Body], Reply]
    #: The replies of a POS that does not know the order.
    unknown: list[Reply]
    #: Each documented refusal with the reason's code.
    refusals: list[tuple[Reply, str]]
    #: The total of the request that creates the order, in minor units.
    comes_to: Callable[[Order, Body], int]
    #: The idempotency key, or its equivalent.
    key: Callable[[Request], object]
    #: The replies that lead to the order being cancelled.
    cancelled: Callable[[Body], list[Reply]]
    #: The replies before the order is created.
    before: Callable[[Order], list[Reply | Callable[[Request], Reply]]] = lambda _: []
    #: The POS that checks and prices the request which creates the order; None: the acceptance.
    pos: Callable[[Order], Callable[[Request], Reply]] | None = None
    #: Whether an order's mark at the POS names its merchant: several merchants may be at one POS.
    marks_merchants: bool = True
    #: Optional fields that have a place at the POS.
    reads: Reads = NOTHING
    #: Changes to the acceptance, and their outcomes.
    states: list[tuple[Body, Kind]] = field(default_factory=list)
    has_202: bool = False
    #: The POS's ids of the request's items, each before its modifiers; None: an ad hoc item.
    #: Without this the adapter ignores catalogs.
    item_ids: Callable[[Body], list[str | None]] | None = None

    @property
    def merchant(self) -> Merchant:
        record = {"id": "fast-1", "adapter": self.adapter.name, **self.record}
        return Merchant.parse({"base_url": "https://pos.example.com", **record})

    def create(self, order: Order, send: Send, merchant: Merchant | None = None) -> Outcome:
        """Take the first step at the POS, which is the only one of most."""
        step = steps_of(self.adapter)[0]
        return step.run(order, merchant or self.merchant, {}, send)

    def look_up(self, order: Order, send: Send, merchant: Merchant | None = None) -> Outcome | None:
        """Look up the first step."""
        step = steps_of(self.adapter)[0]
        assert step.look_up is not None
        return step.look_up(order, merchant or self.merchant, {}, send)

    def undo(self, order: Order, send: Send, merchant: Merchant | None = None) -> Outcome:
        """Undo the first step."""
        step = steps_of(self.adapter)[0]
        assert callable(step.undo)
        return step.undo(order, merchant or self.merchant, {}, send)

    def creates(self, order: Order) -> Reply | Callable[[Request], Reply]:
        """The reply to the request that creates the order."""
        if self.pos is None:
            return reply(200, self.accepted(order.order_id))
        return self.pos(order)


#: The merchant's, in its orders' marks.
DIGEST = hashlib.sha256(b"fast-1").hexdigest()[:12]


def guid(*parts: object) -> str:
    """The same GUID for the same parts."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, repr(parts)))


def sku_of(*parts: object) -> str:
    """A sku that every POS takes: Toast's has the GUID of the item's group before its own."""
    return f"{guid('group', *parts)}/{guid(*parts)}"


def known_as(sku: str) -> str:
    """The POS's id of an item in the merchant's catalog."""
    return sku_of("at the POS", sku)


def order_of(order_id: str = "order/1", **fields: Any) -> Order:
    """An order with skus that every POS takes."""
    items = [{"sku": sku_of("burger"), "name": "Burger", "quantity": 2, "unit_price": 850}]
    return Order.parse(an_order(order_id, **{"items": items, **fields}))


def body(request: Request) -> Body:
    value = json.loads(request.body or b"")
    assert isinstance(value, dict)
    return value


# The reference API


def _rest_accepted(order_id: str) -> Body:
    return {"id": "7", "order_id": order_id, "status": "accepted"}


REST = Vendor(
    adapter=RestAdapter(),
    record={},
    accepted=_rest_accepted,
    found=lambda accepted: reply(200, accepted),
    unknown=[reply(404)],
    refusals=[
        (
            reply(422, {"error": {"code": "item_unavailable", "message": "none"}}),
            "item_unavailable",
        ),
        (reply(400, {"error": {"code": "store_closed", "message": "none"}}), "store_closed"),
        (reply(422), "rejected"),
    ],
    comes_to=lambda _, sent: int(sent["total"]),
    key=lambda request: request.headers["Idempotency-Key"],
    cancelled=lambda accepted: [reply(200, {**accepted, "status": "cancelled"})],
    states=[
        ({"status": "pending"}, Kind.PENDING),
        ({"status": "rejected"}, Kind.REJECTED),
        ({"status": "shipped"}, Kind.IN_DOUBT),
        ({"order_id": "another"}, Kind.IN_DOUBT),
    ],
    has_202=True,
    marks_merchants=False,
)

# Square


def _square_accepted(order_id: str) -> Body:
    content = {
        "id": "CAISENgvlJ6jLWAzERDzjyHVybY",
        "location_id": "L1",
        "metadata": {"order_id": order_id, "merchant_id": "fast-1"},
        "state": "OPEN",
        "version": 1,
        "fulfillments": [{"uid": "F0", "type": "PICKUP", "state": "PROPOSED"}],
        "total_money": {"amount": 1700, "currency": "EUR"},  # of ``order_of``
    }
    return {"order": content}


#: What the payment of an Order of Square's changes in the Order.
SQUARE_PAID: Body = {
    "tenders": [{"id": "T1", "payment_id": "T1", "type": "OTHER"}],
    "net_amount_due_money": {"amount": 0, "currency": "EUR"},
}


def square_payment(order_id: str, **fields: Any) -> Body:
    """The Payment of Square's that the gateway has recorded for the order."""
    return {
        "id": "T1",
        "source_type": "EXTERNAL",
        "external_details": {"type": "EXTERNAL", "source": "x", "source_id": order_id},
        "total_money": {"amount": 1700, "currency": "EUR"},
        **fields,
    }


def square_made(sent: Body) -> Body:
    """The Order that Square makes of this one: with a total of its lines."""
    [currency] = {line["base_price_money"]["currency"] for line in sent["line_items"]}
    [fulfillment] = sent["fulfillments"]
    made = {**sent, "id": "CAISENgvlJ6jLWAzERDzjyHVybY", "state": "OPEN", "version": 1}
    made["fulfillments"] = [{**fulfillment, "uid": "F0"}]
    return {**made, "total_money": {"amount": square_total(sent), "currency": currency}}


def _square_pos(order: Order) -> Callable[[Request], Reply]:
    def handle(request: Request) -> Reply:
        return reply(200, {"order": square_made(body(request)["order"])})

    return handle


def _square_changed(**change: Any) -> Body:
    return {"order": {**_square_accepted("order/1")["order"], **change}}


def _square_error(code: str, status: int = 400) -> Reply:
    error = {"category": "INVALID_REQUEST_ERROR", "code": code, "detail": "no\nway", "field": "f"}
    return reply(status, {"errors": [error]})


def square_total(sent: Body) -> int:
    """The total of an Order of Square's."""
    total = 0
    for line in sent["line_items"]:
        assert line["base_price_money"]["amount"] >= 0
        each = line["base_price_money"]["amount"]
        for modifier in line["modifiers"]:
            assert modifier["base_price_money"]["amount"] >= 0
            each += int(modifier["quantity"]) * modifier["base_price_money"]["amount"]
        total += int(line["quantity"]) * each
    return total


def _square_items(sent: Body) -> list[str | None]:
    found: list[str | None] = []
    for line in sent["order"]["line_items"]:
        for each in (line, *line["modifiers"]):
            assert ("name" in each) is not ("catalog_object_id" in each)
            found.append(each.get("catalog_object_id"))
    return found


SQUARE = Vendor(
    adapter=SquareAdapter(),
    reads=square_order.READS,
    record={"pos": {"location_id": "L1"}},
    accepted=_square_accepted,
    found=lambda accepted: reply(200, {"orders": [{"id": "other"}, accepted["order"]]}),
    unknown=[reply(200, {})],
    refusals=[
        (_square_error(code), reason)
        for code, reason in square_api.REJECTIONS.items()
        if code != "BAD_REQUEST"
    ]
    + [(_square_error("SOMETHING_NEW"), "other"), (reply(422, b"<html>"), "other")],
    comes_to=lambda _, sent: square_total(sent["order"]),
    pos=_square_pos,
    key=lambda request: body(request)["idempotency_key"],
    cancelled=lambda accepted: [
        reply(200, {"orders": [accepted["order"]]}),
        reply(200, _square_changed(state="CANCELED")),
    ],
    states=[
        (_square_changed(state="COMPLETED"), Kind.ACCEPTED),
        (_square_changed(state="CANCELED"), Kind.CANCELLED),
        (_square_changed(state="DRAFT"), Kind.IN_DOUBT),
        (_square_changed(state=["OPEN"]), Kind.IN_DOUBT),
        (_square_changed(id=None), Kind.IN_DOUBT),
        (_square_changed(metadata={"order_id": "another"}), Kind.IN_DOUBT),
        (_square_changed(location_id="L2"), Kind.IN_DOUBT),
        (_square_changed(total_money=None), Kind.IN_DOUBT),
        (_square_changed(fulfillments=[{"state": "PROPOSED"}]), Kind.ACCEPTED),
        (_square_changed(fulfillments=[{"state": "COMPLETED"}]), Kind.ACCEPTED),
        (_square_changed(fulfillments=[{"state": "CANCELED"}]), Kind.CANCELLED),
        (_square_changed(fulfillments=[{"state": "FAILED"}]), Kind.CANCELLED),
        (_square_changed(fulfillments=[{"state": "FAILED"}], **SQUARE_PAID), Kind.REJECTED),
        (_square_changed(fulfillments=[]), Kind.REJECTED),
        ({"errors": [{"code": "X"}]}, Kind.IN_DOUBT),
    ],
    item_ids=_square_items,
)

# Toast

_TOAST = {
    "restaurant": guid("restaurant"),
    "dining_option": guid("dining option"),
    "naming_authority": "GATEWAY",
    "payment": guid("payment"),
}


def _toast_accepted(order_id: str) -> Body:
    check = {"amount": 17.0, "totalAmount": 17.0, "paymentStatus": "CLOSED"}  # of ``order_of``
    return {
        "guid": guid("order"),
        "entityType": "Order",
        "externalId": f"GATEWAY:{order_id}-{DIGEST}",
        "approvalStatus": "APPROVED",
        "checks": [check],
    }


def toast_menu(order: Order) -> list[Body]:
    """A menu with the order's prices, by its skus and by the catalog's ids."""
    return [
        {**each, "options": [*_listed(item.modifiers)]}
        for item in order.items
        for each in _listed([item])
    ]


def _listed(parts: Iterable[Item | Modifier]) -> Iterator[Body]:
    for each in parts:
        for name in (each.sku, known_as(each.sku)) if each.sku else ():
            group, _, own = name.partition("/")
            yield {"group": group, "guid": own, "name": each.name, "price": each.unit_price}


def toast_pos(order: Order, **restaurant: Any) -> ToastPos:
    """The restaurant whose prices the order has; guests eat in, so that none has to have a name."""
    facts = {
        "guid": _TOAST["restaurant"],
        "menu": toast_menu(order),
        "dining_options": {_TOAST["dining_option"]: "DINE_IN"},
        "payment_types": {_TOAST["payment"]: "Paid elsewhere"},
        "currency": order.currency,
    }
    return ToastPos(**{**facts, **restaurant})


def _toast_total(order: Order, sent: Body) -> int:
    """As Toast prices it, on a menu that is the backend's."""
    [check] = sent["checks"]
    [payment] = check["payments"]
    assert Decimal(str(payment["amount"])) * 100 == order.total
    assert Decimal(str(payment["tipAmount"])) * 100 == (order.tip or 0)
    [priced] = toast_pos(order).toast.priced(sent)["checks"]
    return int(Decimal(str(priced["totalAmount"])) * 100)


def _toast_items(sent: Body) -> list[str | None]:
    [check] = sent["checks"]
    found: list[str | None] = []
    for selection in check["selections"]:
        for each in (selection, *selection["modifiers"]):
            group = each.get("itemGroup") or each.get("optionGroup")
            found.append(f"{group['guid']}/{each['item']['guid']}" if "item" in each else None)
    return found


TOAST = Vendor(
    adapter=ToastAdapter(),
    record={"pos": _TOAST, "request_timeout": 30},
    accepted=_toast_accepted,
    found=lambda accepted: reply(200, accepted),
    unknown=[reply(404), reply(404)],
    # What Toast refuses is looked up as well; see ``test_toast.py``.
    refusals=[],
    comes_to=_toast_total,
    key=lambda request: body(request)["externalId"],
    cancelled=lambda accepted: [
        reply(200, accepted),
        reply(200, {**accepted, "voided": True}),
    ],
    before=lambda order: [toast_pos(order)] * 3,  # prices, restaurant, stock
    reads=toast_order.READS,
    pos=toast_pos,
    states=[
        ({"approvalStatus": "FUTURE"}, Kind.ACCEPTED),
        ({"approvalStatus": "NEEDS_APPROVAL"}, Kind.PENDING),
        ({"approvalStatus": "NOT_APPROVED"}, Kind.REJECTED),
        ({"approvalStatus": None}, Kind.IN_DOUBT),
        ({"voided": True}, Kind.CANCELLED),
        ({"checks": []}, Kind.IN_DOUBT),
        ({"checks": [{"amount": 17, "paymentStatus": "CLOSED"}]}, Kind.IN_DOUBT),
        ({"checks": [{"amount": 17, "totalAmount": 17}]}, Kind.IN_DOUBT),
        ({"voided": True, "checks": [{"amount": 0, "totalAmount": 0}]}, Kind.CANCELLED),
        ({"voided": True, "checks": [{"amount": 17, "totalAmount": 17}]}, Kind.CANCELLED),
        ({"voided": True, "checks": [{"amount": 17, "totalAmount": 18.5}]}, Kind.REJECTED),
        ({"externalId": "GATEWAY:another"}, Kind.IN_DOUBT),
        ({"guid": 7}, Kind.IN_DOUBT),
    ],
    item_ids=_toast_items,
)

# Clover


def _clover_accepted(order_id: str) -> Body:
    return {
        "id": "8WAD6KV8D90KR",
        "currency": "EUR",
        "state": "open",
        "note": f"[{order_id}] #{DIGEST} Ada",
        "total": 1700,  # of ``order_of``
    }


def _clover_pos(order: Order) -> Callable[[Request], Reply]:
    def handle(request: Request) -> Reply:
        sent = body(request)
        made = {"note": sent["orderCart"]["note"], "total": _clover_total(order, sent)}
        return reply(200, {"id": "8WAD6KV8D90KR", "state": "open", **made})

    return handle


def _clover_total(_: Order, sent: Body) -> int:
    total = 0
    for line in sent["orderCart"]["lineItems"]:
        assert line["price"] >= 0
        amounts = [each["amount"] for each in line.get("modifications", ())]
        assert min(amounts, default=0) >= 0
        total += line["price"] + sum(amounts)
    return total


def _clover_items(sent: Body) -> list[str | None]:
    found: list[str | None] = []
    for line in sent["orderCart"]["lineItems"]:
        assert ("name" in line) is not ("item" in line)
        found.append(line.get("item", {}).get("id"))
        found += [each["modifier"]["id"] for each in line.get("modifications", ())]
    return found


CLOVER = Vendor(
    adapter=CloverAdapter(),
    reads=clover_order.READS,
    record={"pos": {"merchant_id": "M1", "tender": "EXTERNAL"}, "request_timeout": 30},
    accepted=_clover_accepted,
    found=lambda accepted: reply(200, {"elements": [{"id": "other", "note": None}, accepted]}),
    unknown=[reply(200, {"elements": []})] * 3,
    refusals=[
        (reply(400, {"message": said, "details": "8NR0\x00"}), reason)
        for said, reason in clover_api.REJECTIONS.items()
    ]
    + [
        (reply(400, {"message": "no\x00way"}), "invalid_order"),
        (reply(400, b"<html>"), "invalid_order"),
    ],
    comes_to=_clover_total,
    before=lambda order: [reply(200, {"total": order.total})],
    pos=_clover_pos,
    key=lambda request: body(request)["orderCart"]["note"],
    cancelled=lambda accepted: [
        reply(200, {"elements": [accepted]}),
        reply(200, accepted),
        reply(200, {"elements": [accepted]}),
        reply(200, b""),
    ],
    states=[
        ({"state": "locked"}, Kind.ACCEPTED),
        ({"state": "Open"}, Kind.ACCEPTED),
        ({"state": "Paid"}, Kind.ACCEPTED),
        ({"currency": "eur"}, Kind.ACCEPTED),
        ({"total": None}, Kind.IN_DOUBT),
        ({"total": "1700"}, Kind.IN_DOUBT),
        ({"total": 1819}, Kind.REJECTED),
        ({"total": 1819, "deletedTime": 1}, Kind.CANCELLED),
        ({"total": None, "deletedTime": 1}, Kind.CANCELLED),
        ({"state": None}, Kind.IN_DOUBT),
        ({"deletedTime": 1}, Kind.CANCELLED),
        ({"note": "[another] Ada"}, Kind.IN_DOUBT),
        ({"id": ""}, Kind.IN_DOUBT),
    ],
    item_ids=_clover_items,
)

# HubRise


def _hubrise_accepted(order_id: str) -> Body:
    return {
        "id": "5dpm9",
        "location_id": "3r4s3-1",
        "private_ref": f"{order_id}-{DIGEST}",
        "status": "accepted",
        "total": "17.00 EUR",  # of ``order_of``
    }


def hubrise_error(field: str) -> Reply:
    """As in "Errors"."""
    error = {"field": field, "message": "no\nway"}
    said = {"message": "Validation failed", "errors": [error]}
    return reply(422, {**said, "error_type": "unprocessable_entity"})


def _hubrise_pos(order: Order) -> Callable[[Request], Reply]:
    vendor = hubrise.simulator(lambda: datetime.now(UTC), currency=order.currency)
    return VendorSend(Way(vendor), {"X-Access-Token": "token-1"})


def _hubrise_total(order: Order, sent: Body) -> int:
    [paid] = [each["amount"] for each in sent["payments"]]
    amount, currency = paid.split(" ")
    assert currency == order.currency
    return int(Decimal(amount) * 100) - (order.tip or 0)


HUBRISE = Vendor(
    adapter=HubRiseAdapter(),
    reads=hubrise_order.READS,
    record={
        "pos": {"location_id": "3r4s3-1"},
        "auth": {"type": "api_key", "header": "X-Access-Token", "key": "token-1"},
    },
    accepted=_hubrise_accepted,
    found=lambda accepted: reply(200, [accepted]),
    unknown=[reply(200, b"[]")],
    # What HubRise refuses is looked up as well; see ``test_hubrise_truth.py``.
    refusals=[],
    comes_to=_hubrise_total,
    key=lambda request: body(request)["private_ref"],
    cancelled=lambda accepted: [
        reply(200, [accepted]),
        reply(200, {**accepted, "status": "cancelled"}),
    ],
    pos=_hubrise_pos,
    states=[
        *(
            ({"status": status}, Kind.ACCEPTED)
            for status in ("received", "in_preparation", "awaiting_shipment", "awaiting_collection")
        ),
        *(
            ({"status": status}, Kind.ACCEPTED)
            for status in ("in_delivery", "completed", "delivery_failed")
        ),
        ({"status": "new"}, Kind.PENDING),
        ({"status": "rejected"}, Kind.REJECTED),
        ({"status": "cancelled"}, Kind.CANCELLED),
        ({"status": "cancelled", "total": "18.53 EUR"}, Kind.REJECTED),
        ({"status": "cancelled", "total": None}, Kind.CANCELLED),
        ({"status": "in_preparation", "total": "18.53 EUR"}, Kind.IN_DOUBT),
        ({"status": "eaten"}, Kind.IN_DOUBT),
        ({"status": None}, Kind.IN_DOUBT),
        ({"total": None}, Kind.IN_DOUBT),
        ({"total": "17.00"}, Kind.IN_DOUBT),
        ({"private_ref": None}, Kind.IN_DOUBT),
        ({"id": 7}, Kind.IN_DOUBT),
    ],
    item_ids=lambda sent: [
        ref
        for item in sent["items"]
        for ref in (item["sku_ref"], *(each["ref"] for each in item.get("options", ())))
    ],
)

VENDORS = {vendor.adapter.name: vendor for vendor in (REST, SQUARE, TOAST, CLOVER, HUBRISE)}


def _example(name: str) -> Any:
    """A module of ``docs/examples``, which is no package."""
    path = ROOT / "docs" / "examples" / f"{name}.py"
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


#: Adapters of the documents', which the gateway does not have.
EXAMPLES = {
    "shop": replace(REST, adapter=_example("requests_adapter").ShopAdapter(), has_202=False)
}
