"""Events as types, from everywhere they come, also from a later gateway."""

import json
from pathlib import Path
from typing import Any

import pytest

from pos_gateway.client import events
from pos_gateway.client.events import (
    EventMerchant,
    EventReason,
    OrderAccepted,
    OrderRejected,
    StatusEvent,
)
from pos_gateway.domain.errors import InvalidEvent
from pos_gateway.server.examples import EVENT, STREAM
from pos_gateway.server.schemas import EventView
from tests.docs.test_consuming_events import message

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "docs" / "asyncapi.yaml").read_text())
TERMINAL = {"accepted", "rejected", "cancelled", "expired", "failed"}


def an_event(**fields: Any) -> dict[str, Any]:
    return {**json.loads(json.dumps(EVENT, default=str)), **fields}


def test_every_type_of_the_contract_has_a_class() -> None:
    published = SCHEMA["channels"]["events"]["parameters"]["outcome"]["enum"]
    assert {*events.TYPES} == {f"order.{each}" for each in published}
    assert len({*events.TYPES.values()}) == len(events.TYPES)
    assert {name for name, each in events.TYPES.items() if each.is_terminal} == {
        f"order.{each}" for each in TERMINAL
    }


def test_every_field_of_the_contract_is_an_attribute() -> None:
    assert {*StatusEvent.model_fields} == {*EventView.model_fields}


@pytest.mark.parametrize("kind", sorted(events.TYPES))
def test_an_event_is_of_its_type_s_class(kind: str) -> None:
    event = events.parse(an_event(type=kind))
    assert type(event) is events.TYPES[kind]
    assert event.type == kind


def test_a_message_of_the_broker_is_parsed() -> None:
    event = events.parse(message(4).body)
    assert isinstance(event, OrderAccepted)
    assert (event.position, event.id, event.order_id) == (4, "id-4", "o-2")
    assert event.merchant == EventMerchant(provider=None, adapter="rest")
    assert event.order == {"total": 1}
    assert event.occurred_at is not None
    assert event.occurred_at.timestamp() == 1_800_000_000.0


def test_a_stream_is_parsed() -> None:
    lines = [
        *("retry: 1000", "", ": still here", ""),
        *STREAM.splitlines(),
        *(": still here", ""),
        *("id: 4712", "event: order.rejected"),
        *("data: " + json.dumps(an_event(position=4712, type="order.rejected")), ""),
        *("id: 4713", "data:" + json.dumps(an_event(position=4713)), ""),
        "data: {cut off",
    ]
    for given in (lines, [line.encode() for line in lines]):
        found = [*events.from_stream(given)]
        assert [type(each) for each in found] == [OrderAccepted, OrderRejected, OrderAccepted]
        assert [each.position for each in found] == [4711, 4712, 4713]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_stream_s_lines_end_where_the_standard_says(end: str) -> None:
    """As text, a line is not over at the other characters at which ``str.splitlines`` ends one."""
    order = {"notes": "a\u2028b\u2029c\x85d\x0be"}
    body = json.dumps(an_event(order=order), ensure_ascii=False)
    stream = f"id: 4711{end}data: {body}{end}{end}"
    with_ends = stream.replace(end, end + "\0").split("\0")
    for given in (stream, [stream], with_ends, [line.removesuffix(end) for line in with_ends]):
        encoded = given.encode() if isinstance(given, str) else [each.encode() for each in given]
        for each in (given, encoded):
            assert [event.order for event in events.from_stream(each)] == [order]


def test_a_later_gateway_s_types_and_fields_are_kept() -> None:
    event = events.parse(
        an_event(
            type="order.eaten",
            taste={"salt": 1},
            reason={"code": "new", "message": "m", "hint": "h"},
            merchant={"provider": "p", "adapter": "a", "shop": 7},
        )
    )
    assert type(event) is StatusEvent
    assert not event.is_terminal
    assert event.taste == {"salt": 1}  # type: ignore[attr-defined]
    assert event.reason is not None
    assert event.reason.hint == "h"  # type: ignore[attr-defined]
    assert event.model_dump()["taste"] == {"salt": 1}


def test_an_event_is_matched_by_its_class() -> None:
    match events.parse(
        an_event(type="order.rejected", reason={"code": "closed", "message": "We are closed"})
    ):
        case OrderRejected(order_id=order_id, reason=EventReason(code=code)):
            assert (order_id, code) == ("A-1001", "closed")
        case other:
            raise AssertionError(other)


def test_an_order_of_the_deepest_kind_is_read() -> None:
    order: Any = 1
    for _ in range(200):
        order = [order]
    assert events.parse(json.dumps(an_event(order={"x": order}))).order == {"x": order}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (b"", "is not JSON"),
        (b"\xff", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "should be an object"),
        ({}, "position: is required"),
        (an_event(position=0), "position: "),
        (an_event(position="x"), "position: "),
        (an_event(type=7), "type: "),
        (an_event(type=["order.accepted"]), "type: "),
        (an_event(occurred_at="yesterday"), "occurred_at: "),
    ],
)
def test_what_is_no_event_names_its_field(given: Any, words: str) -> None:
    with pytest.raises(InvalidEvent, match=words):
        events.parse(given)
