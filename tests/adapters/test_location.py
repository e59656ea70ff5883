"""What ``merchants check`` says of a merchant's location, against the strict simulators.

Each vendor's clock is at 12:00 on Friday, 20 November 2026, in UTC: 07:00 in New York.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from pos_gateway.adapters.location import SECONDS, LocationProblem
from pos_gateway.adapters.protocol import DescribesLocation
from pos_gateway.adapters.steps import steps_of
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.outcome import Kind
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.transport.errors import NoValidReply
from pos_gateway.transport.exchange import Reply, Request
from testkit.vendors import clover, hubrise, square
from testkit.vendors.way import Trouble, VendorSend, Way
from tests.adapters.square_till import Till
from tests.adapters.vendors import VENDORS, order_of
from tests.testkit.toast_place import BURGER, PLACE, SOUP, Clock, Place

TIMES = {"placed_at": "2026-11-20T12:00:00Z", "deliver_by": "2026-11-20T12:10:00Z"}
OPEN = {"start_local_time": "06:00:00", "end_local_time": "22:00:00"}


class Vendor(NamedTuple):
    """A vendor, an adapter's merchant there, and the way to the vendor."""

    name: str
    vendor: Any
    token: str
    pos: dict[str, str]
    catalog: Mapping[str, str] = MappingProxyType({"burger": "BURGER"})

    @property
    def headers(self) -> dict[str, str]:
        given = {"Authorization": f"Bearer {self.token}", "User-Agent": "x/1"}
        return {**given, "X-Access-Token": self.token}

    def taken(self, closed_as: str | None, *troubles: Trouble, **fields: Any) -> Any:
        """The outcome of an order's first step, which agrees with the orders at the vendor."""
        way = Way(self.vendor)
        way.troubles += troubles
        send = VendorSend(way, self.headers)
        setting = {} if closed_as is None else {"closed_as": closed_as}
        record = {
            **VENDORS[self.name].record,
            "pos": {**self.pos, "scheduled_as": "NOTE", **setting},
        }
        if self.name == "square":
            self.vendor.knobs.needs_recipient = False
            del record["pos"]["scheduled_as"]
        own = {"id": "m", "adapter": self.name, "base_url": "https://pos.example.com"}
        currency = "USD" if self.name == "square" else "EUR"
        order = order_of(currency=currency, **TIMES, **fields)
        step = steps_of(VENDORS[self.name].adapter)[0]
        outcome = step.run(order, Merchant.parse({**record, **own}), {}, send)
        facts = self.vendor.facts()
        made = facts["orders"] if self.name == "square" else facts
        assert len(made) == (outcome.kind is Kind.ACCEPTED)
        return outcome

    def said(self, *troubles: Trouble, **pos: str) -> str:
        """The location in words; a problem with its remedy."""
        way = Way(self.vendor)
        way.troubles += troubles
        send = VendorSend(way, self.headers)
        adapter = VENDORS[self.name].adapter
        assert isinstance(adapter, DescribesLocation)
        own = {"id": "m", "adapter": self.name, "base_url": "https://pos.example.com"}
        merchant = Merchant.parse({**own, "pos": {**self.pos, **pos}}).with_catalog(self.catalog)
        try:
            said = "; ".join(adapter.location(merchant, send))
        except LocationProblem as problem:
            said = f"fail: {problem} -> {problem.advice}"
        assert len(send.requests) <= 2
        assert {each.seconds for each in send.requests} == {SECONDS}
        assert not any(each.changes for each in send.requests)
        return said


def a_square(*scopes: str) -> Vendor:
    made = square.simulator(Clock())
    granted = made.access.grant(scopes) if scopes else made.access.grant()
    return Vendor("square", made, granted["access_token"], {"location_id": "L1"})


def a_toast(**restaurant: Any) -> Vendor:
    place = Place(**restaurant)
    return Vendor("toast", place.toast, place.token, {"restaurant": PLACE})


