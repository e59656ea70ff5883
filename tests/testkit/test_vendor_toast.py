"""The simulated Toast refuses what Toast's documents refuse, prices by itself, and keeps the truth."""

import base64
import hashlib
import hmac
import json
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
import requests

from testkit.patience import PATIENCE
from testkit.vendors.server import VendorServer
from testkit.vendors.toast.access import Rates
from tests.testkit.toast_place import (
    ADDRESS,
    BURGER,
    CATCH,
    COKE,
    COURIER_FEE,
    CUSTOMER,
    DELIVERY,
    DINE_IN,
    DRESSINGS,
    DRINKS,
    LOGIN,
    MAINS,
    PLACE,
    RANCH,
    RESTAURANT,
    SALAD,
    SIDES,
    SOUP,
    STAFF,
    TABLE,
    VOUCHER,
    Body,
    Clock,
    Place,
    an_order,
    at,
    item,
    option,
    paid,
)

UNKNOWN = "00000000-0000-0000-0000-000000000000"
NOTE = {"selectionType": "SPECIAL_REQUEST", "displayName": "no ice"}


def without(body: Body, name: str) -> Body:
    return {key: value for key, value in body.items() if key != name}


def of_check(**fields: Any) -> Body:
    return an_order(check=fields)


def of_customer(**fields: Any) -> Body:
    return of_check(customer={**CUSTOMER, **fields})


def of_payment(**fields: Any) -> Body:
    return of_check(payments=[{**paid(8.5), **fields}])


