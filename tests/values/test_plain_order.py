"""A plain order is what ``Order`` reads and writes, and everything else is left to it."""

import json
from typing import Any

import pytest

from pos_gateway.domain.errors import InvalidOrder
from pos_gateway.domain.order import Order
from pos_gateway.domain.plain_order import LEFT_OUT, PlainReader, plain_order
from pos_gateway.domain.quick_order import QuickFields
from pos_gateway.ledger.submissions import digest, digest_of
from tests.values.test_quick_order import PLACES, VALUES, WHOLE, changed, texts, without

#: Fields that no order has by itself.
UNKNOWN = {("items", 0, "station"), ("customer", "email"), ("channel",)}
PLAIN = WHOLE | {"deliver_by": "2026-01-31T12:30:00.123456+00:00", "fulfillment": "pickup"}
for _place in UNKNOWN:
    PLAIN = without(PLAIN, _place)


def plain_texts() -> list[bytes]:
    records = [PLAIN]
    for place in PLACES:
        if place[0] == "unknown" or place in UNKNOWN:
            continue
        records += [changed(PLAIN, place, value) for value in VALUES]
        if isinstance(place[-1], str):
            records.append(without(PLAIN, place))
    many = PLAIN["items"][1] | {"modifiers": [{"name": ""}] * 167}
    records += [PLAIN | {"items": [many] * 30}, PLAIN | {"items": [PLAIN["items"][1]] * 1001}]
    found = [json.dumps(each, separators=(",", ":")).encode() for each in records]
    return [*found, found[0].replace(b'"tip":1', b'"tip":7,"tip":1'), b" " + found[0] + b"\n"]


def test_a_plain_order_is_what_the_model_reads_and_writes() -> None:
    plain = 0
    for text in (*plain_texts(), *texts()):
        found = plain_order(text)
        if found is None:
            continue
        plain += 1
        order = Order._checked(lambda text=text: Order.model_validate_json(text), text)
        assert found[:3] == (order.merchant_id, order.order_id, order.deliver_by), text
        assert found.written == order.to_json(), text
        assert digest_of(found.written) == digest(order), text
    assert plain > 100, "else the model has read all"


@pytest.mark.parametrize(
    "others",
    [
        {"deliver_by": "2026-01-31T14:00:00+01:30"},
        {"placed_at": "2026-01-31T11:00:00-01:00"},
        {"fulfillment": {"type": "delivery"}},
        {"channel": "web"},
        {"channel": None},
        {"customer": {"name": "N", "vip": True}},
        {"items": [PLAIN["items"][0] | {"station": 1}]},
    ],
)
def test_an_order_that_is_compared_otherwise_is_left_to_the_model(others: dict[str, Any]) -> None:
    assert plain_order(json.dumps(PLAIN).encode()) is not None
    text = json.dumps(PLAIN | others).encode()
    assert Order.parse_json(text)
    assert plain_order(text) is None


@pytest.mark.parametrize(
    "others", [{"deliver_by": PLAIN["placed_at"]}, {"total": -1}, {"notes": "x" * 5000}]
)
def test_an_invalid_order_is_left_to_the_model(others: dict[str, Any]) -> None:
    text = json.dumps(PLAIN | others).encode()
    with pytest.raises(InvalidOrder):
        Order.parse_json(text)
    assert plain_order(text) is None


@pytest.mark.parametrize("number", ["NaN", "1e999", "-Infinity"])
def test_a_number_that_json_has_not_is_left_to_the_model(number: str) -> None:
    text = json.dumps(PLAIN).replace('"tip": 1', f'"tip": {number}, "tip": 1').encode()
    assert plain_order(text) is None


def test_a_backend_whose_orders_are_not_plain_seldom_pays_for_two_readers() -> None:
    plain, other = (json.dumps(each).encode() for each in (PLAIN, PLAIN | {"channel": "web"}))
    read = PlainReader()
    assert read(plain) is not None
    assert [read(text) is None for text in (other, *[plain] * LEFT_OUT)] == [True] * (LEFT_OUT + 1)
    assert read(plain) == plain_order(plain)


def test_a_model_whose_fields_have_other_names_is_left_to_it() -> None:
    from pydantic import Field

    class Later(Order):
        table: str = Field("", validation_alias="at")

    assert QuickFields(Later)(json.dumps(PLAIN).encode()) is None
    assert QuickFields(Order)(json.dumps(PLAIN).encode()) is not None
