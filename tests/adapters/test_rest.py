"""The reference POS API: each reply and its outcome."""

import json
import posixpath
import socket
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pos_gateway import __version__
from pos_gateway.adapters.rest import RestAdapter
from pos_gateway.domain.errors import InvalidOrder
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind, Outcome
from pos_gateway.transport.exchange import Reply, Transport
from pos_gateway.transport.guard import Guard
from testkit.hostile.peer import a_reply, peer, read_request
from testkit.patience import PATIENCE
from tests.adapters.scripted import Scripted, reply
from tests.orders import an_order

MERCHANT = Merchant.parse({"id": "fast-1", "base_url": "https://pos.example.com/api"})
ORDER = Order.parse(an_order("order/1"))


def submitted(*replies: Reply) -> Outcome:
    return RestAdapter().submit(ORDER, MERCHANT, Scripted(*replies))


def test_an_order_is_posted_with_its_idempotency_key() -> None:
    send = Scripted(reply(201, {"id": "7", "status": "accepted"}))
    outcome = RestAdapter().submit(ORDER, MERCHANT, send)
    request = send.requests[0]
    assert (request.method, request.url) == ("POST", "https://pos.example.com/api/orders")
    assert request.headers["Idempotency-Key"] == "order/1"
    assert json.loads(request.body or b"")["order_id"] == "order/1"
    assert (outcome.kind, outcome.external_id) == (Kind.ACCEPTED, "7")


def test_a_request_on_the_wire_says_which_gateway_sends_it() -> None:
    """Clover demands it."""
    requests: list[bytes] = []

    def script(connection: socket.socket) -> None:
        requests.append(read_request(connection))
        connection.sendall(a_reply(b'{"id":"7","status":"accepted"}', "201 Created"))

    transport = Transport(guard=Guard(allow_all=True))
    with peer(script) as pos:
        merchant = Merchant.parse({"id": "fast-1", "base_url": pos.url("")})
        outcome = RestAdapter().submit(
            ORDER,
            merchant,
            lambda each: transport.send(each, key="m", connections=1, seconds=PATIENCE),
        )
    transport.close()
    assert outcome.kind is Kind.ACCEPTED
    [request] = requests
    fields = request.partition(b"\r\n\r\n")[0].split(b"\r\n")
    assert f"User-Agent: pos-gateway/{__version__}".encode() in fields


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (reply(200, {"id": "7", "status": "accepted"}), Kind.ACCEPTED),
        (reply(200, {"id": "7", "status": "rejected"}), Kind.REJECTED),
        (reply(202, {"status": "pending"}), Kind.PENDING),
        (reply(202, {"order_id": "another"}), Kind.IN_DOUBT),
        (reply(200, {"status": ["accepted"]}), Kind.IN_DOUBT),
        (reply(200, {"id": "7"}), Kind.IN_DOUBT),
        (reply(200, {"status": "accepted", "order_id": "another"}), Kind.IN_DOUBT),
        (reply(400), Kind.REJECTED),
        (reply(418), Kind.FAILED),
    ],
)
def test_each_reply_has_its_outcome(answer: Reply, kind: Kind) -> None:
    assert submitted(answer).kind is kind


def test_a_rejection_has_the_merchants_reason_in_one_printable_line() -> None:
    error = {"error": {"code": "item_unavailable\n", "message": "out of\r\nbuns\x00"}}
    outcome = submitted(reply(422, error))
    assert outcome.kind is Kind.REJECTED
    assert outcome.reason is not None
    assert (outcome.reason.code, outcome.reason.message) == ("item_unavailable", "out of buns")


def test_a_conflict_is_looked_up_and_the_same_order_there_is_accepted() -> None:
    send = Scripted(reply(409), reply(200, {"id": "7", "status": "accepted"}))
    assert RestAdapter().submit(ORDER, MERCHANT, send).kind is Kind.ACCEPTED
    assert send.requests[1].url == "https://pos.example.com/api/orders/order%2F1"
    assert submitted(reply(409), reply(404)).kind is Kind.REJECTED
    assert submitted(reply(409), reply(500)).kind is Kind.IN_DOUBT


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7.0),
        ("0", 1.0),
        ("-5", 1.0),
        ("2.5", 2.5),
        ("99999999", 900.0),
        ("nan", None),
        ("Wed, 21 Oct 2099 07:28:00 GMT", None),  # relative to no known clock
        ("soon", None),
        ("", None),
    ],
)
def test_retry_after_is_clamped_and_garbage_counts_as_absent(
    value: str, seconds: float | None
) -> None:
    assert submitted(reply(429, retry_after=value)).retry_after == seconds


def test_an_order_is_cancelled_under_its_id() -> None:
    send = Scripted(reply(200, {"id": "7", "status": "cancelled"}))
    assert RestAdapter().cancel(ORDER, MERCHANT, send).kind is Kind.CANCELLED
    [request] = send.requests
    assert request.method == "POST"
    assert request.url == "https://pos.example.com/api/orders/order%2F1/cancel"
    for status in ("accepted", "pending"):
        kept = RestAdapter().cancel(ORDER, MERCHANT, Scripted(reply(200, {"status": status})))
        assert kept.kind is Kind.IN_DOUBT


def test_an_order_that_the_shop_has_rejected_needs_no_cancellation() -> None:
    """A refusal would tell the order as accepted, which no kitchen makes."""
    answer = {"id": "7", "status": "rejected", "error": {"code": "sold_out", "message": ""}}
    outcome = RestAdapter().cancel(ORDER, MERCHANT, Scripted(reply(200, answer)))
    assert outcome == Outcome(Kind.CANCELLED, external_id="7")


@given(st.text(st.sampled_from("a./%2e\\;?#F"), min_size=1, max_size=8))
def test_no_dot_segment_leads_to_another_path(order_id: str) -> None:
    """A server may normalize the path by RFC 3986 (5.2.4), before or after it decodes it."""
    try:
        order = Order.parse(an_order(order_id))
    except InvalidOrder:
        return
    send = Scripted(reply(404))
    RestAdapter().cancel(order, MERCHANT, send)
    path = urlsplit(send.requests[0].url).path
    for seen in (path, unquote(path)):
        asked = [part for part in seen.split("/") if part]
        assert [part for part in posixpath.normpath(seen).split("/") if part] == asked
