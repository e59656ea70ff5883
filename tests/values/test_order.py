"""Validation of an order, and its error messages."""

import json
from datetime import datetime
from typing import Any

import pytest

from pos_gateway.domain.errors import InvalidOrder
from pos_gateway.domain.order import CancelRequest, Order
from pos_gateway.domain.record import identifier
from tests.orders import an_order

#: Ids that a server may follow to another path.
#: Times that readers understand differently, or not at all: none is RFC 3339.
NO_TIMES = (
    *("20991128160000", "4095159576", "4095159576000", "4095159576.0", "20991128T160000Z"),
    *("2099-11-28T16:00Z", "2099-11-28T16:00:00", "2099-11-28_16:00:00Z", "2099-11-28T16:00:00,5Z"),
    *("2099-11-28T16:00:00+0100", "2099-11-28T16:00:00\u221201:00", "2099-11-28T16:00:00.Z"),
    *(
        "2099-11-28T16:00:00Z\n",
        " 2099-11-28T16:00:00Z",
        "\u0662099-11-28T16:00:00Z",
        "2099-W47-6",
        "",
    ),
)
TIMES = (
    *("2099-11-28T16:00:00Z", "2099-11-28t16:00:00z", "2099-11-28 16:00:00+01:00"),
    *("2099-11-28T16:00:00.5-23:59", "2099-11-28T16:00:00.123456789Z", "2099-11-28T16:00:00-00:00"),
)
TRAPS = (".", "..", "../x", "a/..", "a/./b", "%2e%2E", "..%2fx", "..;x", "a\\..\\b")


def test_a_valid_order_survives_serialization() -> None:
    order = Order.parse(an_order(customer={"name": "N", "phone": "1"}, tip=100, notes="ring"))
    assert Order.parse_json(order.to_json()) == order


def test_unknown_fields_are_passed_on() -> None:
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
        *(({"deliver_by": each}, "deliver_by") for each in NO_TIMES),
        ({"deliver_by": 4_000_000_000}, "deliver_by"),
        ({"deliver_by": "2020-01-01T00:00:00Z"}, "deliver_by"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidOrder) as caught:
        Order.parse(an_order(**change))
    assert caught.value.field == field
    assert field in str(caught.value)


@pytest.mark.parametrize("time", TIMES)
def test_a_time_of_rfc_3339_is_taken(time: str) -> None:
    text = json.dumps(an_order(deliver_by=time)).encode()
    for order in (Order.parse(an_order(deliver_by=time)), Order.read(text), Order.parse_json(text)):
        assert order is not None
        assert order.deliver_by == datetime.fromisoformat(time.upper())


@pytest.mark.parametrize("quantity", [0, -1, 1.5, "2", None])
def test_a_wrong_quantity_is_named_with_its_place(quantity: object) -> None:
    item = {"sku": "s", "name": "n", "quantity": quantity, "unit_price": 1}
    with pytest.raises(InvalidOrder, match=r"^items\[0\]\.quantity: "):
        Order.parse(an_order(items=[item]))


@pytest.mark.parametrize("record", [None, 3, "order", [], [an_order()]])
def test_a_value_that_is_no_record_is_refused(record: object) -> None:
    with pytest.raises(InvalidOrder):
        Order.parse(record)


def test_every_missing_field_is_named_at_once() -> None:
    with pytest.raises(InvalidOrder) as caught:
        Order.parse({})
    named = {error.field for error in caught.value.errors}
    assert named >= {"order_id", "merchant_id", "placed_at", "deliver_by", "items", "total"}


def item(**fields: Any) -> dict[str, Any]:
    return {"sku": "s", "name": "n", "quantity": 1, "unit_price": 1, **fields}


def test_twenty_errors_are_listed_and_the_others_counted() -> None:
    items = [item(quantity=0, unit_price=-1)] * 500
    with pytest.raises(InvalidOrder) as caught:
        Order.parse(an_order(items=items))
    *told, more = caught.value.errors
    assert len(told) == 20
    assert str(more) == "(record): … and 980 more"


def test_a_lists_error_is_omitted_only_if_one_of_its_items_is_listed() -> None:
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


def test_an_order_with_the_largest_lists_is_valid() -> None:
    most = [item(modifiers=[{"name": "x"}] * 250)] * 20 + [item()] * 980
    assert len(Order.parse(an_order(items=most)).items) == 1000


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", "-1E+400", "9" * 400 + ".0"])
@pytest.mark.parametrize("place", ['{"x":%s}', '{"x":[1,{"y":%s}]}', '{"notes":"NaN","x":%s}'])
def test_a_number_that_json_lacks_is_refused_everywhere(number: str, place: str) -> None:
    """Serialized as null, it would be another order."""
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
def test_a_text_that_looks_like_such_a_number_is_passed_on(value: object) -> None:
    text = json.dumps({**an_order(), "x": value})
    assert json.loads(Order.parse_json(text).to_json())["x"] == value


def test_a_price_too_large_to_add_up_is_refused() -> None:
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


def test_an_order_without_its_text_gets_no_defaults() -> None:
    record = an_order(items=[item(modifiers=[{"name": "x"}])], total=1, x=[None, 1.5])
    assert json.loads(Order.parse(record).source).keys() == record.keys()
    assert json.loads(Order.parse(record).source)["items"] == record["items"]


def test_a_new_deadline_changes_nothing_else_in_an_orders_text() -> None:
    until = datetime.fromisoformat("2099-02-02T00:00:00.5+01:00")
    text = json.dumps(an_order())[:-1] + "," + ODD.strip()[1:]
    newer = Order.parse_json(text).until(until)
    assert newer.deliver_by == until
    new = b'"2099-02-02T00:00:00.500000+01:00"'
    ours = newer.source.replace(new, b"?")
    assert ours.count(b"?") == 3  # once for each time that it is given
    theirs = text.encode().replace(b'"2099-01-01T00:00:00Z"', b"?")
    theirs = theirs.replace(b'"2099-01-01T00:00:01Z"', b"?")
    assert ours.partition(b'"items"')[2] == theirs.partition(b'"items"')[2]


def test_an_order_is_expired_from_its_deadline_on() -> None:
    order = Order.parse(an_order())
    assert order.expired(order.deliver_by)
    assert not order.expired(order.placed_at)
    assert isinstance(order.deliver_by, datetime)


@pytest.mark.parametrize(
    "order_id", ["...", "a.b", ".a", "a..b", "#1", "a/b", "%", "%25", "1;2", "v1.2/7"]
)
def test_an_id_with_dots_is_valid_unless_it_changes_the_path(order_id: str) -> None:
    assert Order.parse(an_order(order_id)).order_id == order_id


@pytest.mark.parametrize("trap", TRAPS)
def test_an_external_id_does_not_change_the_path(trap: str) -> None:
    assert identifier(trap) is None


def test_an_attribute_beside_an_orders_fields_is_kept_and_is_no_field() -> None:
    """pydantic keeps fields in the instance's ``__dict__``, and ignores other entries."""
    record = an_order("o1", "m1")
    text = json.dumps(record, indent=1).encode()
    order = Order.parse_json(text)
    assert order.source == text
    assert order.model_copy().source == text
    assert order.in_ledger(0.0, None).source == text
    assert "source" not in json.loads(order.to_json())
    assert order == Order.parse(record)
