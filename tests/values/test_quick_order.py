"""The quick reader takes what ``Order`` takes, with the same values, and leaves every error to it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from pos_gateway.domain.errors import InvalidOrder
from pos_gateway.domain.order import MODIFIERS, Order
from pos_gateway.domain.quick_order import quick_reader
from tests.orders import an_order
from tests.values.test_order import NO_TIMES, TIMES, TRAPS

WHOLE = an_order(
    placed_at="2026-01-31T12:00:00Z",
    deliver_by="2026-01-31T14:00:00.123456+01:30",
    items=[
        {
            "sku": "s",
            "name": "Süß",
            "quantity": 2,
            "unit_price": 5,
            "modifiers": [{"name": "extra", "sku": "m", "quantity": 1, "unit_price": -1}],
            "notes": "hot",
            "station": [1, {"grill": True}],
        },
        {"sku": "t", "name": "u", "quantity": 1, "unit_price": 0},
    ],
    tip=1,
    fulfillment={"type": "delivery", "at": [1, 2.5]},
    customer={"name": "N", "phone": "1", "email": None},
    notes="ring",
    channel={"b": 1, "a": [1.5]},
)
#: Values that stand in for every other one.
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        0,
        1,
        -1,
        1.0,
        1.5,
        10**19,
        2**53,
        2**53 + 1,
        "",
        "1",
        "EUR",
        "a.b",
        "é",
        "a" * 129,
    ),
    *("1700000000", "2026-01-31", "2026-01-31T12:30:00Z", "2026-01-31T12:30:00", "x" * 5000),
    *([], {}, [1], {"name": "n"}, ["a"], [{}]),
    *TRAPS,
    *NO_TIMES,
    *TIMES,
    *("..a", "a..", "a.b.c", "a/.b", "%41", "é.", "a b", "a\n"),
)
PLACES = [
    *((name,) for name in WHOLE),
    *(("items", 0, name) for name in WHOLE["items"][0]),
    *(("items", 0, "modifiers", 0, name) for name in WHOLE["items"][0]["modifiers"][0]),
    *(("customer", name) for name in WHOLE["customer"]),
    *((("items", 0), ("items", 0, "modifiers", 0), ("unknown",))),
]
TEXTS = (
    *(b"GET /v1/events NaN 1e999", b'{"a": NaNx, "b": Infinit}', b'{"a": 1e9999x}'),
    *(b"", b"null", b"[]", b"{", b'{"a":1}', b"\xff", b'"' + b"a" * 10 + b'"'),
    json.dumps(WHOLE).encode() + b" x",
    json.dumps(WHOLE).replace('"tip": 1', '"tip": 1e999, "tip": 1').encode(),
    json.dumps(WHOLE).replace('"tip": 1', '"tip": NaN, "tip": 1').encode(),
    json.dumps(WHOLE).replace('"tip": 1', '"tip": 7, "tip": 1').encode(),
    json.dumps(WHOLE).replace('"sku": "t"', '"sku": 5, "sku": "t"').encode(),
    json.dumps(WHOLE).replace('"sku": "t"', '"sku": "t", "sku": 5').encode(),
    json.dumps(WHOLE).replace('"b": 1', '"b": 1, "b": 2').encode(),
    json.dumps(WHOLE).replace('"order_id": "o1"', r'"order\u005fid": "o\u0031"').encode(),
    json.dumps(WHOLE | {"items": [{"modifiers": [{}] * 100}] * 60}).encode(),
    json.dumps(WHOLE | {"items": [{"modifiers": [1] * 100}] * 60}).encode(),
    json.dumps(
        WHOLE | {"items": [WHOLE["items"][1] | {"modifiers": [{"name": ""}] * 167}] * 30},
        separators=(",", ":"),
    ).encode(),
    json.dumps(WHOLE | {"items": [1] * 1001}).encode(),
    json.dumps(WHOLE | {"deliver_by": WHOLE["placed_at"]}).encode(),
)


def texts() -> Iterator[bytes]:
    yield from TEXTS
    for place in PLACES:
        for value in VALUES:
            yield json.dumps(changed(WHOLE, place, value)).encode()
        if isinstance(place[-1], str):
            yield json.dumps(without(WHOLE, place)).encode()


def changed(record: Any, place: tuple[Any, ...], value: Any) -> Any:
    first, *rest = place
    new = value if not rest else changed(record[first], tuple(rest), value)
    if isinstance(record, list):
        return [*record[:first], new, *record[first + 1 :]]
    return {**record, first: new}


def without(record: Any, place: tuple[Any, ...]) -> Any:
    first, *rest = place
    if rest:
        return changed(record, (first,), without(record[first], tuple(rest)))
    return {name: value for name, value in record.items() if name != first}


def outcome(read: Any, text: bytes) -> object:
    """Every value with its type, and which fields were given; or the errors."""
    try:
        order = read(text)
    except InvalidOrder as error:
        return list(map(repr, error.errors))
    return repr(order), order.model_fields_set, [item.model_fields_set for item in order.items]


def plainly(text: bytes) -> Order:
    return Order._checked(lambda: Order.model_validate_json(text), text)


def test_every_order_is_read_as_the_model_reads_it() -> None:
    quick = 0
    for text in texts():
        expected = outcome(plainly, text)
        assert outcome(Order.parse_json, text) == expected, text
        quick += Order.read(text) is not None
    assert quick > 300, "else the model has read all"


@pytest.mark.parametrize(
    "order_id", ["a", "a.b", "A-1_2.3", "/", "a/b?c#d;e\\f", "x" * 128, "~!$&'()"]
)
def test_an_order_with_a_usual_id_is_read_quickly(order_id: str) -> None:
    read = quick_reader(Order)
    assert read is not None
    assert read(json.dumps(an_order(order_id=order_id)).encode()).order_id == order_id


def test_a_model_with_another_validator_is_left_to_it() -> None:
    """As if pydantic wrote schemas otherwise."""

    class Later(Order):
        @classmethod
        def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
            from pydantic_core import core_schema

            return core_schema.no_info_after_validator_function(lambda each: each, handler(source))

    assert quick_reader(Later) is None
    assert quick_reader(Order) is not None
    assert Later.parse_json(json.dumps(WHOLE)).order_id == WHOLE["order_id"]


def test_an_order_with_many_objects_is_left_to_the_model() -> None:
    """It refuses too many modifiers before it looks at each."""
    assert Order.read(json.dumps(an_order(extra=[{"name": ""}] * MODIFIERS)).encode()) is None
    assert Order.parse_json(json.dumps(an_order(extra=[{"name": ""}] * MODIFIERS))).order_id
