"""Bundles on the wire: every order's bytes and history go in and come out, and nothing else does."""

import json
from dataclasses import replace
from typing import Any

import pytest

from pos_gateway.broker import wire
from pos_gateway.broker.bundle import (
    MAX_BYTES,
    MAX_ORDERS,
    PARKED_ORDERS,
    Bundle,
    ParkedOrder,
    joined,
)
from pos_gateway.broker.message import Message
from pos_gateway.broker.wire import is_plain
from pos_gateway.domain.errors import InvalidBundle

BODY = '[[{"order_id":"o1","notes":"Grüße, \\n\\u0000 {}],{","total":1.10}],{},{}]'.encode()


def parked(number: int = 1, *, deliver_by: float | None = 1000.0, **headers: Any) -> ParkedOrder:
    body = BODY.replace(b"o1", f"o{number}".encode())
    message = Message(
        "orders", "orders", body, f"o{number}", {"task": wire.SUBMIT_ORDER, "id": "i", **headers}
    )
    return ParkedOrder(message, deliver_by)


def arrived(message: Message) -> Bundle:
    """The bundle that a worker reads from what was published."""
    return Bundle.read(message.headers, message.body, message.routing_key)


def in_one_piece(bundle: Bundle) -> Bundle:
    """The same bundle, to be compared."""
    return replace(bundle, pieces=[bundle.lines])


def test_orders_come_out_as_they_went_in() -> None:
    orders = [parked(n, **{"x-attempts": n, "x-resolve": True}) for n in range(64)]
    orders.append(parked(64, deliver_by=None))
    assert arrived(Bundle.of("m", "orders", orders).message()).open() == orders


def test_a_bundle_is_json_in_the_form_of_any_celery_message() -> None:
    message = Bundle.of("m", "orders", [parked(1), parked(2)]).message()
    (arguments,), named, embedded = json.loads(message.body)
    assert [arguments[1], arguments[3]] == [json.loads(parked(n).message.body) for n in (1, 2)]
    assert (named, any(embedded.values())) == ({}, False)
    assert message.headers["task"] == PARKED_ORDERS
    assert isinstance(message.headers["id"], str)


def test_the_headers_say_what_is_in_it() -> None:
    orders = [parked(deliver_by=None), parked(deliver_by=99.2), parked(deliver_by=200.0)]
    bundle = Bundle.of("m", "orders.canary", orders)
    read = arrived(bundle.message())
    assert in_one_piece(read) == in_one_piece(bundle)
    assert (read.merchant_id, read.orders) == ("m", 3)
    assert read.deliver_by == 100  # the next whole second: then the first one is worthless
    assert read.routing_key == "orders.canary"
    assert all(each.message.routing_key == "orders.canary" for each in read.open())


def test_a_bundle_of_look_ups_alone_says_so() -> None:
    in_doubt = [parked(n, **{"x-attempts": 1, "x-look-up": True}) for n in (1, 2)]
    of_an_earlier_release = parked(3, **{"x-attempts": 1, "x-resolve": True})
    from_a_backend = parked(4, **{"x-look-up": True})
    for orders, are_look_ups in (
        (in_doubt, True),
        ([*in_doubt, of_an_earlier_release], True),
        ([*in_doubt, parked(5)], False),
        ([*in_doubt, from_a_backend], False),
    ):
        message = Bundle.of("m", "orders", orders).message()
        assert ("x-look-up" in message.headers, arrived(message).look_ups) == (
            are_look_ups,
            are_look_ups,
        )


def test_a_bundle_goes_on_as_it_came_without_being_opened() -> None:
    message = Bundle.of("m", "orders", [parked(1), parked(2)]).message()
    broken = replace(message, body=message.body.replace(b'"message_id"', b'"messageeid"'))
    assert arrived(broken).message().body == broken.body


def test_a_bundle_is_small_that_is_half_full_at_most_of_orders_or_of_bytes() -> None:
    def of(orders: int, size: int) -> Bundle:
        bundle = Bundle.of("m", "orders", [parked(n) for n in range(orders)])
        return replace(bundle, size=size)

    half, big = MAX_ORDERS // 2, MAX_BYTES // 2
    assert of(half, big).is_small()
    assert not of(half + 1, big).is_small()
    assert not of(half, big + 1).is_small()


