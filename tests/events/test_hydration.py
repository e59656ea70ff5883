"""Rows become events, whatever they contain."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pos_gateway.domain.outcome import Reason
from pos_gateway.events.hydration import YIELD_EVERY, Hydration, weight
from pos_gateway.events.outbox import Row
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Key
from pos_gateway.runtime import green
from pos_gateway.runtime.vault import Vault
from tests.ledger.lab import DAY

SEALING = Payloads(Vault("a key"))
CLEAR = Payloads(Vault())
KEY = Key("m", "o1")
ORDER = b'{"order_id":"o1","notes":"\xc3\xa4"}'


def a_row(**values: Any) -> Row:
    fields: dict[str, Any] = {
        "id": 7,
        "position": 12,
        "event_id": "e1",
        "kind": "rejected",
        "merchant_id": "m",
        "order_id": "o1",
        "occurred_at": DAY,
        "external_id": "x",
        "reason_code": "sold_out",
        "reason_message": "no more",
        "attempts": 3,
        "body": None,
        "payload": ORDER.decode(),
        "provider": "acme",
        "adapter": "rest",
    }
    return Row(**{**fields, **values})


def hydrated(row: Row, payloads: Payloads = CLEAR, **options: Any) -> dict[str, Any]:
    message = Hydration(payloads, **options).message(row)
    event: dict[str, Any] = json.loads(message.body)
    assert (message.message_id, message.routing_key) == (row.event_id, event["type"])
    assert (event["id"], event["position"]) == (row.event_id, row.position)
    return event


def test_an_event_is_the_row_with_its_order_and_its_merchants_public_fields() -> None:
    assert hydrated(a_row()) == {
        "id": "e1",
        "position": 12,
        "type": "order.rejected",
        "order_id": "o1",
        "merchant_id": "m",
        "occurred_at": datetime.fromtimestamp(DAY, UTC).isoformat(timespec="milliseconds"),
        "external_id": "x",
        "reason": {"code": "sold_out", "message": "no more"},
        "attempts": 3,
        "merchant": {"provider": "acme", "adapter": "rest"},
        "order": json.loads(ORDER),
    }


def test_an_events_headers_have_its_trace_and_nothing_else() -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    said = {
        None: {},
        parent: {"traceparent": parent},
        f"{parent} a=b c,d=e": {"traceparent": parent, "tracestate": "a=b c,d=e"},
        "00-nonsense": {},
        "": {},
    }
    for trace, headers in said.items():
        assert Hydration(CLEAR).message(a_row(trace=trace)).headers == headers


def test_encrypted_fields_are_decrypted() -> None:
    reason = SEALING.seal_reason(KEY, Reason("sold_out", "no more"))
    row = a_row(
        payload=SEALING.seal(KEY, ORDER), reason_code=reason.code, reason_message=reason.message
    )
    event = hydrated(row, SEALING)
    assert event == hydrated(a_row())


def test_a_helpers_event_is_used() -> None:
    sealed = Hydration(SEALING).sealed(a_row(position=None))
    assert "sold_out" not in sealed
    assert hydrated(a_row(body=sealed, payload=None, external_id="y"), SEALING) == hydrated(a_row())


@pytest.mark.parametrize("body", ["", "{", "nonsense", "k.e.y", '{"a":NaN}', "[]"])
def test_a_helpers_unreadable_event_is_hydrated_again(body: str) -> None:
    assert hydrated(a_row(body=body)) == hydrated(a_row())


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (None, "the order is not kept"),
        ("{", "the order that was kept is not JSON"),
        ('{"a":NaN}', "the order that was kept is not JSON"),
        ("{" * 100_000, "the order that was kept is not JSON"),
        ('{"a":' * 100_000, "the order that was kept is not JSON"),
        ("", "the order is sealed with the key '', which POS_GATEWAY_SECRET_KEY has not"),
        (
            Payloads(Vault("another")).seal(KEY, ORDER),
            "which POS_GATEWAY_SECRET_KEY has not",
        ),
        (
            SEALING.seal(Key("m", "o2"), ORDER),
            "the order is changed since it was sealed, or sealed for another",
        ),
    ],
    ids=["none", "cut", "nan", "braces", "deep", "empty", "another key", "another order"],
)
def test_an_unreadable_order_is_omitted_and_logged(payload: str | None, why: str) -> None:
    event = hydrated(a_row(payload=payload), SEALING)
    assert why in event.pop("incomplete")
    assert event == {**hydrated(a_row()), "order": None}


def test_a_too_large_event_is_published_without_its_order() -> None:
    large = json.dumps({"notes": "x" * 5000})
    assert hydrated(a_row(payload=large), largest=6000)["order"] == json.loads(large)
    without_its_position = Hydration(CLEAR).sealed(a_row(payload=large)) or ""
    exactly = len(without_its_position.encode())
    assert hydrated(a_row(payload=large), largest=exactly)["order"] == json.loads(large)
    assert hydrated(a_row(payload=large), largest=exactly - 1)["truncated"]
    event = hydrated(a_row(payload=large), largest=5000)
    assert (event.pop("truncated"), event) == (True, {**hydrated(a_row()), "order": None})


def test_a_merchants_public_fields_are_never_large() -> None:
    text = "x" * 2_000_000
    row = a_row(reason_code=text, reason_message=text, external_id=text, payload=None)
    assert len(Hydration(CLEAR).message(row).body) < 2000


@pytest.mark.parametrize("at", [float("nan"), float("inf"), -1e300, 1e18])
def test_an_invalid_timestamp_is_null(at: float) -> None:
    assert hydrated(a_row(occurred_at=at))["occurred_at"] is None


def test_a_deleted_merchant_is_null() -> None:
    assert hydrated(a_row(provider=None, adapter=None))["merchant"] is None


TEXT = st.none() | st.text(max_size=30) | st.sampled_from(["{}", "sealed:", "sealed:x.y", "x.y"])


@given(
    body=TEXT,
    payload=TEXT,
    external_id=TEXT,
    reason_code=TEXT,
    reason_message=TEXT,
    order_id=st.text(max_size=9),
    occurred_at=st.floats(),
)
def test_every_row_becomes_an_event(**values: Any) -> None:
    for payloads in (CLEAR, SEALING):
        row = a_row(**values)
        assert hydrated(row, payloads)["order_id"] == row.order_id
        Hydration(payloads).sealed(row)


def test_large_orders_are_hydrated_in_shorter_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[float] = []
    monkeypatch.setattr(green.time, "sleep", turns.append)
    row = a_row(payload="x" * 256 * 1024)
    assert len(list(green.cooperatively([row] * 100, YIELD_EVERY, weight))) == 100
    assert len(turns) >= 40
