"""What adapters read of vendors' catalogs, against the strict simulators and against lists that make no sense.

| adversary | what becomes of it |
|---|---|
| an item with several variations | an entry for each, named after item and variation |
| items of other locations, deleted, archived, not sellable | not read |
| a price of this location, or none, as of an open price | that one; none |
| an item without a SKU | by its id; at Toast by none |
| the list of items names a page twice, or never ends | read no further: nothing is read at all |
| the list changes between two pages | nothing is read at all |
| a refused or ended token, a scope that is missing, too many requests, a page for people | a sentence, and the remedy |
| a menu of another restaurant | refused |
| an id or a SKU that no catalog may have | the item without it, or by its id |
"""

import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from pos_gateway.adapters import clover_items, square_items
from pos_gateway.adapters.pos_items import CatalogProblem, ListsItems, PosItem
from pos_gateway.domain.merchant import Merchant
from pos_gateway.transport.errors import NoValidReply
from pos_gateway.transport.exchange import Reply, Request, Send
from testkit.vendors.clover.shop import item
from testkit.vendors.square.catalog import Listed
from testkit.vendors.way import VendorSend, Way
from tests.adapters.test_location import Vendor, a_clover, a_hubrise, a_square, a_toast
from tests.adapters.vendors import VENDORS, guid
from tests.testkit.toast_place import BURGER, COKE, DRINKS, MAINS, MAYO, MENU, SAUCES

Body = dict[str, Any]


def merchant_of(name: str, **pos: str) -> Merchant:
    own = {"id": "m", "adapter": name, "base_url": "https://pos.example.com"}
    return Merchant.parse({**own, "pos": pos})


def items(name: str, send: Send, **pos: str) -> list[PosItem]:
    adapter = VENDORS[name].adapter
    assert isinstance(adapter, ListsItems)
    return [each for page in adapter.items(merchant_of(name, **pos), send) for each in page]


def read(vendor: Vendor, **pos: str) -> dict[str, PosItem]:
    """What is read of the vendor's catalog, by id."""
    send = VendorSend(Way(vendor.vendor), vendor.headers)
    found = items(vendor.name, send, **{**vendor.pos, **pos})
    assert not any(each.changes for each in send.requests)
    return {each.pos_id: each for each in found}


def answering(*pages: Any, status: int = 200, **headers: str) -> Send:
    """A POS that answers one page after the other, the last for ever."""
    left = iter(pages)
    last = pages[-1]

    def answer(_: Request) -> Reply:
        page = next(left, last)
        given = page if isinstance(page, bytes) else json.dumps(page).encode()
        return Reply(status, headers, given)

    return Send(answer)


def test_square_s_variations_and_modifiers_at_the_location_are_read() -> None:
    vendor = a_square()
    catalog = vendor.vendor.catalog
    catalog.variations["V1"] = Listed("Burger", 850, sku="burger")
    catalog.variations["V2"] = Listed("Soup", 500, is_sold_out=True)
    catalog.variations["V3"] = Listed("Elsewhere", 1, is_here=False)
    catalog.modifiers["M1"] = Listed("Cheese", 50)
    vendor.vendor.knobs.catalog_page = 2
    assert read(vendor) == {
        "V1": PosItem("V1", "Burger", "burger", 850, "USD"),
        "V2": PosItem("V2", "Soup", "V2", 500, "USD", is_sold_out=True),
        "M1": PosItem("M1", "Cheese", "M1", 50, "USD", is_modifier=True),
    }
    assert vendor.vendor.calls["ListCatalog"] == 2


def variation(known: Any = "V", **data: Any) -> Body:
    return {"type": "ITEM_VARIATION", "id": known, "item_variation_data": data}


def an_item(*variations: Body, item: Body | None = None, **fields: Any) -> Body:
    data = {"name": "Tea", "variations": list(variations), **(item or {})}
    return {
        "type": "ITEM",
        "id": "I",
        "present_at_all_locations": True,
        "item_data": data,
        **fields,
    }


