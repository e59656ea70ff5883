"""Orders, merchants, POSes' replies, callbacks and reports with one text in every field that takes it.

A field that refuses the text gets as much of its beginning as it takes, or keeps its plain value: so
each record is one that the gateway accepts.
"""

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from standardwebhooks import Webhook

from pos_gateway.adapters.protocol import CallbackRequest
from pos_gateway.adapters.rest import RestAdapter
from pos_gateway.domain.errors import InvalidCallback, InvalidMerchant, InvalidOrder
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Reason
from pos_gateway.reports.report import Trouble, WorkerReport

#: Lengths that fields take: of a provider, an id, an order's text.
_CUTS = (4096, 2048, 256, 128, 64)

#: A field in a record: names of members, and places in lists.
Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Filled:
    """A record, and which of its fields have the text, or its beginning."""

    record: dict[str, Any]
    fields: tuple[str, ...]

    @property
    def json(self) -> bytes:
        """The record as JSON in ASCII: a lone surrogate is an escape in it."""
        return json.dumps(self.record).encode()


def order_with(
    text: str,
    order_id: str,
    merchant_id: str,
    *,
    placed_at: datetime | None = None,
    lasts: timedelta = timedelta(minutes=30),
) -> Filled:
    """An order with the text in every field of a person's, in unknown ones, and in their names."""
    placed_at = placed_at or datetime.now(UTC)
    plain = {
        "order_id": order_id,
        "merchant_id": merchant_id,
        "placed_at": placed_at.isoformat(),
        "deliver_by": (placed_at + lasts).isoformat(),
        "currency": "EUR",
        "items": [
            {
                "sku": "s1",
                "name": "Soup",
                "quantity": 1,
                "unit_price": 500,
                "modifiers": [{"name": "hot", "sku": "h1"}, {"name": "no sku"}],
            }
        ],
        "total": 500,
        "customer": {},
    }
    filled = _filled(plain, _OF_ORDER, text, lambda record: _is_accepted(Order, record))
    # A member's name is the backend's text, too.
    named = {**filled.record, text[:200]: "a name of the backend's"}
    if _is_accepted(Order, named) and text[:200] not in filled.record:
        return Filled(named, (*filled.fields, "(a member's name)"))
    return filled


def order_named(text: str) -> str | None:
    """The text as an order's or a merchant's id, as far as one can be it; None: no part of it can."""
    for length in (128, 64):
        if _is_accepted(Merchant, {"id": text[:length], "base_url": "https://pos.example.com"}):
            return text[:length]
    return None


def merchant_with(text: str, merchant_id: str, **others: Any) -> Filled:
    """A merchant's record with the text in every field that takes it; its id stays this one."""
    plain = {"id": merchant_id, "base_url": "https://pos.example.com/api", **others}
    return _filled(plain, _OF_MERCHANT, text, lambda record: _is_accepted(Merchant, record))


def reply_with(text: str, status: str = "accepted") -> Filled:
    """The body of a POS's reply (``docs/adapters.md``) with the text wherever it may say something."""
    plain = {"status": status, "id": "1", "error": {"code": "closed", "message": "closed"}}
    return _filled(plain, _OF_REPLY, text, lambda record: True)


def reason_with(text: str) -> Reason:
    """The reason that an adapter makes of it."""
    return Reason.of(text, text)


def callback_with(text: str, order_id: str, kind: str = "order.rejected") -> Filled:
    """A callback's body to ``rest`` with the text in every field that takes it."""
    plain = {
        "type": kind,
        "order_id": order_id,
        "external_id": "1",
        "reason": {"code": "closed", "message": "closed"},
        "occurred_at": datetime.now(UTC).isoformat(),
    }
    return _filled(plain, _OF_CALLBACK, text, _is_read)


def report_with(text: str, merchant_id: str) -> WorkerReport:
    """A worker's report with the text where a later release might have other words."""
    trouble = Trouble(
        merchant_id,
        since=60.0,
        breaker=text,
        calls=20,
        timed_out=9,
        waiting=3,
        error=text,
        agreed=10,
    )
    words = {text: 7, "free": 100}
    return WorkerReport(
        kind=text,
        release=text,
        uptime=60.0,
        slots=words,
        waiting=words,
        queues=words,
        in_trouble=1,
        troubles=[trouble],
    )


_OF_ORDER: tuple[Path, ...] = (
    ("items", 0, "sku"),
    ("items", 0, "name"),
    ("items", 0, "notes"),
    ("items", 0, "modifiers", 0, "sku"),
    ("items", 0, "modifiers", 0, "name"),
    ("items", 0, "modifiers", 1, "name"),
    ("customer", "name"),
    ("customer", "phone"),
    ("notes",),
    ("fulfillment",),
    # Fields that no release knows are kept and passed on.
    ("extra",),
    ("items", 0, "extra"),
    ("items", 0, "modifiers", 0, "extra"),
    ("customer", "extra"),
)
_OF_MERCHANT: tuple[Path, ...] = (("provider",), ("adapter",), ("pos", "store_id"))
_OF_REPLY: tuple[Path, ...] = (
    ("id",),
    ("error", "code"),
    ("error", "message"),
    ("message",),
)
_OF_CALLBACK: tuple[Path, ...] = (
    ("external_id",),
    ("reason", "code"),
    ("reason", "message"),
    ("message",),
)


def _filled(
    plain: Mapping[str, Any],
    paths: tuple[Path, ...],
    text: str,
    accepts: Callable[[dict[str, Any]], bool],
) -> Filled:
    record, fields = deepcopy(dict(plain)), []
    for path in paths:
        for said in _beginnings(text):
            candidate = deepcopy(record)
            _put(candidate, path, said)
            if accepts(candidate):
                record = candidate
                fields.append(".".join(map(str, path)))
                break
    return Filled(record, tuple(fields))


def _beginnings(text: str) -> Iterator[str]:
    """The text, and as much of it as shorter fields take."""
    yield text
    for length in _CUTS:
        if len(text) > length:
            yield text[:length]


def _put(record: Any, path: Path, text: str) -> None:
    *above, last = path
    for each in above:
        record = record.setdefault(each, {}) if isinstance(record, dict) else record[each]
    record[last] = text


def _is_accepted(model: type[Order] | type[Merchant], record: dict[str, Any]) -> bool:
    try:
        if model is Order:
            Order.parse_json(json.dumps(record))
        else:
            Merchant.parse(record)
    except (InvalidOrder, InvalidMerchant):
        return False
    return True


def _is_read(record: dict[str, Any]) -> bool:
    """Whether the adapter reads a callback with this body."""
    now, body = datetime.now(UTC), json.dumps(record)
    signed = {
        "webhook-id": "1",
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": Webhook(_KEY).sign("1", now, body),
    }
    request = CallbackRequest(
        "https://gateway.example.com/", signed, body.encode(), now.timestamp()
    )
    try:
        return bool(RestAdapter().callbacks(request, _SIGNING))
    except InvalidCallback:
        return False


_KEY = "whsec_" + base64.b64encode(bytes(32)).decode()
_SIGNING = Merchant.parse(
    {
        "id": "m",
        "base_url": "https://pos.example.com",
        "auth": {"type": "none", "webhook_signature_key": _KEY},
    }
)