REFUSED: dict[str, tuple[Body, int, str]] = {
    # The definition's fields.
    "a field of no schema": (an_order(note="x"), 400, "note: is no field of Order"),
    "a field that only Toast sets": (an_order(approvalStatus="APPROVED"), 400, "read-only"),
    "no dining option": (without(an_order(), "diningOption"), 400, "diningOption: is required"),
    "no checks": (an_order(checks=[]), 400, "checks"),
    "no selections": (of_check(selections=None), 400, "selections: is required"),
    "a number as text": (an_order(item(quantity="1")), 400, "quantity: must be of type number"),  # type: ignore[arg-type]
    "a type of payment": (of_payment(type="CHEQUE"), 400, "CHEQUE"),
    "a text that is too long": (of_check(tabName="x" * 256), 400, "256 characters"),
    "a time of another form": (an_order(promisedDate="2026-11-20T13:00:00Z"), 400, "promisedDate"),
    "no amount": (of_payment(amount=None), 400, "Payment amount cannot be empty"),
    "a malformed GUID": (an_order(item("burger")), 400, "item.guid"),
    # What does not exist.
    "a dining option": (an_order(diningOption={"guid": UNKNOWN}), 404, f"DiningOption {UNKNOWN}"),
    "an item": (an_order(item(UNKNOWN)), 404, f"MenuItem {UNKNOWN}"),
    "a menu group": (an_order(item(group=UNKNOWN)), 404, f"MenuGroup {UNKNOWN}"),
    "an option": (an_order(item(modifiers=[option(UNKNOWN)])), 404, f"MenuItem {UNKNOWN}"),
    "a modifier group": (
        an_order(item(modifiers=[option(group=UNKNOWN)])),
        404,
        f"MenuOptionGroup {UNKNOWN}",
    ),
    "a payment type": (
        of_payment(otherPayment={"guid": UNKNOWN}),
        404,
        f"AlternatePaymentType {UNKNOWN}",
    ),
    "a table": (
        an_order(diningOption={"guid": DINE_IN}, table={"guid": UNKNOWN}),
        404,
        f"Table {UNKNOWN}",
    ),
    # Selections.
    "no group": (an_order(without(item(), "itemGroup")), 400, "itemGroup"),
    "another item's group": (an_order(item(group=DRINKS)), 400, "in another group"),
    "a modifier without group": (
        an_order(item(modifiers=[without(option(), "optionGroup")])),
        400,
        "optionGroup",
    ),
    "half an item": (an_order(item(quantity=0.5)), 400, "counting number"),
    "another quantity than the item's": (
        an_order(item(quantity=2, modifiers=[option()])),
        400,
        "quantity of a modifier",
    ),
    "too few options": (
        an_order(item(modifiers=[option(SALAD, SIDES)])),
        400,
        f"{DRESSINGS} has 0 selections",
    ),
    "too many options": (an_order(item(modifiers=[option()] * 61)), 400, "has 61 selections"),
    "a price for an item that has one": (an_order(item(openPriceAmount=1)), 400, "no open price"),
    "a long special request": (
        an_order(item(modifiers=[{**NOTE, "displayName": "x" * 1001}])),
        400,
        "1001 characters",
    ),
    "a special request for nothing": (
        an_order(item(modifiers=[{"selectionType": "SPECIAL_REQUEST"}])),
        400,
        "displayName",
    ),
    "an item off the menu": (an_order(item(selectionType="OPEN_ITEM")), 400, "OPEN_ITEM"),
    # The guest.
    "takeout for no one": (of_check(customer=None), 400, "needs a customer"),
    "no last name": (of_customer(lastName=""), 400, "lastName: is required"),
    "no e-mail address": (of_customer(email=None), 400, "email: is required"),
    "a long e-mail address": (of_customer(email="a" * 50 + "@b.c"), 400, "54 characters"),
    "an e-mail address with a plus": (of_customer(email="a+b@c.example"), 400, "e-mail"),
    "a number of nine digits": (of_customer(phone="555010019"), 400, "ten digits"),
    "a delivery to nowhere": (an_order(diningOption={"guid": DELIVERY}), 400, "deliveryInfo"),
    "a state in full": (
        an_order(diningOption={"guid": DELIVERY}, deliveryInfo={**ADDRESS, "state": "Texas"}),
        400,
        "deliveryInfo.state",
    ),
    "a table for takeout": (an_order(table={"guid": TABLE}), 400, "DINE_IN"),
    "a car without description": (
        an_order(curbsidePickupInfo={"transportColor": "blue"}),
        400,
        "transportDescription",
    ),
    # Time.
    "a promise in the past": (
        an_order(promisedDate="2026-11-20T11:00:00.000+0000"),
        400,
        "earlier than openedDate",
    ),
    "the thirteenth month": (
        an_order(promisedDate="2026-13-20T11:00:00.000+0000"),
        400,
        "no date",
    ),
    "twelve minutes": (an_order(requiredPrepTime="PT12M"), 400, "five minutes"),
    # Money.
    "cash": (of_payment(type="CASH"), 400, "CASH is not supported"),
    "a card that was not authorized": (of_payment(type="CREDIT"), 400, "not authorized"),
    "no payment type": (of_payment(otherPayment=None), 400, "otherPayment"),
    "a third decimal": (of_payment(amount=8.505), 400, "two decimals"),
    "less than nothing": (of_payment(tipAmount=-1), 400, "tipAmount is -1"),
    "two discounts": (
        of_check(appliedDiscounts=[{"discount": {"guid": VOUCHER}, "discountAmount": 1}] * 2),
        400,
        "one discount",
    ),
    "an open discount of nothing": (
        of_check(appliedDiscounts=[{"discount": {"guid": VOUCHER}}]),
        400,
        "discountAmount",
    ),
    "a courier for takeout": (
        of_check(
            appliedServiceCharges=[{"serviceCharge": {"guid": COURIER_FEE}, "chargeAmount": 2}]
        ),
        400,
        "not for TAKE_OUT",
    ),
    "an open percentage": (
        of_check(appliedDiscounts=[{"discount": {"guid": STAFF}}]),
        400,
        "open percentage",
    ),
    "taxes of a marketplace": (an_order(marketplaceFacilitatorTaxInfo={}), 400, "read-only"),
    # The rest.
    "an external identifier without authority": (
        an_order(externalId="7"),
        400,
        "InvalidExternalIdentifier",
    ),
    "eleven checks": (an_order(checks=an_order()["checks"] * 11), 413, "too many checks"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_documents_refuse_is_refused(name: str) -> None:
    order, status, words = REFUSED[name]
    place = Place()
    found = place.refused(order)
    assert found[0] == status
    assert words in found[1]
    assert place.toast.facts()["orders"] == []


@pytest.mark.parametrize(
    "order",
    [
        an_order(),
        an_order(item(modifiers=[option(), option(), NOTE])),
        an_order(item(modifiers=[option(SALAD, SIDES, modifiers=[option(RANCH, DRESSINGS)])])),
        an_order(item(BURGER.upper(), MAINS.upper()), entityType="Order", externalId="GW:a/1"),
        an_order(item(CATCH, openPriceAmount=4.5)),
        of_customer(phone="20 7946 0018", phoneCountryCode="44"),
        an_order(diningOption={"guid": DELIVERY}, deliveryInfo={**ADDRESS, "notes": "ring"}),
        an_order(
            diningOption={"guid": DINE_IN},
            table={"guid": TABLE},
            checks=[{"selections": []}],
            numberOfGuests=2,
        ),
        an_order(curbsidePickupInfo={"transportDescription": "a blue car"}),
        an_order(promisedDate="2026-11-20T13:00:00.000+0000", requiredPrepTime="PT1H30M"),
    ],
)
def test_what_the_documents_allow_is_taken(order: Body) -> None:
    place = Place()
    assert place.ask("POST", "/orders/v2/prices", order).status == 200
    assert place.toast.facts()["orders"] == []
    made = place.posted(order)
    assert made["guid"] == place.fact["guid"]


def amounts(place: Place, order: Body) -> tuple[float, float, float]:
    [check] = place.posted(order)["checks"]
    return check["amount"], check["taxAmount"], check["totalAmount"]


def test_prices_and_taxes_are_the_restaurants() -> None:
    assert amounts(Place(tax=6.25), an_order(item(SOUP))) == (8.99, 0.56, 9.55)  # Toast's example
    two = item(quantity=2, modifiers=[option(quantity=2), option(quantity=2), NOTE])
    assert amounts(Place(), an_order(two)) == (19.0, 0.0, 19.0)
    assert amounts(Place(tax=10, has_tax=True), an_order(item())) == (7.73, 0.77, 8.5)
    assert amounts(Place(tax=10), of_check(taxExempt=True)) == (8.5, 0.0, 8.5)
    assert amounts(Place(tax=10), an_order(item(CATCH, openPriceAmount=4.5)))[2] == 4.95
    discount = [{"discount": {"guid": VOUCHER}, "discountAmount": 2.5}]
    both = an_order(item(), item(COKE, DRINKS), check={"appliedDiscounts": discount})
    assert amounts(Place(tax=10), both) == (9.0, 0.9, 9.9)
    fee = [{"serviceCharge": {"guid": COURIER_FEE}, "chargeAmount": 3.45}]
    way = {"diningOption": {"guid": DELIVERY}, "deliveryInfo": ADDRESS}
    charged = an_order(check={"appliedServiceCharges": fee}, **way)
    assert amounts(Place(tax=10), charged) == (11.95, 0.85, 12.8)


@pytest.mark.parametrize(
    ("payments", "status", "due"),
    [
        ([], "OPEN", 935),
        ([paid(8.5)], "OPEN", 85),  # before tax
        ([paid(9.35, tip=2)], "CLOSED", 0),
        ([paid(5), paid(4.35)], "CLOSED", 0),
        ([paid(10)], "OPEN", -65),
    ],
)
def test_a_check_is_closed_if_nothing_is_due(payments: list[Body], status: str, due: int) -> None:
    place = Place(tax=10)
    [check] = place.posted(of_check(payments=payments))["checks"]
    assert check["paymentStatus"] == status
    assert place.fact["due"] == due
    assert place.fact["tip"] == (200 if due == 0 and len(payments) == 1 else 0)


def test_a_second_order_with_an_external_identifier_is_refused() -> None:
    place = Place()
    place.posted(an_order(externalId="GW:1"))
    assert place.ask("POST", "/orders/v2/orders", an_order(externalId="GW:1")).status == 400
    place.toast.knobs.duplicate_status = 409
    again = an_order(item(externalId="GW:1"))
    assert place.ask("POST", "/orders/v2/orders", again).status == 409
    assert place.fact["externalId"] == "GW:1"


def test_an_order_is_read_by_its_guid_and_by_its_external_identifier() -> None:
    place = Place()
    guid = place.posted(an_order(externalId="GW:a/1"))["guid"]
    for name in (guid, guid.upper(), "GW%3Aa%2F1"):
        reply = place.ask("GET", f"/orders/v2/orders/{name}")
        assert isinstance(reply.body, dict)
        assert reply.body["guid"] == guid
    assert place.ask("GET", f"/orders/v2/orders/{UNKNOWN}").status == 404
    assert place.ask("GET", "/orders/v2/orders/GW%3A2").status == 404
    assert place.ask("GET", "/orders/v2/orders/7").status == 400
    assert place.ask("GET", f"/orders/v3/orders/{guid}").status == 404


def test_a_client_reads_of_the_guest_what_its_scopes_allow() -> None:
    place = Place()
    made = place.posted(an_order(diningOption={"guid": DELIVERY}, deliveryInfo=ADDRESS))
    place.toast.knobs.scopes = "orders:read orders.channel:read"
    shown: Any = place.ask("GET", f"/orders/v2/orders/{made['guid']}").body
    assert shown["deliveryInfo"] is None
    assert "customer" not in shown["checks"][0]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": None}, 401),
        ({"Authorization": "Bearer x"}, 401),
        ({"Toast-Restaurant-External-ID": None}, 400),
        ({"Toast-Restaurant-External-ID": UNKNOWN}, 403),
        ({"Content-Type": "text/plain"}, 415),
    ],
)
def test_a_request_needs_its_headers(headers: dict[str, str | None], status: int) -> None:
    reply = Place().ask("POST", "/orders/v2/orders", an_order(), headers)
    assert reply.status == status
    assert isinstance(reply.body, dict)
    assert reply.body["status"] == status
    assert reply.body["message"]


