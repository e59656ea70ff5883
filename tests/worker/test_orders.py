"""An order's way through a real worker, by what the merchants received and the backend's events.

One worker serves them, one test after the other, each with order ids of its own.
"""

import json
import uuid
import zlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from kombu import Connection, Exchange

from tests.orders import an_order
from tests.worker.lab import Lab, by_type


def test_an_order_is_delivered_once_and_has_an_event(served: Lab) -> None:
    served.open_merchants("fast-1")
    served.submit("fast-1", "o1", tip=100)
    [event] = served.events(1)
    truth = served.merchants.order("fast-1", "o1")
    assert truth is not None
    assert (truth["requests"], truth["creates"]) == (1, 1)
    assert (event["type"], event["order_id"], event["merchant_id"]) == (
        "order.accepted",
        "o1",
        "fast-1",
    )
    assert event["external_id"]
    assert event["attempts"] == 1
    assert event["order"]["tip"] == 100
    assert uuid.UUID(event["id"])
    assert datetime.fromisoformat(event["occurred_at"]).tzinfo is not None


def test_a_backend_without_our_code_is_served(served: Lab) -> None:
    """A client from docs/wire-format.md, with kombu alone."""
    served.open_merchants("fast-1")
    served.client.connect()
    with Connection(served.broker_url) as connection:
        producer = connection.Producer(exchange=Exchange("orders", type="topic", no_declare=True))
        producer.publish(
            [[an_order("foreign")], {}, {}],
            routing_key="orders",
            serializer="json",
            headers={"task": "pos_gateway.submit_order", "id": "foreign"},
            delivery_mode=2,
        )
    [event] = served.events(1)
    assert (event["type"], event["order_id"]) == ("order.accepted", "foreign")


def test_a_body_is_utf_8_whatever_its_content_encoding_says(served: Lab) -> None:
    """Decoded as it says, a name would reach the POS as another; a lone surrogate would fail."""
    served.open_merchants("fast-1")
    kinds = ("iso-8859-1", "utf-7", "unicode_escape", "binary", "no-such")
    for kind in kinds:
        order = an_order(kind, notes="for Zoë, \\ud83c +2D0- \U0001f355")
        body = json.dumps([[order], {}, {}], ensure_ascii=False).encode()
        headers = {"task": "pos_gateway.submit_order", "id": kind}
        served.publish_raw(body, headers, content_encoding=kind)
    events = served.events(len(kinds))
    assert {each["order_id"]: each["type"] for each in events} == dict.fromkeys(
        kinds, "order.accepted"
    )
    assert {each["order"]["notes"] for each in events} == {"for Zoë, \\ud83c +2D0- \U0001f355"}


#: Content types as libraries write them: by default, with a parameter, or in their own spelling.
CONTENT_TYPES = (
    *("application/json; charset=utf-8", 'application/json;charset="UTF-8"', "Application/JSON"),
    *("text/json", "application/vnd.acme.order+json", "text/plain", "application/octet-stream"),
    *("application/json; charset=iso-8859-1", "application/x-python-serialize", "", None),
)
MARK = b"\xef\xbb\xbf"


def test_a_body_is_json_whatever_its_content_type_says_and_may_have_a_byte_order_mark(
    served: Lab,
) -> None:
    served.open_merchants("fast-1")
    expected = {}
    for number, kind in enumerate(CONTENT_TYPES):
        for mark in (b"", MARK):
            order = an_order(f"typed-{number}-{len(mark)}", notes=f"for Zoë, {kind}")
            body = json.dumps([[order], {}, {}], ensure_ascii=False).encode()
            headers = {"task": "pos_gateway.submit_order", "id": order["order_id"]}
            served.publish_raw(mark + body, headers, content_type=kind)
            expected[order["order_id"]] = ("order.accepted", order["notes"])
    events = served.events(len(expected))
    assert {e["order_id"]: (e["type"], e["order"]["notes"]) for e in events} == expected


