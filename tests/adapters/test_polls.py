"""What vendors' lists of changed orders say, and lists that have no end or make no sense."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from pos_gateway.adapters.clover import CloverAdapter
from pos_gateway.adapters.hubrise import HubRiseAdapter
from pos_gateway.adapters.polls import ListsChanges, Page, Window, is_polled
from pos_gateway.adapters.pos_fields import endpoint
from pos_gateway.adapters.rest import RestAdapter
from pos_gateway.adapters.square import SquareAdapter
from pos_gateway.adapters.toast import ToastAdapter
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.outcome import Kind, Lifecycle, Outcome
from pos_gateway.transport.errors import NoValidReply
from pos_gateway.transport.exchange import Reply, Request, Send
from tests.adapters.scripted import Scripted, reply
from tests.adapters.vendors import CLOVER, HUBRISE, SQUARE, TOAST, Body, guid

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
WINDOW = Window(NOW - timedelta(minutes=6), NOW + timedelta(hours=1), NOW - timedelta(hours=5))
PREPARING, READY, COMPLETED, *_ = Lifecycle
CANCELLED, ACCEPTED, REJECTED = Kind.CANCELLED, Kind.ACCEPTED, Kind.REJECTED


@dataclass(frozen=True)
class Listing:
    """A vendor's list."""

    adapter: Any
    record: Body
    #: A page of these orders, and another one behind it.
    page: Callable[[list[Body]], Reply]
    more: Callable[[list[Body]], Reply]
    #: Orders as listed, each with its id here and what it says; None: nothing.
    orders: tuple[tuple[Body, str, Kind | Lifecycle | None], ...]
    pages: int

    @property
    def merchant(self) -> Merchant:
        pos = {**self.record["pos"], "poll": "ON"}
        own = {"id": "m", "base_url": "https://pos.example.com", "adapter": self.adapter.name}
        return Merchant.parse({**own, **self.record, "pos": pos})

    def said(self, send: Send) -> list[Page]:
        assert isinstance(self.adapter, ListsChanges)
        return list(self.adapter.changes(WINDOW, self.merchant, send))


def at_square(state: str, *fulfillments: str, **fields: Any) -> Body:
    states = [{"uid": str(n), "state": each} for n, each in enumerate(fulfillments)]
    own = {"id": "S1", "location_id": "L1", "state": state, "fulfillments": states}
    return {**own, "tenders": [{"id": "P"}], "updated_at": NOW.isoformat(), **fields}


def at_toast(**fields: Any) -> Body:
    own = {"guid": guid("order"), "approvalStatus": "APPROVED", "checks": []}
    return {**own, "modifiedDate": "2026-11-30T11:59:00.000+0000", **fields}


def at_hubrise(status: str, paid: str = "8.50 EUR", **fields: Any) -> Body:
    payments = [{"amount": paid}]
    return {"id": "x1", "status": status, "total": "8.50 EUR", "payments": payments, **fields}


def listed(orders: list[Body]) -> Reply:
    return Reply(200, {}, json.dumps(orders).encode())