def a_clover() -> Vendor:
    return Vendor("clover", clover.simulator(Clock()), "api-token", {"merchant_id": "M1"})


def a_hubrise() -> Vendor:
    made = hubrise.simulator(Clock(), zone="America/New_York")
    return Vendor("hubrise", made, "token-1", {"location_id": "3r4s3-1"})


def with_hours(vendor: Vendor, opens: str, closes: str) -> Vendor:
    """The vendor's location with these hours on Fridays alone."""
    if vendor.name == "square":
        times = {"start_local_time": f"{opens}:00", "end_local_time": f"{closes}:00"}
        vendor.vendor.knobs.hours = [{"day_of_week": "FRI", **times}]
    elif vendor.name == "toast":
        vendor.vendor.knobs.hours = {"friday": (f"{opens}:00.000", f"{closes}:00.000")}
    elif vendor.name == "hubrise":
        vendor.vendor.knobs.hours = {"friday": [{"from": opens, "to": closes}]}
    else:
        start, end = (int(each.replace(":", "")) for each in (opens, closes))
        [hours] = vendor.vendor.shop.opening_hours.values()
        hours |= {day: {"elements": []} for day in set(hours) - {"id"}}
        hours["friday"] = {"elements": [{"start": start, "end": end or 2400}]}
    return vendor


MAKERS: list[Callable[[], Vendor]] = [a_square, a_toast, a_clover, a_hubrise]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    ("opens", "closes", "word"),
    [
        ("07:00", "22:00", "open"),
        ("07:01", "22:00", "closed"),
        ("00:30", "07:00", "open"),
        ("00:30", "06:59", "closed"),
        ("06:00", "00:00", "open"),
        ("06:00", "03:00", "open"),
    ],
)
def test_currency_and_hours_are_said(
    make: Callable[[], Vendor], opens: str, closes: str, word: str
) -> None:
    said = with_hours(make(), opens, closes).said()
    currency = {a_clover: "EUR", a_hubrise: "EUR"}.get(make, "USD")
    state = f"its currency is {currency}; {word} at Fri 07:00 (America/New_York)"
    assert said == state + ("; 0 sold out" if make is a_toast else "")


def test_hours_that_a_seller_has_not_set_are_unknown() -> None:
    assert a_square().said() == "its currency is USD; its hours are unknown"
    vendor = a_clover()
    vendor.vendor.shop.opening_hours.clear()
    assert vendor.said() == "its currency is EUR; its hours are unknown"


@pytest.mark.parametrize("make", [a_square, a_clover])
def test_a_merchant_whose_items_are_all_ad_hoc_is_told(make: Callable[[], Vendor]) -> None:
    """Printers route by a category of the catalog's."""
    assert (
        make()
        ._replace(catalog={})
        .said()
        .endswith("no catalog: a kitchen's printers may not route its items")
    )


@pytest.mark.parametrize(
    ("make", "pos"),
    [(a_square, {"dine_in_as": "IN_STORE"}), (a_clover, {"scheduled_as": "NOTE"})],
)
def test_a_merchant_whose_tickets_have_times_in_another_zone_is_told(
    make: Callable[[], Vendor], pos: dict[str, str]
) -> None:
    missing = "no pos.time_zone: times in notes have the backend's offset, UTC's say"
    assert missing in make().said(**pos)
    assert missing not in make().said(**pos, time_zone="America/New_York")
    assert missing not in make().said()
    other = "pos.time_zone is Europe/Paris, and the POS's is America/New_York: which one is right?"
    assert other in make().said(**pos, time_zone="Europe/Paris")
    assert "which one" not in make().said(**pos, time_zone="America/Detroit"), (
        "its clock is the same"
    )


@pytest.mark.parametrize("name", ["square", "clover"])
@pytest.mark.parametrize(
    ("zone", "problems"), [("Europe/Paris", 0), ("Paris", 1), ("/Europe/Paris", 1)]
)
def test_a_time_zone_is_one(name: str, zone: str, problems: int) -> None:
    vendor = {"square": a_square, "clover": a_clover}[name]()
    own = {"id": "m", "adapter": name, "base_url": "https://pos.example.com"}
    merchant = Merchant.parse({**own, "pos": {**vendor.pos, "time_zone": zone}})
    found = [each.field for each in VENDORS[name].adapter.check(merchant)]
    assert found.count("pos.time_zone") == problems


