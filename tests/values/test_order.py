"""What an order must be, and how a wrong one is told."""

import json
from datetime import datetime
from typing import Any

import pytest

from pos_gateway.domain.errors import InvalidOrder
from pos_gateway.domain.order import CancelRequest, Order
from pos_gateway.domain.record import identifier
from tests.orders import an_order

#: Ids that a server may follow to another path.
TRAPS = (".", "..", "../x", "a/..", "a/./b", "%2e%2E", "..%2fx", "..;x", "a\\..\\b")


def test_a_valid_order_survives_the_way_to_json_and_back() -> None:
    order = Order.parse(an_order(customer={"name": "N", "phone": "1"}, tip=100, notes="ring"))
    assert Order.parse_json(order.to_json()) == order


def test_fields_that_the_gateway_does_not_know_are_passed_on() -> None:
    order = Order.parse(an_order(channel="kiosk"))
    assert json.loads(order.to_json())["channel"] == "kiosk"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"order_id": ""}, "order_id"),
        ({"order_id": "a b"}, "order_id"),
        ({"order_id": "line\nbreak"}, "order_id"),
        ({"order_id": 7}, "order_id"),
        *(({"order_id": each}, "order_id") for each in TRAPS),
        ({"merchant_id": ".."}, "merchant_id"),
        ({"merchant_id": None}, "merchant_id"),
        ({"currency": "euro"}, "currency"),
        ({"total": -1}, "total"),
        ({"total": 12.5}, "total"),
        ({"total": "1700"}, "total"),
        ({"total": True}, "total"),
        ({"tip": -5}, "tip"),
        ({"items": []}, "items"),
        ({"items": "burger"}, "items"),
        ({"placed_at": "yesterday"}, "placed_at"),
        ({"placed_at": "2026-01-01T12:00:00"}, "placed_at"),
        ({"placed_at": 1_700_000_000}, "placed_at"),
        ({"deliver_by": 4_000_000_000}, "deliver_by"),
        ({"deliver_by": "2020-01-01T00:00:00Z"}, "deliver_by"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidOrder) as caught:
        Order.parse(an_order(**change))
    assert caught.value.field == field
    assert field in str(caught.value)


@pytest.mark.parametrize("quantity", [0, -1, 1.5, "2", None])
def test_a_wrong_quantity_is_named_with_its_place(quantity: object) -> None:
    item = {"sku": "s", "name": "n", "quantity": quantity, "unit_price": 1}
    with pytest.raises(InvalidOrder, match=r"^items\[0\]\.quantity: "):
        Order.parse(an_order(items=[item]))


@pytest.mark.parametrize("record", [None, 3, "order", [], [an_order()]])
def test_what_is_no_record_at_all_is_refused(record: object) -> None:
    with pytest.raises(InvalidOrder):
        Order.parse(record)


def test_every_missing_field_is_named_at_once() -> None:
    with pytest.raises(InvalidOrder) as caught:
        Order.parse({})
    named = {error.field for error in caught.value.errors}
    assert named >= {"order_id", "merchant_id", "placed_at", "deliver_by", "items", "total"}


def item(**fields: Any) -> dict[str, Any]:
    return {"sku": "s", "name": "n", "quantity": 1, "unit_price": 1, **fields}


def test_twenty_errors_are_told_and_the_others_counted() -> None:
    items = [item(quantity=0, unit_price=-1)] * 500
    with pytest.raises(InvalidOrder) as caught:
        Order.parse(an_order(items=items))
    *told, more = caught.value.errors
    assert len(told) == 20
    assert str(more) == "(record): … and 980 more"


def test_a_lists_error_is_left_out_only_if_one_in_it_is_told() -> None:
    with pytest.raises(InvalidOrder) as caught:
        Order.parse(an_order(items=[item(), 7], notes=7))
    assert [each.field for each in caught.value.errors] == ["items[1]", "notes"]


@pytest.mark.parametrize(
    ("items", "field"),
    [
        ([item(modifiers=[{"name": "x"}] * 251)], "items[0].modifiers"),
        ([item(modifiers=[{}] * 87_000)], "items"),
        ([item(modifiers=[{"name": "x"}] * 250)] * 21, "items"),
    ],
)
def test_modifiers_are_bounded(items: list[dict[str, Any]], field: str) -> None:
    with pytest.raises(InvalidOrder) as caught:
        Order.parse(an_order(items=items))
    assert [each.field for each in caught.value.errors] == [field]


