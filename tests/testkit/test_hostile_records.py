"""Every hostile text in every field that takes it, as the gateway itself reads the record."""

import pytest

from pos_gateway.adapters.replies import json_object
from pos_gateway.domain.errors import InvalidOrder
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.reports.report import LARGEST, decoded, encoded
from pos_gateway.transport.exchange import Reply
from testkit.hostile_records import (
    callback_with,
    merchant_with,
    order_named,
    order_with,
    reason_with,
    reply_with,
    report_with,
)
from testkit.hostile_text import HOSTILE, Hostile, is_shown

_EVERY = pytest.mark.parametrize("each", HOSTILE.values(), ids=str)
#: No JSON parser of the gateway's takes it.
_SURROGATES = {"high surrogate", "low surrogate"}


@_EVERY
def test_an_order_has_it_wherever_a_person_may_have_written(each: Hostile) -> None:
    filled = order_with(each.text, "o1", "m1")
    if each.name in _SURROGATES:
        assert filled.fields == ()
        record = {**filled.record, "notes": each.text}
        with pytest.raises((InvalidOrder, UnicodeError)):
            Order.parse(record)
        return
    order = Order.parse_json(filled.json)
    assert order.notes == each.text[:4096]
    assert order.customer is not None and order.customer.name == each.text[:4096]
    assert order.items[0].modifiers[1].name == each.text[:4096]
    # Unknown fields have no limit but the message's.
    assert order.fulfillment == each.text and order.model_extra is not None
    assert order.model_extra["extra"] == each.text
    assert len(filled.fields) >= 14


@_EVERY
def test_a_merchant_has_it_in_its_provider(each: Hostile) -> None:
    filled = merchant_with(each.text, "m1")
    merchant = Merchant.parse(filled.record)
    assert merchant.id == "m1"
    assert filled.fields == () or merchant.provider == each.text[:128]
    assert each.name in _SURROGATES or "provider" in filled.fields


def test_some_are_ids_of_orders_and_merchants_too() -> None:
    ids = {each.name: order_named(each.text) for each in HOSTILE.values()}
    names = {name for name, found in ids.items() if found is not None}
    assert {"script tag without blanks", "image without blanks", "template without blanks"} <= names
    assert "NUL" not in names and "right to left" not in names
    assert len(ids["one word of 5,000 characters"] or "") == 128
    for name in names:
        order_with("", ids[name] or "", "m1")
        assert (
            Merchant.parse({"id": ids[name], "base_url": "https://pos.example.com"}).id == ids[name]
        )


@_EVERY
def test_a_reply_and_its_reason_are_read(each: Hostile) -> None:
    body = reply_with(each.text, "rejected").json
    found = json_object(Reply(422, {}, body))
    assert found is None or found["error"]["message"] == each.text
    reason = reason_with(each.text)
    assert len(reason.code) <= 64 and len(reason.message) <= 500
    assert is_shown(reason.message)


@_EVERY
def test_a_callback_is_read(each: Hostile) -> None:
    filled = callback_with(each.text, "o1")
    if each.name not in _SURROGATES:
        assert {"reason.code", "reason.message", "message"} <= set(filled.fields)


@_EVERY
def test_a_workers_report_is_read(each: Hostile) -> None:
    if each.name in _SURROGATES:
        return  # no worker can write it
    report = report_with(each.text[:2000], "m1")
    said = encoded(report)
    read = decoded(said)
    assert read is not None and read.release == each.text[:2000]
    assert not report.troubles or len(said.encode()) <= 3 * LARGEST