MONEY = {"amount": 300, "currency": "USD"}
HERE = {"location_id": "L1", "price_money": {"amount": 350, "currency": "USD"}}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (an_item(variation(sku="tea", price_money=MONEY)), [("V", "Tea", "tea", 300)]),
        (
            an_item(variation("S", name="Small"), variation("L", name="Large", sku="tea-l")),
            [("S", "Tea (Small)", "S", None), ("L", "Tea (Large)", "tea-l", None)],
        ),
        (
            an_item(variation(price_money=MONEY, location_overrides=[HERE])),
            [("V", "Tea", "V", 350)],
        ),
        (
            an_item(
                variation(price_money=MONEY, location_overrides=[{**HERE, "location_id": "L2"}])
            ),
            [("V", "Tea", "V", 300)],
        ),
        (
            an_item(variation(price_money=MONEY, pricing_type="VARIABLE_PRICING")),
            [("V", "Tea", "V", None)],
        ),
        (an_item(variation(), absent_at_location_ids=["L1"]), []),
        (an_item(variation(), present_at_all_locations=False), []),
        (
            an_item(variation(), present_at_all_locations=False, present_at_location_ids=["L1"]),
            [("V", "Tea", "V", None)],
        ),
        (an_item({**variation(), "absent_at_location_ids": ["L1"]}), []),
        (an_item(variation(), is_deleted=True), []),
        (an_item(variation(), item={"is_archived": True}), []),
        (an_item(variation(sellable=False)), []),
        # What no catalog may have.
        (an_item(variation("two words"), variation(None), variation("V" * 193)), []),
        (an_item(variation(sku=" ")), [("V", "Tea", "V", None)]),
        (an_item(variation(sku="s" * 257)), [("V", "Tea", "V", None)]),
        (an_item(variation(sku="\ud800")), [("V", "Tea", "V", None)]),
        (an_item(variation(price_money={"amount": "3", "currency": 3})), [("V", "Tea", "V", None)]),
        ({"type": "ITEM", "id": "I", "item_data": []}, []),
        (an_item(item={"variations": {"0": variation()}}), []),
    ],
)
def test_what_of_a_catalog_object_is_read(found: Body, expected: list[tuple[Any, ...]]) -> None:
    got = items("square", answering({"objects": [found, None]}), location_id="L1")
    assert [(each.pos_id, each.name, each.sku, each.price) for each in got] == expected


def test_clover_s_inventory_is_read_page_by_page() -> None:
    vendor = a_clover()
    shop = vendor.vendor.shop
    shop.items |= {f"I{n}": item(f"I{n}", f"Item {n}", n, sku=f"sku-{n}") for n in range(1200)}
    shop.items["CODED"] = item("CODED", "Coded", 1, sku="", code="4006381333931")
    shop.items["OPEN"] = item("OPEN", "Open", 1, priceType="VARIABLE", available=False)
    shop.items["OLD"] = item("OLD", "Old", 1, deleted=True)
    found = read(vendor)
    assert {f"I{n}" for n in range(1200)} <= found.keys()
    assert found["I1199"] == PosItem("I1199", "Item 1199", "sku-1199", 1199)
    assert found["CODED"].sku == "4006381333931"
    assert found["OPEN"] == PosItem("OPEN", "Open", "OPEN", None, is_sold_out=True)
    assert found["CHEESE"] == PosItem("CHEESE", "Cheese", "CHEESE", 50, is_modifier=True)
    assert "OLD" not in found


def test_toast_s_items_and_options_go_by_their_groups() -> None:
    menu = [{**each, "sku": each["name"].lower()} for each in MENU]
    menu.append({**menu[-1], "group": MAINS})  # the Coke is in both groups
    vendor = a_toast(menu=menu, stock={BURGER: 0, COKE: 7})
    found = read(vendor)
    assert found[f"{MAINS}/{BURGER}"] == PosItem(
        f"{MAINS}/{BURGER}", "Burger", "burger", 850, is_sold_out=True, good=BURGER
    )
    assert {found[f"{group}/{COKE}"].good for group in (MAINS, DRINKS)} == {COKE}
    mayo = found[f"{SAUCES}/{MAYO}"]
    assert (mayo.is_modifier, mayo.sku, mayo.price, mayo.good) == (True, "", 50, "")
    assert [each.price for each in found.values() if each.name == "Catch of the day"] == [None]


def test_a_menu_within_menus_is_read_and_another_restaurant_s_is_not() -> None:
    leaf = {"guid": guid("leaf"), "menuItems": [{"guid": BURGER, "name": "B", "price": 1.13}]}
    menus = [{"menuGroups": [{"guid": guid("top"), "menuItems": None, "menuGroups": [leaf]}]}]
    reply = {"restaurantGuid": guid("R"), "menus": menus}
    [found] = items("toast", answering(reply), restaurant=guid("R"))
    assert (found.pos_id, found.price) == (f"{guid('leaf')}/{BURGER}", 113)
    with pytest.raises(CatalogProblem, match="another restaurant") as error:
        items("toast", answering(reply), restaurant=guid("another"))
    assert error.value.advice == "is pos.restaurant right?"