def test_bundles_are_joined_without_being_opened() -> None:
    parts = [[parked(1), parked(2, deliver_by=50.0)], [parked(3)], [parked(4), parked(5)]]
    whole = joined(
        arrived(Bundle.of("m", "orders", part).message()) for part in (parts[0], parts[2])
    )
    whole = joined([whole, Bundle.of("m", "orders", parts[1])])
    assert whole.open() == [*parts[0], *parts[2], *parts[1]]
    assert (whole.orders, whole.deliver_by) == (5, 50)
    again = Bundle.of("m", "orders", whole.open())
    assert in_one_piece(whole) == in_one_piece(again)
    assert arrived(whole.message()).size == whole.size


def test_a_body_with_newlines_is_the_same_json_afterwards() -> None:
    pretty = json.dumps([[{"a": [1, 2], "b": "x,\ny"}], {}, {}], indent=1).encode()
    order = ParkedOrder(replace(parked().message, body=pretty), None)
    [out] = arrived(Bundle.of("m", "orders", [order, parked()]).message()).open()[:1]
    assert json.loads(out.message.body) == json.loads(pretty)


def test_a_single_order_is_its_own_message() -> None:
    order = parked(**{"x-attempts": 3})
    assert Bundle.of("m", "orders", [order]).message() == order.message


GOOD = Bundle.of("m", "orders", [parked(1), parked(2)]).message()


@pytest.mark.parametrize(
    ("headers", "wrong"),
    [
        ({"x-merchant-id": None}, "x-merchant-id"),
        ({"x-merchant-id": "a b"}, "x-merchant-id"),
        ({"x-orders": None}, "x-orders"),
        ({"x-orders": True}, "x-orders"),
        ({"x-orders": 0}, "x-orders"),
        ({"x-orders": 10**9}, "x-orders"),
        ({"x-deliver-by": "soon"}, "x-deliver-by"),
        ({"x-deliver-by": 1.5}, "x-deliver-by"),
    ],
)
def test_headers_that_say_nothing_are_refused_by_name(headers: dict[str, Any], wrong: str) -> None:
    with pytest.raises(InvalidBundle, match=wrong):
        arrived(replace(GOOD, headers={**GOOD.headers, **headers}))


@pytest.mark.parametrize("body", [b"", b"[]", GOOD.body[:-1], GOOD.body[1:], b"[[[\n"])
def test_a_body_that_is_cut_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidBundle):
        arrived(replace(GOOD, body=body))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'{"message_id": "o1"', b'{"message_id": "o1'),
        (b'"message_id": "o1"', b'"message_id": 7'),
        (b'"message_id": "o1"', b'"message_id": "two words"'),
        (b'"message_id": "o1"', b'"message_ident": "o1"'),
        (b'"headers": {', b'"headerz": {'),
        (b'"id": "i"', b'"id": {"a": 1}'),
        (b'"id": "i"', b'"id": 99999999999999999999'),
        (b'"id": "i"', b'"id": "\\ud800"'),
        (b'"id": "i"', b'"": "i"'),
        (b"1000.0", b'"soon"'),
        (b"1000.0", b"NaN"),
        (b"1000.0", b"1e999"),
        (b"1000.0", b"1" + b"0" * 400),
        (b"1000.0", b"1e300"),
        (b",\n[[", b",\n[],\n[["),
        (b'{"message_id"', b"[" * 100_000 + b'{"message_id"'),
    ],
)
def test_orders_that_cannot_be_relied_upon_are_refused(old: bytes, new: bytes) -> None:
    assert old in GOOD.body
    with pytest.raises(InvalidBundle):
        arrived(replace(GOOD, body=GOOD.body.replace(old, new, 1))).open()


def test_fewer_or_more_orders_than_it_says_are_refused() -> None:
    with pytest.raises(InvalidBundle, match="3 orders"):
        arrived(replace(GOOD, headers={**GOOD.headers, "x-orders": 3})).open()


def test_text_that_cannot_be_sent_is_no_plain_header() -> None:
    """Let into a bundle, it would have the others in it set aside as well."""
    assert is_plain("ö")
    assert not is_plain("x\ud800")