def test_a_token_ends() -> None:
    place = Place()
    for end in (lambda: place.clock.pass_(days=1), place.toast.acts["end_tokens"]):
        assert place.ask("GET", "/config/v2/tables").status == 200
        end()
        assert place.ask("GET", "/config/v2/tables").status == 401
        place.login()
    wrong = {**LOGIN, "clientSecret": "x"}
    assert place.ask("POST", "/authentication/v1/authentication/login", wrong).status == 401
    assert place.toast.facts()["logins"] == 4


def test_a_scope_that_is_missing_is_a_403() -> None:
    place = Place(scopes="config:read")
    assert place.ask("GET", "/config/v2/tables").status == 200
    for method, path in (("POST", "/orders/v2/prices"), ("GET", f"/orders/v2/orders/{UNKNOWN}")):
        assert place.ask(method, path, an_order()).status == 403


def test_twenty_requests_a_second_are_answered() -> None:
    place = Place()
    for left in range(19, -1, -1):
        reply = place.ask("GET", "/config/v2/tables")
        assert (reply.status, reply.headers["X-Toast-RateLimit-Remaining"]) == (200, str(left))
    refused = place.ask("POST", "/orders/v2/orders", an_order())
    assert (refused.status, refused.headers["Retry-After"]) == (429, "1")
    assert refused.headers["X-Toast-RateLimit-By"] == "GLOBAL"
    assert place.toast.facts()["orders"] == []
    place.clock.pass_(seconds=1)
    assert place.ask("GET", "/config/v2/tables").status == 200