def test_what_is_sold_out_is_counted() -> None:
    assert a_toast(stock={BURGER: 0, SOUP: 3}).said().endswith("; 1 sold out")


@pytest.mark.parametrize("make", MAKERS)
def test_a_refused_credential_is_named(make: Callable[[], Vendor]) -> None:
    said = make()._replace(token="another").said()
    assert said.startswith("fail: /")
    assert "the POS answered 401: it refuses the merchant's credentials" in said


def test_a_location_that_takes_no_orders_is_named() -> None:
    vendor = a_square()
    vendor.vendor.knobs.is_active = False
    assert vendor.said() == "fail: the location is INACTIVE at Square -> is pos.location_id right?"
    said = "fail: the restaurant is archived -> is pos.restaurant right?"
    assert a_toast(archived=True).said() == said


def test_a_location_that_is_paused_takes_orders_for_later_alone() -> None:
    vendor = a_hubrise()
    vendor.vendor.knobs.acceptance = {"mode": "paused", "reason": "no gas"}
    words = "the location is paused at HubRise: no gas"
    assert vendor.said() == f"its currency is EUR; its hours are unknown; {words}"
    outcome = vendor.taken("REJECTED")
    assert outcome.reason is not None
    assert (outcome.reason.code, outcome.reason.message) == ("store_closed", words)
    assert vendor.taken("REJECTED", scheduled_for="2026-11-20T14:00:00Z").kind is Kind.ACCEPTED
    assert a_hubrise().said(location_id="x").startswith("fail: /locations/x: the POS answered 404")


def test_a_location_that_the_pos_does_not_know_is_named() -> None:
    said = a_square().said(location_id="L2")
    assert said == "fail: /v2/locations/L2: the POS answered 404 -> is pos.location_id right?"


def test_a_scope_that_orders_need_is_named() -> None:
    said = a_square("ORDERS_READ", "ORDERS_WRITE", "PAYMENTS_READ").said()
    assert said.startswith("fail: the seller has not granted PAYMENTS_WRITE -> ")


@pytest.mark.parametrize(
    ("vendor", "path"),
    [
        (
            a_square("ORDERS_READ", "ORDERS_WRITE", "PAYMENTS_READ", "PAYMENTS_WRITE"),
            "/v2/locations/L1",
        ),
        (a_toast(scopes="stock:read"), f"/restaurants/v1/restaurants/{PLACE}"),
        (a_toast(scopes="restaurants:read"), "/stock/v1/inventory"),
    ],
    ids=["square", "toast", "toast's stock"],
)
def test_a_scope_that_orders_do_not_need_is_no_problem(vendor: Vendor, path: str) -> None:
    said = f"{path} was not looked at: the POS answered 403 (is a scope missing?)"
    assert said in vendor.said().split("; ")


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    ("trouble", "word"),
    [
        ({"what": "before"}, "the connection was reset"),
        ({"what": "slow", "seconds": 60}, "no reply within 60 s"),
        ({"what": "before", "status": 429}, "the POS answered 429"),
        ({"what": "before", "status": 503}, "the POS answered 503"),
    ],
)
def test_a_look_that_fails_is_said_and_is_no_problem(
    make: Callable[[], Vendor], trouble: Any, word: str
) -> None:
    said = make().said(Trouble(**trouble, times=2))
    assert "fail:" not in said
    assert "was not looked at: " in said
    assert word in said