SQUARES = Listing(
    SquareAdapter(),
    SQUARE.record,
    lambda orders: reply(200, {"orders": orders} if orders else {}),
    lambda orders: reply(200, {"orders": orders, "cursor": "more"}),
    (
        (at_square("OPEN", "PROPOSED"), "S1", None),
        (at_square("OPEN", "RESERVED"), "S1", PREPARING),
        (at_square("OPEN", "PREPARED"), "S1", READY),
        (at_square("OPEN", "PREPARED", "COMPLETED"), "S1", COMPLETED),
        (at_square("COMPLETED", "COMPLETED"), "S1", COMPLETED),
        (at_square("CANCELED", "CANCELED"), "S1", CANCELLED),
        (at_square("OPEN", "CANCELED"), "S1", CANCELLED),
        (at_square("COMPLETED", "CANCELED"), "S1", CANCELLED),
        (at_square("OPEN", "FAILED"), "S1", CANCELLED),
        (at_square("OPEN", "FAILED", "PREPARED"), "S1", READY),
        (at_square("DRAFT", "COMPLETED"), "S1", None),
        (at_square("OPEN", "PREPARED", location_id="L2"), "S1", None),
        (at_square("OPEN", "PREPARED", id=7), "S1", None),
    ),
    25,
)
TOASTS = Listing(
    ToastAdapter(),
    TOAST.record,
    listed,
    lambda orders: listed((orders or [at_toast()]) * 16),
    (
        (at_toast(), guid("order"), ACCEPTED),
        (at_toast(guestOrderStatus="IN_PREPARATION"), guid("order"), PREPARING),
        (at_toast(guestOrderStatus="READY_FOR_PICKUP"), guid("order"), READY),
        (at_toast(guestOrderStatus="CLOSED"), guid("order"), COMPLETED),
        (at_toast(voided=True), guid("order"), CANCELLED),
        (at_toast(deleted=True, voided=True), guid("order"), CANCELLED),
        (at_toast(deleted=True), guid("order"), None),
        (at_toast(approvalStatus="NOT_APPROVED"), guid("order"), REJECTED),
        (at_toast(approvalStatus="NEEDS_APPROVAL"), guid("order"), None),
        (at_toast(approvalStatus="?"), guid("order"), None),
        (at_toast(guid=None), guid("order"), None),
    ),
    25,
)
CLOVERS = Listing(
    CloverAdapter(),
    CLOVER.record,
    lambda orders: reply(200, {"elements": orders}),
    lambda orders: reply(200, {"elements": [{"id": "C0"}] * 99 + [{"id": "last"}]}),
    (
        ({"id": "C1", "deletedTime": 1_796_040_000_000}, "C1", CANCELLED),
        ({"id": "C1"}, "C1", None),  # Clover has ignored the filter
        ({"id": "C1", "deletedTime": "now"}, "C1", None),
        ({"deletedTime": 1_796_040_000_000}, "C1", None),
    ),
    10,
)
HUBRISES = Listing(
    HubRiseAdapter(),
    HUBRISE.record,
    listed,
    lambda orders: Reply(200, {"x-cursor-next": "more"}, listed(orders).body),
    (
        (at_hubrise("new"), "x1", None),
        (at_hubrise("received"), "x1", ACCEPTED),
        (at_hubrise("in_preparation"), "x1", PREPARING),
        (at_hubrise("received", "1.00 EUR"), "x1", None),
        (at_hubrise("in_preparation", "1.00 EUR"), "x1", PREPARING),
        (at_hubrise("awaiting_shipment"), "x1", READY),
        (at_hubrise("completed", "1.00 EUR"), "x1", COMPLETED),
        (at_hubrise("cancelled"), "x1", CANCELLED),
        (at_hubrise("rejected", seller_notes="no soup"), "x1", REJECTED),
        (at_hubrise("delivery_failed"), "x1", CANCELLED),
        (at_hubrise("lost"), "x1", None),
    ),
    6,
)
LISTINGS = {each.adapter.name: each for each in (SQUARES, TOASTS, CLOVERS, HUBRISES)}
EACH = pytest.mark.parametrize("listing", LISTINGS.values(), ids=LISTINGS)


@EACH
def test_each_vendors_list_says_what_callbacks_say(listing: Listing) -> None:
    for order, known_as, meaning in listing.orders:
        [said] = listing.said(Scripted(listing.page([order])))
        assert isinstance(said, list)
        found = [(each.external_id, each.meaning) for each in said]
        assert found == ([] if meaning is None else [(known_as, meaning)]), order


@EACH
def test_a_list_without_end_has_one(listing: Listing) -> None:
    asked: list[str] = []

    def endless(request: Request) -> Reply:
        asked.append(request.url)
        return listing.more([])

    *_, last = listing.said(Send(endless))
    assert isinstance(last, Outcome)
    assert len(asked) <= listing.pages


