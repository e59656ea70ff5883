"""The simulated HubRise: rules that its documents state, and facts that are true."""

import hashlib
import hmac
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from testkit.vendors.http import VendorReply
from testkit.vendors.hubrise import simulator
from testkit.vendors.way import arrived

Body = dict[str, Any]
ITEM: Body = {"product_name": "Burger", "price": "8.50 EUR", "quantity": "2"}
OPTION: Body = {"option_list_name": "Sauce", "name": "BBQ", "price": "1.00 EUR"}


class Client:
    """A client of the location."""

    def __init__(self) -> None:
        self.now = datetime(2026, 11, 29, 12, tzinfo=UTC)
        self.hubrise = simulator(lambda: self.now)

    def call(self, method: str, path: str = "", body: object = None, **headers: str) -> VendorReply:
        content = b"" if body is None else json.dumps(body).encode()
        given = {"X-Access-Token": "token-1", "Content-Type": "application/json", **headers}
        url = f"/v1/locations/3r4s3-1/orders{path}"
        return self.hubrise.answer(arrived(method, url, given, content))

    def make(self, **fields: Any) -> Body:
        reply = self.call("POST", "", {"status": "new", **fields})
        assert reply.status == 200, reply.body
        assert isinstance(reply.body, dict)
        return reply.body


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        ({}, "status"),
        ({"status": "eaten"}, "status"),
        ({"status": "new", "total": "8.50 EUR"}, "total"),
        ({"status": "new", "service_type": "pickup"}, "service_type"),
        ({"status": "new", "private_ref": "x" * 256}, "private_ref"),
        ({"status": "new", "expected_time": "2026-11-29 12:00"}, "expected_time"),
        ({"status": "new", "items": [{**ITEM, "price": "8.5 EUR"}]}, "items[0].price"),
        ({"status": "new", "items": [{**ITEM, "price": 850}]}, "items[0].price"),
        ({"status": "new", "items": [{**ITEM, "quantity": 2}]}, "items[0].quantity"),
        ({"status": "new", "items": [{**ITEM, "note": "x"}]}, "items[0].note"),
        (
            {"status": "new", "items": [{**ITEM, "options": [{"name": "x"}]}]},
            "items[0].options[0].option_list_name",
        ),
        ({"status": "new", "charges": [{"name": "x"}]}, "charges[0].price"),
        ({"status": "new", "customer": {"name": "Ada"}}, "customer.name"),
        ({"status": "new", "payments": [{"amount": "1.00 USD"}]}, "currency"),
    ],
)
def test_an_order_that_breaks_a_rule_is_refused_with_the_field(sent: Body, field: str) -> None:
    client = Client()
    reply = client.call("POST", "", sent)
    assert isinstance(reply.body, dict)
    assert (reply.status, reply.body["errors"][0]["field"]) == (422, field)
    assert client.hubrise.facts() == []


def test_the_total_is_hubrises_and_the_payments_are_kept_as_they_are() -> None:
    client = Client()
    made = client.make(
        items=[{**ITEM, "options": [{**OPTION, "quantity": 2}]}],
        charges=[{"name": "Delivery", "price": "1.50 EUR"}],
        discounts=[{"name": "Off", "price_off": "5.00 EUR"}],
        payments=[{"amount": "3.00 EUR"}],
    )
    assert (made["total"], made["items"][0]["quantity"]) == ("17.50 EUR", "2.0")
    [fact] = client.hubrise.facts()
    assert (fact["total"], fact["paid"], fact["printed"]) == (1750, 300, 1)


def test_an_order_is_listed_by_its_private_ref_which_is_taken_once() -> None:
    client = Client()
    made = client.make(private_ref="a-1")
    client.make(private_ref="a-2")
    assert client.call("POST", "", {"status": "new", "private_ref": "a-1"}).status == 422
    [found] = client.call("GET", "?private_ref=a-1").body  # type: ignore[misc]
    assert found["id"] == made["id"] == client.call("GET", f"/{made['id']}").body["id"]  # type: ignore[index]
    page = client.call("GET", "?count=1")
    assert ("X-Cursor-Next" in page.headers, len(page.body)) == (True, 1)  # type: ignore[arg-type]
    assert client.call("GET", "/unknown").status == 404


def test_who_may_call_and_with_what() -> None:
    client = Client()
    assert client.call("POST", "", {"status": "new"}, **{"X-Access-Token": "x"}).status == 401
    assert client.call("POST", "", {"status": "new"}, **{"Content-Type": "text/xml"}).status == 415
    assert client.call("POST", "", [1]).status == 422
    assert client.call("PUT").status == 404
    assert client.call("PATCH", "/unknown", {"status": "cancelled"}).status == 404


@pytest.mark.parametrize(("most", "seconds"), [(500, 60), (2_500, 3_600), (10_000, 86_400)])
def test_requests_are_counted_in_windows_that_start_round(most: int, seconds: int) -> None:
    client = Client()
    client.now = datetime(2026, 11, 29, tzinfo=UTC)
    start = client.now
    for number in range(most):
        client.now = start + timedelta(seconds=number * (seconds - 1) // most)
        assert client.call("GET", "/unknown").status == 404
    client.now = start + timedelta(seconds=seconds - 1)
    refused = client.call("GET", "/unknown")
    assert (refused.status, refused.body) == (429, {"error_type": "too_many_requests"})
    client.now = start + timedelta(seconds=seconds)
    assert client.call("GET", "/unknown").status == 404


def test_a_client_is_told_of_what_others_change_and_signed() -> None:
    client = Client()
    client.hubrise.webhooks.url, client.hubrise.webhooks.key = "https://x", "secret"
    client.hubrise.knobs.arrives = "new"
    made = client.make()
    assert client.call("PATCH", f"/{made['id']}", {"status": "cancelled"}).status == 200
    assert client.hubrise.webhooks.take() == []
    client.hubrise.acts["received"](made["id"])
    [event] = client.hubrise.webhooks.take()
    said = json.loads(event.body)
    assert (said["resource_type"], said["event_type"], said["order_id"]) == (
        "order",
        "update",
        made["id"],
    )
    assert (said["previous_state"]["status"], said["new_state"]["status"]) == (
        "cancelled",
        "received",
    )
    made_of = hmac.new(b"secret", event.body, hashlib.sha256).hexdigest()
    assert event.headers["X-HubRise-Hmac-SHA256"] == made_of
    assert client.hubrise.webhooks.again(event, 403) == []
    assert len(client.hubrise.webhooks.again(event, 503)) == 1


def test_a_list_has_the_orders_placed_since_a_time_a_page_at_a_time() -> None:
    client = Client()
    ids = []
    for _ in range(5):
        ids.append(client.make()["id"])
        client.now += timedelta(minutes=1)
    since = "?after=2026-11-29T13:01:00%2B01:00&before=2026-11-29T12:04:00Z&count=2"
    first = client.call("GET", since)
    assert isinstance(first.body, list)
    cursor = first.headers["X-Cursor-Next"]
    last = client.call("GET", f"{since}&cursor={cursor}")
    assert isinstance(last.body, list)
    assert [each["id"] for each in first.body + last.body] == ids[1:4]
    assert "X-Cursor-Next" not in last.headers


@pytest.mark.parametrize(
    "query", ["after=2026-11-29T12:00:00", "before=noon", "count=0", "count=101", "cursor=gone"]
)
def test_a_list_of_something_else_is_refused(query: str) -> None:
    assert Client().call("GET", f"?{query}").status == 400