@pytest.mark.parametrize("make", [a_square, a_clover, a_hubrise])
@pytest.mark.parametrize(
    ("opens", "closes", "fields", "is_open"),
    [
        ("07:00", "22:00", {}, True),
        ("07:01", "22:00", {}, False),
        ("00:30", "06:59", {}, False),
        ("20:00", "03:00", {}, False),
        ("08:00", "22:00", {"scheduled_for": "2026-11-20T14:00:00Z"}, True),
        ("07:00", "08:00", {"scheduled_for": "2026-11-20T14:00:00Z"}, False),
    ],
)
@pytest.mark.parametrize("closed_as", ["REJECTED", "SENT", None])
def test_an_order_for_a_closed_merchant_is_rejected_where_the_setting_says_so(
    make: Callable[[], Vendor],
    opens: str,
    closes: str,
    fields: Any,
    is_open: bool,
    closed_as: str | None,
) -> None:
    outcome = with_hours(make(), opens, closes).taken(closed_as, **fields)
    is_made = is_open or closed_as != "REJECTED"
    assert outcome.kind is (Kind.ACCEPTED if is_made else Kind.REJECTED)
    assert is_made or outcome.reason.code == "store_closed"


@pytest.mark.parametrize("make", [a_square, a_clover, a_hubrise])
@pytest.mark.parametrize(
    "trouble",
    [{"what": "before"}, {"what": "slow", "seconds": 60}, {"what": "before", "status": 503}],
    ids=str,
)
def test_a_look_at_the_hours_that_fails_fails_no_order(
    make: Callable[[], Vendor], trouble: Any
) -> None:
    vendor = with_hours(make(), "20:00", "22:00")
    troubles = [
        Trouble(
            method="GET", path=".*(/L1|/3r4s3-1|/properties|/opening_hours)", times=2, **trouble
        )
    ]
    assert vendor.taken("REJECTED", *troubles).kind is Kind.ACCEPTED


@pytest.mark.parametrize("limit", [1.0, 3.0, 10.0])
def test_looks_that_hang_leave_an_order_its_time_however_little_that_is(
    tmp_path: Path, limit: float
) -> None:
    till = Till(tax=None)
    gate = till.a_gate(tmp_path)
    merchant = gate.directory.get("m")
    pos = {**merchant.pos, "closed_as": "REJECTED"}
    changed = merchant.model_copy(update={"pos": pos, "request_timeout": limit})
    MerchantStore(gate.database).put([changed])
    gate.wait(1)
    exchange: Any = gate.caller.exchange

    def hanging(request: Request, *, seconds: float, **others: Any) -> Reply:
        if "/v2/locations/" not in request.url:
            reply: Reply = exchange(request, seconds=seconds, **others)
            return reply
        gate.hand.seconds += seconds
        raise NoValidReply("timeout", "no reply")

    gate.caller.exchange = hanging
    gate.take(gate.an_order())
    assert [kind for kind, _ in gate.recorded()] == ["accepted"]


def test_a_key_that_is_sent_again_once_the_shop_has_closed_finds_its_order(tmp_path: Path) -> None:
    """The order was made while the shop was open, and the reply lost."""
    till = Till(tax=None)
    till.square.knobs.hours = [{"day_of_week": "FRI", **OPEN}]
    gate = till.a_gate(tmp_path)
    merchant = gate.directory.get("m")
    pos = {**merchant.pos, "closed_as": "REJECTED"}
    MerchantStore(gate.database).put([merchant.model_copy(update={"pos": pos})])
    till.loses.append(("POST orders", NoValidReply("timeout", "no reply in time")))
    order = gate.an_order(seconds=3600, scheduled_for="2026-11-20T14:00:00Z")
    assert gate.take(order).outcome.kind is Kind.IN_DOUBT
    till.square.knobs.hours = [{"day_of_week": "SAT", **OPEN}]
    gate.wait(61)
    gate.take(order)
    assert [kind for kind, _ in gate.recorded()] == ["accepted"]
    assert len(till.square.seller.orders) == 1
    again = gate.an_order("o2", seconds=3600, scheduled_for="2026-11-20T14:00:00Z")
    gate.take(again)
    assert gate.recorded("o2") == [("rejected", "store_closed")]
