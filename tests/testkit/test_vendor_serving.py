"""A simulated vendor on a socket of another process: its control channel, troubles, webhooks."""

import http.client
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import pytest

from testkit.vendors.server import VendorServer

ORDER = {
    "location_id": "L1",
    "line_items": [
        {
            "name": "Burger",
            "quantity": "1",
            "base_price_money": {"amount": 1000, "currency": "USD"},
        }
    ],
}


@pytest.fixture
def square() -> Iterator[VendorServer]:
    with VendorServer("square", currency="USD") as server:
        yield server


def create(square: VendorServer, key: str, token: str) -> tuple[int, Any]:
    where = urlsplit(square.url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    body = json.dumps({"idempotency_key": key, "order": ORDER})
    try:
        connection.request("POST", "/v2/orders", body, headers)
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read() or b"null")
    finally:
        connection.close()


def test_facts_knobs_and_acts_go_over_the_control_channel(square: VendorServer) -> None:
    token = square.act("grant")["access_token"]
    square.knobs(shop_tax="10", adds_tax_unasked=True)
    status, reply = create(square, "k", token)
    assert (status, reply["order"]["total_money"]["amount"]) == (200, 1100)
    assert list(square.facts()["orders"]) == [reply["order"]["id"]]
    square.act("advance", seconds=30 * 86400)
    assert create(square, "l", token)[1]["errors"][0]["code"] == "ACCESS_TOKEN_EXPIRED"
    with pytest.raises(ValueError, match="Knobs has no taxes"):
        square.knobs(taxes=1)
    with pytest.raises(ValueError, match="explode"):
        square.act("explode")


@pytest.mark.parametrize(("what", "made"), [("before", 0), ("after", 1)])
def test_a_reply_is_lost_before_or_after_the_fact(
    square: VendorServer, what: str, made: int
) -> None:
    token = square.act("grant")["access_token"]
    square.act("trouble", what=what, method="POST", path="/v2/orders")
    with pytest.raises((ConnectionResetError, http.client.RemoteDisconnected)):
        create(square, "k", token)
    assert len(square.facts()["orders"]) == made
    assert create(square, "k", token)[0] == 200
    assert len(square.facts()["orders"]) == 1
    square.act("trouble", what="after", status=502)
    assert create(square, "l", token)[0] == 502
    assert len(square.facts()["orders"]) == 2


def test_a_request_that_arrives_twice_is_carried_out_twice(square: VendorServer) -> None:
    token = square.act("grant")["access_token"]
    square.act("trouble", what="twice")
    assert create(square, "k", token)[0] == 200
    assert square.facts()["calls"] == {"CreateOrder": 2}
    assert len(square.facts()["orders"]) == 1


def test_webhooks_are_late_doubled_reversed_and_sent_again(square: VendorServer) -> None:
    received: list[str] = []

    class Subscriber(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert self.headers["x-square-hmacsha256-signature"]
            received.append(body["event_id"])
            self.send_response(500 if len(received) == 3 else 200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Subscriber) as subscriber:
        Thread(target=subscriber.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{subscriber.server_address[1]}/hook"
        square.webhooks(url=url, key="secret", held=True, twice=True, reverse=True)
        token = square.act("grant")["access_token"]
        create(square, "k", token)
        create(square, "l", token)
        assert received == []
        square.webhooks(held=False)
        square.wait(lambda facts: len(facts["deliveries"]) >= 6)
        subscriber.shutdown()
    first, second = sorted(set(received), key=lambda event: int(event.rpartition("-")[2]))
    # The third delivery is refused, and comes again, doubled as well.
    assert received == [second, second, first, first, first, first]


def test_killed_and_started_again_it_has_forgotten_all(square: VendorServer) -> None:
    create(square, "k", square.act("grant")["access_token"])
    square.kill()
    square.start()
    assert square.facts()["orders"] == {}