NAMES = {
    "square": {"location_id": "L1"},
    "clover": {"merchant_id": "M1"},
    "toast": {"restaurant": guid("R")},
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("send", "problem", "advice"),
    [
        (answering({}, status=401), "answered 401", "is the credential right, and does it have"),
        (answering({}, status=403), "answered 403", "does the credential have"),
        (answering({}, status=404), "answered 404", "is pos."),
        (answering({}, status=429), "answered 429", "run the pull again in 60 s"),
        (answering({}, status=429, **{"retry-after": "7"}), "answered 429", "again in 7 s"),
        (answering({}, status=500), "answered 500", "run the pull again later"),
        (answering(b"<html>"), "no JSON object", "run the pull again later"),
        (answering([]), "no JSON object", "run the pull again later"),
    ],
)
def test_a_catalog_that_is_refused_is_a_sentence_and_a_remedy(
    name: str, send: Send, problem: str, advice: str
) -> None:
    with pytest.raises(CatalogProblem, match=problem) as error:
        items(name, send, **NAMES[name])
    assert advice in error.value.advice


def _numbered(make: Callable[[int, Request], Body]) -> Send:
    count = iter(range(10**9))
    return Send(lambda asked: Reply(200, {}, json.dumps(make(next(count), asked)).encode()))


def _cursors() -> Iterator[tuple[str, Send]]:
    """Lists that come to no end."""
    yield "square", answering({"objects": [], "cursor": "again"})
    yield "square", answering({"cursor": "a"}, {"cursor": "b"}, {"cursor": "a"})
    yield "square", answering({"cursor": "c" * 5000})
    yield "square", answering({"cursor": {"no": "text"}})
    yield "square", _numbered(lambda number, _: {"cursor": str(number)})

    def inventory(_: int, asked: Request) -> Body:
        query = parse_qs(urlsplit(asked.url).query)
        offset, limit = (int(query[each][0]) for each in ("offset", "limit"))
        return {"elements": [{"id": str(offset + each)} for each in range(limit)]}

    yield "clover", _numbered(inventory)


@pytest.mark.parametrize(("name", "send"), list(_cursors()))
def test_a_list_without_an_end_is_given_up(
    name: str, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    for adapter in (square_items, clover_items):
        monkeypatch.setattr(adapter, "PAGES", 20)
    with pytest.raises(CatalogProblem, match="has no end") as error:
        items(name, send, **NAMES[name])
    assert "merchants catalog import" in error.value.advice


def test_clover_s_list_that_changes_meanwhile_is_given_up() -> None:
    page = {"elements": [{"id": f"I{n}"} for n in range(500)]}
    with pytest.raises(CatalogProblem, match="changed while it was read"):
        items("clover", answering(page), merchant_id="M1")  # it ignores the offset, say


def test_a_long_page_is_read_and_one_of_too_many_parts_is_not() -> None:
    """An order's reply may have 40,000 parts: a menu has more."""
    long = {"objects": [an_item(variation(f"V{n}")) for n in range(20_000)]}
    assert len(items("square", answering(long), location_id="L1")) == 20_000
    with pytest.raises(CatalogProblem, match="parts"):
        items("square", answering(b"[" * 2_000_001), location_id="L1")


def test_a_page_that_is_too_long_is_a_sentence_and_any_other_trouble_is_the_transport_s() -> None:
    def failing(code: str) -> Send:
        def fail(_: Request) -> Reply:
            raise NoValidReply(code, "what happened")

        return Send(fail)

    with pytest.raises(CatalogProblem, match="/v2/catalog/list: what happened"):
        items("square", failing("reply_too_long"), location_id="L1")
    with pytest.raises(NoValidReply):
        items("square", failing("reset"), location_id="L1")


def test_hubrise_and_the_reference_api_list_no_items() -> None:
    """HubRise takes an order's sku for the ref code."""
    assert not isinstance(VENDORS[a_hubrise().name].adapter, ListsItems)
    assert not isinstance(VENDORS["rest"].adapter, ListsItems)