def test_ten_thousand_requests_in_fifteen_minutes_are_answered() -> None:
    clock = Clock()
    rates = Rates(clock)
    for _ in range(500):
        assert all(rates.count("orders")[0] for _ in range(20))
        clock.pass_(seconds=1)
    is_answered, headers = rates.count("orders")
    assert (is_answered, headers["Retry-After"]) == (False, "400")
    clock.pass_(seconds=400)
    assert rates.count("orders")[0]


@pytest.mark.parametrize(("path", "most"), [("/menus/v2/menus", 1), ("/orders/v2/ordersBulk", 5)])
def test_an_endpoint_has_its_own_rate(path: str, most: int) -> None:
    place = Place()
    assert [place.ask("GET", path).status == 429 for _ in range(most + 1)] == [False] * most + [
        True
    ]
    assert place.ask("GET", path).headers["X-Toast-RateLimit-By"] == "ENDPOINT"
    assert place.ask("GET", "/menus/v2/metadata").status == 200


def test_an_order_goes_to_the_kitchen_by_itself_and_is_printed_once() -> None:
    place = Place()
    made = place.posted(an_order(item(modifiers=[NOTE]), check={"tabName": "Ada 7"}))
    [check] = made["checks"]
    assert (made["approvalStatus"], made["guestOrderStatus"]) == ("APPROVED", "RECEIVED")
    assert check["selections"][0]["fulfillmentStatus"] == "NEW"
    for _ in range(2):
        assert (place.fact["printed"], place.fact["guestOrderStatus"]) == (1, "IN_PREPARATION")
    assert place.fact["ticket"] == ["Ada 7", "1 x Burger", "no ice"]