UNREADABLE_ORDERS: dict[str, tuple[Callable[[bytes], bytes], dict[str, Any], str]] = {
    "latin-1": (lambda body: body.decode().encode("latin-1"), {}, "undecodable"),
    "cut": (lambda body: body[:-1], {}, "undecodable"),
    "marked": (lambda body: MARK + body[:-1], {}, "undecodable"),
    "chained": (lambda body: body[:-3] + b'{"chain":[1]}]', {}, "invalid_message"),
    "numbered": (lambda body: body, {"id": 7}, "invalid_message"),
    "zipped": (lambda body: body, {"compression": "gzip"}, "compressed"),
}


def test_an_unreadable_message_that_names_its_order_has_an_event(served: Lab) -> None:
    for name, (change, headers, _) in UNREADABLE_ORDERS.items():
        order = an_order(name, notes="for Zoë")
        body = json.dumps([[order], {}, {}], ensure_ascii=False).encode()
        task = {"task": "pos_gateway.submit_order", "id": name}
        served.publish_raw(change(body), {**task, **headers}, message_id=name)
    events, dead = (
        served.events(len(UNREADABLE_ORDERS)),
        served.dead_letters(len(UNREADABLE_ORDERS)),
    )
    codes = {name: code for name, (*_, code) in UNREADABLE_ORDERS.items()}
    assert {each["order_id"]: each["reason"]["code"] for each in events} == codes
    assert {each["type"] for each in events} == {"order.failed"}
    assert {each["message_id"]: each["headers"]["x-reason-code"] for each in dead} == codes


def test_each_kind_of_answer_leads_to_its_event(served: Lab) -> None:
    served.open_merchants("fast-1", "reject-1", "pending-1", "limit-1", "conflict-1")
    served.merchants.profile("limit-1", {"kind": "limit", "retry_after": 1})
    for merchant in ("fast-1", "reject-1", "pending-1", "limit-1", "conflict-1"):
        served.submit(merchant, merchant)
    served.merchants.wait_until(merchant_id="limit-1", requests=1)
    served.merchants.profile("limit-1", {"kind": "accept"})
    told = by_type(served.events(6))
    assert sorted(told["order.accepted"]) == ["conflict-1", "fast-1", "limit-1", "pending-1"]
    assert told["order.rejected"] == ["reject-1"]
    assert told["order.pending"] == ["pending-1"]
    assert served.merchants.doubled() == []


def test_an_undeliverable_order_is_dead_lettered_with_its_reason(served: Lab) -> None:
    served.submit("no-such", "o1")
    [event] = served.events(1)
    [dead] = served.dead_letters(1)
    assert (event["type"], event["reason"]["code"]) == ("order.failed", "unknown_merchant")
    assert "no-such" in event["reason"]["message"]
    assert dead["headers"]["x-reason-code"] == "unknown_merchant"
    assert json.loads(dead["body"])[0][0]["order_id"] == "o1"


def test_an_order_in_doubt_is_retried_with_the_same_idempotency_key(served: Lab) -> None:
    served.open_merchants("doubtful", request_timeout=0.5)
    # It takes the order, and does not answer.
    served.merchants.profile("doubtful", {"kind": "accept", "latency": 30})
    served.submit("doubtful", "o1")
    served.merchants.wait_until(merchant_id="doubtful", requests=1)
    served.merchants.profile("doubtful", {"kind": "accept", "latency": 0})
    [event] = served.events(1)
    assert event["type"] == "order.accepted"
    assert event["attempts"] >= 2
    truth = served.merchants.order("doubtful", "o1")
    assert truth is not None
    assert truth["requests"] >= 2
    assert truth["creates"] == 1


def test_an_order_that_stays_in_doubt_ends_in_doubt_and_not_expired(lab: Lab) -> None:
    """In a lab of its own: its worker goes on asking what has become of it."""
    lab.open_merchants("m", request_timeout=2)  # enough for a connection on a busy machine
    lab.merchants.profile("m", {"kind": "accept", "latency": 30})
    with lab.worker():
        lab.wait_for_worker()
        lab.submit("m", "o1", seconds=6)
        [event] = lab.events(1)
    assert event["type"] == "order.in_doubt"
    assert lab.ledger("m", "o1") == ("in_doubt", "timeout")


