"""What Toast takes in silence, against the strict simulator: hours, stock, currency, and looks that fail.

The place's clock is at 12:00 on Friday, 20 November 2026, in UTC: 07:00 in New York.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from pos_gateway.adapters.location import SECONDS
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.outcome import Kind
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.transport.errors import NoValidReply
from pos_gateway.transport.exchange import Reply, Request, Send
from testkit.vendors.http import VendorReply
from testkit.vendors.way import Trouble
from tests.adapters.test_toast_truth import (
    ADA,
    MERCHANT,
    RECORD,
    TOAST,
    At,
    line,
    mayo,
    ordered,
    words_of,
)
from tests.gate import Gate
from tests.testkit.toast_place import BURGER, MAYO, PAID, SOUP, Body, Place

TIMES = {"placed_at": "2026-11-20T12:00:00Z", "deliver_by": "2026-11-20T12:10:00Z"}
RESTAURANT, STOCK = "/restaurants/v1/restaurants/.*", "/stock/v1/inventory"
#: Hours of another day.
CLOSED = {"monday": ("07:00:00.000", "08:00:00.000")}
THREE = {"items": [line(quantity=3)], "total": 2550}


def later(when: str) -> Body:
    """Fields of an order for later."""
    return {**TIMES, "scheduled_for": when}


def friday(opens: str, closes: str) -> Body:
    return {"hours": {"friday": (f"{opens}:00.000", f"{closes}:00.000")}}


def thursday(opens: str, closes: str) -> Body:
    return {"hours": {"thursday": (f"{opens}:00.000", f"{closes}:00.000")}}


#: Name, restaurant, order, and whether the order is accepted.
HOURS: list[tuple[str, Body, Body, bool]] = [
    ("opens a minute later", friday("07:01", "22:00"), {}, False),
    ("opens now", friday("07:00", "22:00"), {}, True),
    ("closes in this minute", friday("06:00", "07:00"), {}, True),
    ("closed a minute ago", friday("06:00", "06:59"), {}, False),
    ("closed today", thursday("07:00", "22:00"), {}, False),
    ("no hours are set", {"hours": {}}, {}, True),
    ("all day", friday("00:00", "00:00"), {}, True),
    ("all day, to the last minute", friday("00:00", "23:59"), {}, True),
    ("open since yesterday", thursday("18:00", "08:00"), {}, True),
    ("open yesterday until after midnight", thursday("18:00", "06:59"), {}, False),
    ("open until tomorrow", friday("06:30", "02:00"), {}, True),
    ("opens tonight until tomorrow", friday("18:00", "08:00"), {}, False),
    ("evening in Tokyo", {**friday("20:30", "21:30"), "time_zone": "Asia/Tokyo"}, {}, True),
    ("morning in Tokyo", {**friday("06:30", "07:30"), "time_zone": "Asia/Tokyo"}, {}, False),
    ("for later, when it is open", friday("09:00", "22:00"), later("2026-11-20T14:00:00Z"), True),
    (
        "for later, when it is closed",
        friday("06:00", "08:00"),
        later("2026-11-20T14:00:00Z"),
        False,
    ),
    ("a zone that is unknown", {"hours": CLOSED, "time_zone": "Mars/Olympus"}, {}, True),
    ("a zone that is a path", {"hours": CLOSED, "time_zone": "../../etc/passwd"}, {}, True),
    ("a time that is none", friday("lunch", "22:00"), {}, True),
]


def outcome_at(place: Place, merchant: Merchant = MERCHANT, **fields: Any) -> Any:
    """The outcome, which agrees with the facts at Toast."""
    outcome = At(place, merchant=merchant).submit(ordered(**fields))
    orders = place.toast.facts()["orders"]
    assert len(orders) == (outcome.kind is Kind.ACCEPTED)
    return outcome


@pytest.mark.parametrize(
    ("restaurant", "fields", "is_open"), [pytest.param(*rest, id=name) for name, *rest in HOURS]
)
def test_an_order_is_made_if_the_restaurant_is_open_when_it_is_wanted(
    restaurant: Body, fields: Body, is_open: bool
) -> None:
    outcome = outcome_at(Place(**restaurant), **fields)
    assert outcome.kind is (Kind.ACCEPTED if is_open else Kind.REJECTED)
    assert is_open or words_of(outcome).startswith("store_closed: the location is closed on Friday")


@pytest.mark.parametrize(
    ("closes", "wanted", "is_open"),
    [
        # 01:30 twice, as summer time ends.
        ("02:00", "2026-11-01T05:30:00Z", True),
        ("02:00", "2026-11-01T06:30:00Z", True),
        ("01:00", "2026-11-01T05:30:00Z", False),
        ("01:00", "2026-11-01T06:30:00Z", False),
        # An hour later by UTC than the day before.
        ("02:00", "2026-11-01T22:30:00Z", False),
        ("02:00", "2026-11-01T23:30:00Z", True),
    ],
)
def test_the_walls_clock_counts_as_summer_time_ends(
    closes: str, wanted: str, is_open: bool
) -> None:
    evening = ("18:00:00.000", f"{closes}:00.000")
    place = Place(hours={"saturday": evening, "sunday": evening})
    place.clock.now = datetime(2026, 10, 31, 12, tzinfo=UTC)
    place.login()
    times = {"placed_at": "2026-10-31T12:00:00Z", "deliver_by": "2026-10-31T12:10:00Z"}
    outcome = outcome_at(place, **times, scheduled_for=wanted)
    assert outcome.kind is (Kind.ACCEPTED if is_open else Kind.REJECTED)


def test_a_merchant_may_have_orders_sent_while_it_is_closed() -> None:
    merchant = Merchant.parse({**RECORD, "pos": {**RECORD["pos"], "closed_as": "SENT"}})
    assert outcome_at(Place(hours=CLOSED), merchant).kind is Kind.ACCEPTED
    sold_out = outcome_at(Place(hours=CLOSED, stock={BURGER: 0}), merchant)
    assert words_of(sold_out).startswith("item_unavailable")


#: Name, stock, order, and what Toast has left of the named item; None: the order is accepted.
STOCK_TABLE: list[tuple[str, Mapping[str, float], Body, str | None]] = [
    ("sold out", {BURGER: 0}, {}, "'x' (*): Toast has 0 left"),
    ("another item is sold out", {SOUP: 0}, {}, None),
    ("too few", {BURGER: 2}, THREE, "Toast has 2 left"),
    ("just enough", {BURGER: 3}, THREE, None),
    ("a part of one", {BURGER: 0.5}, {}, "Toast has 0.5 left"),
    ("too few for two lines", {BURGER: 1}, {"items": [line(), line()], "total": 1700}, "1 left"),
    (
        "a modifier is sold out",
        {MAYO: 0},
        {"items": [line(modifiers=[mayo()])], "total": 900},
        "'Mayo'",
    ),
    (
        "too few of a modifier of three burgers",
        {MAYO: 5},
        {"items": [line(quantity=3, modifiers=[mayo(2)])], "total": 2850},
        "5 left",
    ),
    ("sold out, for later today", {BURGER: 0}, later("2026-11-20T20:00:00Z"), "0 left"),
    ("sold out, for tomorrow", {BURGER: 0}, later("2026-11-21T17:00:00Z"), None),
    ("counted, without a number", {BURGER: None}, {}, None),  # type: ignore[dict-item]
]


@pytest.mark.parametrize(
    ("stock", "fields", "said"), [pytest.param(*rest, id=name) for name, *rest in STOCK_TABLE]
)
def test_an_order_is_made_if_the_restaurant_has_all_of_it(
    stock: Body, fields: Body, said: str | None
) -> None:
    outcome = outcome_at(Place(stock=stock), **fields)
    assert outcome.kind is (Kind.ACCEPTED if said is None else Kind.REJECTED)
    if said is not None:
        assert words_of(outcome).startswith("item_unavailable")
        assert said.replace("*", line()["sku"]) in words_of(outcome)


@pytest.mark.parametrize(
    ("currency", "is_taken"),
    [("USD", True), ("usd", True), ("CAD", False), ("", True), (None, True), (7, True)],
)
def test_an_order_in_another_currency_than_the_restaurants_is_refused_by_both(
    currency: Any, is_taken: bool
) -> None:
    outcome = outcome_at(Place(currency=currency))
    assert outcome.kind is (Kind.ACCEPTED if is_taken else Kind.REJECTED)
    said = "price_mismatch: the POS's total is 850 CAD, the order's is 850 USD"
    assert is_taken or words_of(outcome) == said


def test_what_toast_refuses_by_itself_is_told_in_its_words() -> None:
    outcome = outcome_at(Place(hours=CLOSED, stock={PAID: 0}), items=[line(PAID)])
    assert f"MenuItem {PAID} was not found" in words_of(outcome)


@pytest.mark.parametrize("path", [RESTAURANT, STOCK])
@pytest.mark.parametrize(
    "trouble",
    [
        {"what": "before"},
        {"what": "after"},
        {"what": "slow", "seconds": 60},
        *({"what": "before", "status": status} for status in (401, 403, 404, 429, 500, 503)),
    ],
    ids=str,
)
def test_a_look_that_fails_fails_no_order(path: str, trouble: Body) -> None:
    """Nor is the order held up for longer than a look may take."""
    at = At(Place(hours=CLOSED, stock={BURGER: 0}), Trouble(method="GET", path=path, **trouble))
    other = {RESTAURANT: "item_unavailable", STOCK: "store_closed"}[path]
    assert words_of(at.submit(ordered())).startswith(other)
    at = At(Place(), Trouble(method="GET", path=path, **trouble))
    assert at.submit(ordered()).kind is Kind.ACCEPTED
    looks = [each for each in at.send.requests if each.method == "GET"]
    assert [each.seconds for each in looks] == [SECONDS, SECONDS]


def test_looks_that_hang_leave_an_order_its_time(tmp_path: Path) -> None:
    place = Place()
    send = At(place).send

    def pos(request: Any) -> Any:
        reply = send(request)
        return reply.status, json.loads(reply.body)

    gate = Gate(tmp_path, pos)
    record = {**RECORD, "id": "m", "request_timeout": 30, "auth": {"type": "none"}}
    MerchantStore(gate.database).put([Merchant.parse(record)])
    exchange: Any = gate.caller.exchange
    limits: list[float] = []

    def hanging(request: Request, *, seconds: float, **others: Any) -> Reply:
        limits.append(seconds)
        if request.method == "POST":
            return exchange(request, seconds=seconds, **others)
        raise NoValidReply("timeout", "no reply")

    gate.caller.exchange = hanging
    fields = {"items": [line()], "total": 850, "currency": "USD", "customer": ADA}
    gate.take(gate.an_order(**fields, seconds=120))
    assert [kind for kind, _ in gate.recorded()] == ["accepted"]
    assert limits == [30, SECONDS, SECONDS, 30]


def test_a_refused_look_has_no_token_requested(tmp_path: Path) -> None:
    """A POS may say 401 for want of a permission; another token, and the wait for it, would be in vain."""
    place = Place()
    send = At(place).send

    def pos(request: Any) -> Any:
        if request.method == "GET":
            return 401, {}
        reply = send(request)
        return reply.status, json.loads(reply.body)

    gate = Gate(tmp_path, pos)
    record = {**RECORD, "id": "m", "request_timeout": 30, "auth": {"type": "none"}}
    MerchantStore(gate.database).put([Merchant.parse(record)])
    requested = Mock(return_value=None)
    gate.caller.authenticator.instead = requested  # type: ignore[method-assign]
    fields: Any = {"items": [line()], "total": 850, "currency": "USD", "customer": ADA}
    gate.take(gate.an_order(**fields, seconds=120))
    assert [kind for kind, _ in gate.recorded()] == ["accepted"]
    requested.assert_not_called()


@pytest.mark.parametrize("missing", ["stock:read", "restaurants:read"])
def test_a_client_without_a_looks_scope_has_its_orders_made(missing: str) -> None:
    place = Place(hours=CLOSED, stock={BURGER: 0})
    place.toast.knobs.scopes = place.toast.knobs.scopes.replace(missing, "")
    assert At(place).submit(ordered()).kind is Kind.REJECTED  # by the other look
    place.toast.knobs.scopes = place.toast.knobs.scopes.replace("stock:read", "")
    place.toast.knobs.scopes = place.toast.knobs.scopes.replace("restaurants:read", "")
    assert outcome_at(place).kind is Kind.ACCEPTED


@pytest.mark.parametrize(
    "body", [None, [], {}, [7], {"schedules": 7}, {"schedules": {"weekSchedule": {}}}, [{"a": 1}]]
)
def test_a_look_that_says_nothing_fails_no_order(body: object) -> None:
    place = Place(hours=CLOSED, stock={BURGER: 0})
    answer = place.toast.answer

    def odd(request: Any) -> VendorReply:
        reply = answer(request)
        return VendorReply(200, body, reply.headers) if request.method == "GET" else reply

    place.toast.answer = odd  # type: ignore[method-assign]
    assert outcome_at(place).kind is Kind.ACCEPTED


def test_without_the_vendors_clock_no_hours_are_judged() -> None:
    """Ours may be wrong."""
    place = Place(hours=CLOSED)
    at = At(place)

    def timeless(request: Any) -> Any:
        reply = at.send(request)
        return type(reply)(reply.status, {}, reply.body)

    assert TOAST.submit(ordered(), MERCHANT, Send(timeless)).kind is Kind.ACCEPTED
    wanted = ordered(**later("2026-11-20T14:00:00Z"))
    assert TOAST.submit(wanted, MERCHANT, Send(timeless)).kind is Kind.REJECTED