def test_an_order_for_later_is_fired_when_its_preparation_begins() -> None:
    place = Place(prep_minutes=20)
    later = at(place.clock() + timedelta(hours=2))
    assert place.posted(an_order(promisedDate=later))["approvalStatus"] == "FUTURE"
    place.clock.pass_(minutes=99)
    assert (place.fact["approvalStatus"], place.fact["printed"]) == ("FUTURE", 0)
    place.clock.pass_(minutes=1)
    assert (place.fact["approvalStatus"], place.fact["printed"]) == ("APPROVED", 1)


def test_an_order_waits_for_its_approval_where_no_device_approves() -> None:
    place = Place()
    for name in ("is_online", "auto_fires"):
        setattr(place.toast.knobs, name, False)
        assert place.posted(an_order(externalId=f"GW:{name}"))["approvalStatus"] == "NEEDS_APPROVAL"
        assert place.toast.facts()["orders"][-1]["printed"] == 0
        setattr(place.toast.knobs, name, True)
        assert place.toast.facts()["orders"][-1]["printed"] == 1
    place.toast.knobs.auto_fires = False
    for number, act in enumerate(("fire", "reject")):
        place.posted(an_order(externalId=f"GW:{act}"))
        place.toast.acts[act](order=f"GW:{act}")
        fact = place.toast.facts()["orders"][-1]
        assert (fact["approvalStatus"], fact["printed"]) == (
            ("APPROVED", 1) if act == "fire" else ("NOT_APPROVED", 0)
        ), number


def test_an_order_is_voided_whole_and_once() -> None:
    place = Place()
    guid = place.posted(of_check(payments=[paid(8.5)]))["guid"]
    both = {"selections": {"voidAll": True}, "payments": {"voidAll": True}}
    path = f"/orders/v2/orders/{guid}/void"
    assert place.ask("POST", path, {"selections": {"voidAll": True}}).status == 400
    assert not place.fact["voided"]
    reply = place.ask("POST", path, both)
    assert isinstance(reply.body, dict)
    assert reply.body["voided"]
    assert reply.body["checks"][0]["selections"][0]["voided"]
    fact = place.fact
    assert (fact["guestOrderStatus"], fact["paid"], fact["printed_void"]) == ("VOIDED", 0, 1)
    assert place.ask("POST", path, both).status == 400
    assert place.ask("GET", f"/orders/v2/orders/{guid}").status == 200