@EACH
def test_a_page_that_is_too_long_is_asked_for_in_parts(listing: Listing) -> None:
    sizes: list[int] = []
    order, known_as, meaning = next(each for each in listing.orders if each[2] is not None)

    def long(request: Request) -> Reply:
        query = parse_qs(urlsplit(request.url).query)
        found = [query[name] for name in ("pageSize", "limit", "count") if name in query]
        sizes.append(int(found[0][0]) if found else 20 // 2 ** len(sizes))
        if len(sizes) < 3:
            raise NoValidReply("reply_too_long", "more than 256 KiB")
        return listing.page([order])

    [said] = listing.said(Send(long))
    assert isinstance(said, list)
    assert [(each.external_id, each.meaning) for each in said] == [(known_as, meaning)]
    assert sizes[0] // 2 == sizes[1]


@EACH
@pytest.mark.parametrize(
    "nonsense",
    [
        reply(200, b"<html>"),
        reply(200, b"[1, null, [], {}]"),
        reply(200, b'{"orders": 7, "elements": 7, "cursor": 7}'),
        reply(200, b'{"errors": [{}], "orders": []}'),
        reply(500),
        reply(404),
    ],
)
def test_a_reply_that_makes_no_sense_says_nothing(listing: Listing, nonsense: Reply) -> None:
    for page in listing.said(Scripted(nonsense)):
        assert isinstance(page, Outcome) or list(page) == []


def test_the_documented_time_is_asked_for() -> None:
    def asked(listing: Listing) -> Request:
        send = Scripted(listing.page([]))
        listing.said(send)
        return send.requests[0]

    square = asked(SQUARES).body or b""
    assert b'"updated_at":{"start_at":"2026-11-30T11:54:00+00:00"' in square
    assert b'"sort_field":"UPDATED_AT"' in square
    toast = parse_qs(urlsplit(asked(TOASTS).url).query)
    assert toast["startDate"] == ["2026-11-30T11:54:00.000+0000"]
    clover = parse_qs(urlsplit(asked(CLOVERS).url).query)
    assert clover["filter"][0] == f"deletedTime>={(NOW - timedelta(minutes=6)).timestamp():.0f}000"
    hubrise = parse_qs(urlsplit(asked(HUBRISES).url).query)
    assert hubrise["after"] == ["2026-11-30T07:00:00+00:00"]


def test_an_order_of_toasts_that_is_too_long_by_itself_is_passed_over() -> None:
    order = at_toast(guestOrderStatus="READY_FOR_PICKUP")

    def pages(request: Request) -> Reply:
        query = parse_qs(urlsplit(request.url).query)
        size, page = (int(query[each][0]) for each in ("pageSize", "page"))
        if (page - 1) * size == 0:
            raise NoValidReply("reply_too_long", "more than 256 KiB")
        return listed([order] if size * page <= 2 else [])

    *_, said, end = TOASTS.said(Send(pages))
    assert [each.meaning for each in said if not isinstance(said, Outcome)] == [READY]
    assert end == []


@EACH
def test_a_merchant_is_polled_if_its_record_says_so_and_stays_at_its_pos(listing: Listing) -> None:
    polled, adapter = listing.merchant, listing.adapter
    off = polled.model_copy(update={"pos": {**polled.pos, "poll": "OFF"}})
    unset = polled.model_copy(update={"pos": listing.record["pos"]})
    assert [is_polled(each, adapter) for each in (polled, off, unset)] == [True, False, False]
    assert not adapter.check(polled)
    assert {endpoint(each, adapter) for each in (polled, off)} == {endpoint(unset, adapter)}


def test_the_reference_api_has_no_list_of_changes() -> None:
    record = {"id": "m", "base_url": "https://pos.example.com", "pos": {"poll": "ON"}}
    assert not is_polled(Merchant.parse(record), RestAdapter())