def test_the_largest_order_by_its_lists_is_one() -> None:
    most = [item(modifiers=[{"name": "x"}] * 250)] * 20 + [item()] * 980
    assert len(Order.parse(an_order(items=most)).items) == 1000


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", "-1E+400", "9" * 400 + ".0"])
@pytest.mark.parametrize("place", ['{"x":%s}', '{"x":[1,{"y":%s}]}', '{"notes":"NaN","x":%s}'])
def test_a_number_that_json_has_not_is_refused_wherever_it_stands(number: str, place: str) -> None:
    """As null, which it would become, it would be another order."""
    text = json.dumps(an_order())[:-1] + "," + (place % number)[1:]
    wish = {name: an_order()[name] for name in ("order_id", "merchant_id", "deliver_by")}
    for parse in (
        lambda: Order.parse_json(text),
        lambda: Order.parse(json.loads(text)),
        lambda: CancelRequest.parse({**json.loads(text), **wish}),
    ):
        with pytest.raises(InvalidOrder, match="a number that JSON has not"):
            parse()


@pytest.mark.parametrize("value", ["NaN Infinity 1e999", 1e300, 10**4000, -0.0, 5e-324])
def test_what_only_looks_like_one_is_passed_on(value: object) -> None:
    text = json.dumps({**an_order(), "x": value})
    assert json.loads(Order.parse_json(text).to_json())["x"] == value


def test_a_price_too_large_to_be_added_up_is_refused() -> None:
    with pytest.raises(InvalidOrder, match=r"items\[0\]\.modifiers\[0\]\.unit_price"):
        Order.parse(an_order(items=[item(modifiers=[{"name": "x", "unit_price": 10**20}])]))


ODD = (
    ' {"note" : "\\u00e9\\/é", "deliver_by": "2099-01-01T00:00:00Z",\n"x":[{"deliver_by":1.50}],'
    ' "a\\"b":1e2, "deliver_by":"2099-01-01T00:00:01Z" , "y":{}}\t'
)


def test_an_order_keeps_its_text_byte_for_byte() -> None:
    text = json.dumps(an_order())[:-1] + "," + ODD.strip()[1:]
    order = Order.parse_json(text)
    assert order.source == text.encode()
    assert Order.parse(json.loads(text), text.encode()).source == text.encode()


def test_an_order_that_came_as_no_text_gets_no_defaults() -> None:
    record = an_order(items=[item(modifiers=[{"name": "x"}])], total=1, x=[None, 1.5])
    assert json.loads(Order.parse(record).source).keys() == record.keys()
    assert json.loads(Order.parse(record).source)["items"] == record["items"]


def test_new_time_changes_nothing_else_of_an_orders_text() -> None:
    until = datetime.fromisoformat("2099-02-02T00:00:00.5+01:00")
    text = json.dumps(an_order())[:-1] + "," + ODD.strip()[1:]
    newer = Order.parse_json(text).until(until)
    assert newer.deliver_by == until
    new = b'"2099-02-02T00:00:00.500000+01:00"'
    ours = newer.source.replace(new, b"?")
    assert ours.count(b"?") == 3  # each time that it is given
    theirs = text.encode().replace(b'"2099-01-01T00:00:00Z"', b"?")
    theirs = theirs.replace(b'"2099-01-01T00:00:01Z"', b"?")
    assert ours.partition(b'"items"')[2] == theirs.partition(b'"items"')[2]


def test_an_order_is_expired_from_its_last_moment_on() -> None:
    order = Order.parse(an_order())
    assert order.expired(order.deliver_by)
    assert not order.expired(order.placed_at)
    assert isinstance(order.deliver_by, datetime)


@pytest.mark.parametrize(
    "order_id", ["...", "a.b", ".a", "a..b", "#1", "a/b", "%", "%25", "1;2", "v1.2/7"]
)
def test_an_id_with_a_dot_is_one_where_it_leads_nowhere_else(order_id: str) -> None:
    assert Order.parse(an_order(order_id)).order_id == order_id


@pytest.mark.parametrize("trap", TRAPS)
def test_what_a_pos_calls_an_order_leads_nowhere_else_either(trap: str) -> None:
    assert identifier(trap) is None


def test_what_is_kept_beside_an_orders_fields_stays_with_it_and_is_no_field() -> None:
    """pydantic keeps fields in the instance's ``__dict__``, and leaves alone what else is there."""
    record = an_order("o1", "m1")
    text = json.dumps(record, indent=1).encode()
    order = Order.parse_json(text)
    assert order.source == text
    assert order.model_copy().source == text
    assert order.in_ledger(0.0, None).source == text
    assert "source" not in json.loads(order.to_json())
    assert order == Order.parse(record)