def test_tips_and_deliveries_are_updated() -> None:
    place = Place()
    way = {"diningOption": {"guid": DELIVERY}, "deliveryInfo": ADDRESS}
    made = place.posted(an_order(check={"payments": [paid(8.5)]}, **way))
    [check] = made["checks"]
    path = f"/orders/v2/orders/{made['guid']}"
    payment = f"{path}/checks/{check['guid']}/payments/{check['payments'][0]['guid']}"
    assert place.ask("PATCH", payment, {"tipAmount": 3}).status == 200
    assert (place.fact["tip"], place.fact["due"]) == (300, 0)
    assert place.ask("PATCH", payment, {"amount": 3}).status == 400
    added = f"{path}/checks/{check['guid']}/payments"
    assert place.ask("POST", added, [paid(1)]).status == 400
    for status in (200, 400):
        update = {"deliveryState": "DELIVERED"}
        assert place.ask("PATCH", f"{path}/deliveryInfo", update).status == status


def test_orders_are_listed_by_the_time_of_their_last_change() -> None:
    place = Place()
    start = place.clock()
    for number in range(3):
        place.posted(an_order(externalId=f"GW:{number}"))
        place.clock.pass_(minutes=1)
    place.toast.acts["ready"](order="GW:0")

    def listed(since: timedelta, until: timedelta, **query: str) -> list[str]:
        period = {"startDate": at(start + since), "endDate": at(start + until)}
        reply = place.ask("GET", "/orders/v2/ordersBulk", query=period | query)
        assert isinstance(reply.body, list), reply
        return [each["externalId"] for each in reply.body]

    hour = timedelta(hours=1)
    assert listed(timedelta(0), timedelta(minutes=2)) == ["GW:1"]
    assert listed(timedelta(0), hour) == ["GW:0", "GW:1", "GW:2"]
    assert listed(timedelta(0), hour, pageSize="2", page="2") == ["GW:2"]
    period = {"startDate": at(start), "endDate": at(start + hour)}
    for query in (
        {},
        {"startDate": at(start)},
        {"startDate": at(start), "endDate": at(start)},
        {**period, "pageSize": "101"},
        {**period, "page": "0"},
    ):
        place.clock.pass_(seconds=1)
        assert place.ask("GET", "/orders/v2/ordersBulk", query=query).status == 400


def test_configuration_menu_stock_and_hours_are_told() -> None:
    place = Place(stock={BURGER: 0, SOUP: 3}, hours={"monday": ["10:00:00.000", "22:00:00.000"]})

    def told(path: str, **query: str) -> Any:
        reply = place.ask("GET", path, query=query)
        assert reply.status == 200
        return reply.body

    options = {each["guid"]: each["behavior"] for each in told("/config/v2/diningOptions")}
    assert options == RESTAURANT["dining_options"]
    kinds = ("alternatePaymentTypes", "tables", "serviceCharges", "discounts")
    assert [len(told(f"/config/v2/{kind}")) for kind in kinds] == [1, 1, 1, 2]
    menu = told("/menus/v2/menus")
    assert told("/menus/v2/metadata")["lastUpdated"] == menu["lastUpdated"]
    mains, drinks = menu["menus"][0]["menuGroups"]
    assert (mains["guid"], drinks["menuItems"][0]["guid"]) == (MAINS, COKE)
    burger, _, catch = mains["menuItems"]
    assert (burger["price"], catch["pricingStrategy"]) == (8.5, "OPEN_PRICE")
    sauces, sides = (
        menu["modifierGroupReferences"][str(each)] for each in burger["modifierGroupReferences"]
    )
    assert sauces["maxSelections"] == 60
    [salad] = sides["modifierOptionReferences"]
    [dressings] = menu["modifierOptionReferences"][str(salad)]["modifierGroupReferences"]
    assert menu["modifierGroupReferences"][str(dressings)]["minSelections"] == 1
    [sold_out] = told("/stock/v1/inventory", status="OUT_OF_STOCK")
    assert sold_out["guid"] == BURGER
    assert len(told("/stock/v1/inventory")) == 2
    week = told(f"/restaurants/v1/restaurants/{PLACE}")["schedules"]["weekSchedule"]
    assert (week["monday"], week["sunday"]) == ("monday", None)
    assert told("/restaurant-availability/v1/availability")["status"] == "ONLINE"
    place.toast.knobs.is_online = False
    assert told("/restaurant-availability/v1/availability")["status"] == "OFFLINE"