def test_an_unanswered_order_expires(served: Lab) -> None:
    served.open_merchants("closed", base_url="http://127.0.0.1:1/closed")
    served.submit("closed", "o1", seconds=4)
    [event] = served.events(1)
    [dead] = served.dead_letters(1)
    assert event["type"] == "order.expired"
    assert event["attempts"] >= 1
    assert dead["headers"]["x-reason-code"] in {"connect", "expired"}


def test_an_expired_order_is_never_sent(served: Lab) -> None:
    served.open_merchants("fast-1")
    now = datetime.now(UTC)
    late = an_order(
        "late",
        placed_at=(now - timedelta(hours=2)).isoformat(),
        deliver_by=(now - timedelta(hours=1)).isoformat(),
    )
    served.publish_raw(
        json.dumps([[late], {}, {}]).encode(), {"task": "pos_gateway.submit_order", "id": "late"}
    )
    [event] = served.events(1)
    [dead] = served.dead_letters(1)
    assert event["type"] == "order.expired"
    assert dead["headers"]["x-reason-code"] == "expired"
    assert served.merchants.summary()["requests"] == 0


TASK = {"task": "pos_gateway.submit_order", "id": "x"}
NO_ORDERS: dict[str, tuple[bytes, dict[str, Any], str]] = {
    "no json": (b"{not json", TASK, "undecodable"),
    "an object": (b'{"a":1}', TASK, "invalid_message"),
    "two things": (b"[1,2]", TASK, "invalid_message"),
    "text for an order": (b'[["order"],{},{}]', TASK, "invalid_order"),
    "no order": (b"[[],{},{}]", TASK, "invalid_order"),
    "no id": (b"[[{}],{},{}]", {"task": TASK["task"]}, "invalid_message"),
    "a number for an id": (b"[[{}],{},{}]", {"task": TASK["task"], "id": 7}, "invalid_message"),
    "an unknown task": (b"[[{}],{},{}]", {"task": "os.system", "id": "x"}, "unknown_task"),
    "no task": (b"[[{}],{},{}]", {}, "unknown_message"),
    "a table for a task": (b"[[{}],{},{}]", {"task": {"a": 1}, "id": "x"}, "unknown_message"),
    "a list for a task": (b"[[{}],{},{}]", {"task": ["a"], "id": "x"}, "unknown_message"),
    "protocol 1": (b'{"task":"pos_gateway.submit_order","id":"y"}', {}, "unknown_message"),
    "protocol 1 with a list": (b'{"task":["x"],"id":"y"}', {}, "unknown_message"),
    "a task of Celery's own": (
        b"[1,2]",
        {"task": "celery.backend_cleanup", "id": "x"},
        "unknown_task",
    ),
    "callbacks": (b'[[{}],{},{"callbacks":[{"task":"x"}]}]', TASK, "invalid_message"),
    "a long id": (b"[[{}],{},{}]", {"task": TASK["task"], "id": "i" * 300}, "invalid_order"),
    "a surrogate for a merchant": (
        json.dumps([[an_order("o", "\ud800")], {}, {}]).encode(),
        TASK,
        "undecodable",
    ),
    "a NUL in a merchant": (
        json.dumps([[an_order("o", "a\u0000b")], {}, {}]).encode(),
        TASK,
        "invalid_order",
    ),
    "a long order id": (
        json.dumps([[an_order("ü" * 300, "m")], {}, {}]).encode(),
        TASK,
        "invalid_order",
    ),
    "a typed value": (
        b'[[{"order_id":{"__type__":"uuid","__value__":{"hex":"6f2b0c1e5d384f0e9a526a0e3d1b7c44"}}}],{},{}]',
        TASK,
        "invalid_order",
    ),
    "text that is no UTF-8": (b'[["\xff\xfe"],{},{}]', TASK, "undecodable"),
    "deep": (b"[[" + b"[" * 900 + b"]" * 900 + b"],{},{}]", TASK, "undecodable"),
    "compressed": (zlib.compress(b"[[{}],{},{}]"), {**TASK, "compression": "gzip"}, "compressed"),
    "compressed without its name": (zlib.compress(b"[[{}],{},{}]"), TASK, "undecodable"),
    "5 MB without a task": (b"[" + b" " * 5_000_000 + b"]", {}, "too_large"),
    "5 MB": (b'[["' + b"x" * 5_000_000 + b'"],{},{}]', TASK, "too_large"),
}


