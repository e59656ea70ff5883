"""A restaurant's menus at Toast: items by their group, options by their modifier group.

Sources, on doc.toasttab.com: the menus API V2 (one reply has all menus; menus:read; once a second), "Understanding GUIDs,
referenceIds, and multiLocationIds" (modifier groups and options are in maps), "Menus API returns fully resolved JSON" (a
price that depends on a size or a time is not in the item), "Getting stock information using the stock API". Items have ``sku`` and
``plu``. An item without either has no entry: orders name the item by ``group/item`` as it is.

An item may be in several groups, and is the same in each. An option in several modifier groups is not: Toast takes
the group alone that the order's item has.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pos_gateway.adapters.location import look
from pos_gateway.adapters.pos_items import (
    PAGE_BYTES,
    CatalogProblem,
    PosItem,
    objects,
    page_of,
    sku_in,
)
from pos_gateway.adapters.signatures import inside
from pos_gateway.adapters.toast_api import headers
from pos_gateway.adapters.toast_location import stock, stock_request
from pos_gateway.adapters.toast_order import ITEM
from pos_gateway.domain.merchant import Merchant
from pos_gateway.transport.exchange import Request, Send

#: Pricing strategies whose price is the item's.
_FIXED = (None, "BASE_PRICE", "MENU_SPECIFIC_PRICE", "GROUP_PRICE")


def items(merchant: Merchant, send: Send) -> Iterator[Sequence[PosItem]]:
    """The restaurant's menus. See ``ListsItems``."""
    url = f"{merchant.base_url}/menus/v2/menus"
    request = Request("GET", url, headers=headers(merchant), expects=PAGE_BYTES)
    found = page_of(request, send, "pos.restaurant", "menus:read")
    whose = str(found.get("restaurantGuid")).lower()
    if whose != merchant.pos["restaurant"].lower():
        problem = f"/menus/v2/menus: the menus are of another restaurant, {whose[:40]!r}"
        raise CatalogProblem(problem, "is pos.restaurant right?")
    left = stock(look(stock_request(merchant), send))
    yield [*_items(found, left), *_options(found, left)]


def _items(found: dict[str, Any], left: Mapping[str, float]) -> Iterator[PosItem]:
    menus = objects(found.get("menus"))
    groups = [each for menu in menus for each in objects(menu.get("menuGroups"))][::-1]
    while groups:
        group = groups.pop()
        groups += objects(group.get("menuGroups"))[::-1]
        for each in objects(group.get("menuItems")):
            yield from _good(group, each, left)


def _options(found: dict[str, Any], left: Mapping[str, float]) -> Iterator[PosItem]:
    options = inside(found, "modifierOptionReferences")
    for group in inside(found, "modifierGroupReferences").values():
        numbers = group.get("modifierOptionReferences") if isinstance(group, dict) else None
        for each in numbers if isinstance(numbers, list) else ():
            yield from _good(group, inside(options, str(each)), left, is_modifier=True)


def _good(
    group: dict[str, Any],
    found: dict[str, Any],
    left: Mapping[str, float],
    *,
    is_modifier: bool = False,
) -> Iterator[PosItem]:
    known_as = f"{group.get('guid')}/{found.get('guid')}"
    if not re.fullmatch(ITEM.pattern, known_as):
        return
    price, is_fixed = found.get("price"), found.get("pricingStrategy") in _FIXED
    is_price = is_fixed and isinstance(price, int | float) and not isinstance(price, bool)
    guid = str(found.get("guid")).lower()
    yield PosItem(
        known_as,
        str(found.get("name") or ""),
        sku_in(found.get("sku"), found.get("plu")),
        round(price * 100) if is_price and price is not None else None,
        is_modifier=is_modifier,
        is_sold_out=left.get(guid, 1) <= 0,
        good="" if is_modifier else guid,
    )