def test_each_change_is_an_order_updated_signed_and_without_the_guest() -> None:
    place = Place()
    place.toast.webhooks.url, place.toast.webhooks.key = "https://gateway.example.com", "secret"
    made = place.posted(an_order(externalId="GW:1"))
    for act in ("ready", "close", "void"):
        place.toast.acts[act](order="GW:1")
    found = []
    for _, headers, body, _ in place.toast.webhooks.take():
        message = json.loads(body)
        signed = hmac.digest(b"secret", body + message["timestamp"].encode(), hashlib.sha256)
        assert headers["Toast-Signature"] == base64.b64encode(signed).decode()
        assert message["eventType"] == "order_updated"
        assert message["details"]["restaurantGuid"] == PLACE
        order = message["details"]["order"]
        assert (order["guid"], order["externalId"]) == (made["guid"], None)
        assert set(order["checks"][0]["customer"]) == {"email"}
        found.append(order["guestOrderStatus"])
    assert place.toast.webhooks.timeout == 2
    assert found == ["RECEIVED", "IN_PREPARATION", "READY_FOR_PICKUP", "CLOSED", "VOIDED"]


def test_it_is_served_on_a_socket() -> None:
    with VendorServer("toast", **RESTAURANT) as server:
        server.knobs(tax=10)
        server.act("trouble", what="twice", path="/orders/v2/orders")
        login = requests.post(f"{server.url}/authentication/v1/authentication/login", json=LOGIN)
        headers = {"Toast-Restaurant-External-ID": PLACE}
        headers["Authorization"] = f"Bearer {login.json()['token']['accessToken']}"
        order = an_order(externalId="GW:a/1", check={"payments": [paid(9.35)]})
        orders = f"{server.url}/orders/v2/orders"
        assert requests.post(orders, json=order, headers=headers).status_code == 400  # the second
        assert requests.get(f"{orders}/GW%3Aa%2F1", headers=headers).status_code == 200
        server.act("close", order="GW:a/1")
        [fact] = server.facts()["orders"]
        assert (fact["due"], fact["printed"], fact["guestOrderStatus"]) == (0, 1, "CLOSED")
        with pytest.raises(ValueError, match="has no tip"):
            server.knobs(tip=1)


@pytest.mark.parametrize(
    ("answers", "statuses"),
    [([404, 429, 500], [404, 429, 500]), ([400], [400]), ([None, 200], [0, 200])],
)
def test_a_message_is_sent_three_times_unless_it_is_answered(
    answers: list[int | None], statuses: list[int]
) -> None:
    given = [*answers, 200]

    class Subscriber(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status = given.pop(0)
            if status is not None:
                self.send_response(status)
                self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Subscriber) as subscriber:
        Thread(target=subscriber.serve_forever, daemon=True).start()
        with VendorServer("toast", **{**RESTAURANT, "auto_fires": False}) as server:
            url = f"http://127.0.0.1:{subscriber.server_address[1]}/"
            server.webhooks(url=url, key="secret", timeout=PATIENCE)
            login = f"{server.url}/authentication/v1/authentication/login"
            token = requests.post(login, json=LOGIN).json()["token"]["accessToken"]
            headers = {"Authorization": f"Bearer {token}", "Toast-Restaurant-External-ID": PLACE}
            made = requests.post(
                f"{server.url}/orders/v2/orders", json=an_order(), headers=headers
            ).json()
            server.wait(lambda facts: len(facts["deliveries"]) == len(statuses))
            server.act("fire", order=made["guid"])  # the next message comes alone
            facts = server.wait(lambda facts: len(facts["deliveries"]) > len(statuses))
            assert facts["deliveries"] == [*statuses, 200]
        subscriber.shutdown()