def test_an_invalid_message_is_dead_lettered_with_its_reason_and_the_worker_goes_on(
    served: Lab,
) -> None:
    served.open_merchants("fast-1")
    for name, (body, headers, _) in NO_ORDERS.items():
        served.publish_raw(body, headers, message_id=name)
    served.submit("fast-1", "good")
    dead = served.dead_letters(len(NO_ORDERS))
    [event] = served.events(1)
    assert (event["type"], event["order_id"]) == ("order.accepted", "good")
    codes = sorted(letter["headers"]["x-reason-code"] for letter in dead)
    assert codes == sorted(code for _, _, code in NO_ORDERS.values())
    assert all(letter["headers"]["x-reason"] for letter in dead)
    kept = {letter["body"] for letter in dead}
    for name, (body, _, code) in NO_ORDERS.items():
        # A body that was JSON, but no order, is serialized anew around the record; the rest is byte
        # for byte.
        assert code == "invalid_order" or body.decode("latin-1") in kept, name


ODD_HEADERS: dict[str, Any] = {
    "eta": "",
    "expires": [],
    "timelimit": [1, None],
    "retries": "many",
    "shadow": 7,
    "stamped_headers": "x",
    "x-attempts": "seven",
    "huge": "x" * 70_000,
}


def test_celerys_headers_are_ignored(served: Lab) -> None:
    served.open_merchants("fast-1")
    for number, (name, value) in enumerate(ODD_HEADERS.items()):
        body = json.dumps([[an_order(f"odd-{number}")], {}, {}]).encode()
        served.publish_raw(body, {**TASK, name: value})
    told = by_type(served.events(len(ODD_HEADERS)))
    assert len(told["order.accepted"]) == len(ODD_HEADERS)


def test_unreadable_properties_dead_letter_the_message_alone(served: Lab) -> None:
    """They raise inside the AMQP library, before there is a message to dead-letter."""
    served.open_merchants("fast-1")
    body = json.dumps([[an_order("odd")], {}, {}]).encode()
    served.publish_raw(body, TASK, correlation_id=b"\xe9\xff")
    served.submit("fast-1", "readable")
    [dead] = served.dead_letters(1)
    [event] = served.events(1)
    assert dead["headers"]["x-reason-code"] == "undecodable"
    assert event["order_id"] == "readable"


def test_an_invalid_orders_event_names_its_merchant_and_order(served: Lab) -> None:
    order = an_order("bad", total=-5, items=[])
    served.publish_raw(
        json.dumps([[order], {}, {}]).encode(), {"task": "pos_gateway.submit_order", "id": "bad"}
    )
    [event] = served.events(1)
    [dead] = served.dead_letters(1)
    assert (event["type"], event["order_id"]) == ("order.failed", "bad")
    assert "total" in event["reason"]["message"]
    assert dead["headers"]["x-reason-code"] == "invalid_order"


def test_a_merchants_limit_is_never_exceeded(served: Lab) -> None:
    served.open_merchants("limited", max_concurrency=3)
    served.merchants.profile("limited", {"kind": "accept", "latency": 0.05})
    served.submit("limited", *[f"o{n}" for n in range(60)])
    assert len(by_type(served.events(60))["order.accepted"]) == 60
    assert served.merchants.merchant("limited")["max_in_flight"] == 3
    assert served.merchants.summary()["creates"] == 60
