"""A seller's catalog at Square: item variations and modifiers that are present at the merchant's location.

Sources, on developer.squareup.com: ListCatalog (100 objects a page, no deleted ones; ITEMS_READ), CatalogObject
(``present_at_all_locations``, ``present_at_location_ids``, ``absent_at_location_ids``), CatalogItem (``is_archived``),
CatalogItemVariation (``sku``, ``sellable``), ItemVariationLocationOverrides, ModifierLocationOverrides. A modifier has no
SKU. A variation or a modifier without a SKU goes by Square's id: a backend that shows Square's menu has no other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from pos_gateway.adapters.pos_items import (
    PAGE_BYTES,
    PAGES,
    CatalogProblem,
    PosItem,
    amount,
    endless,
    known_id,
    objects,
    page_of,
    sku_in,
)
from pos_gateway.adapters.signatures import inside
from pos_gateway.adapters.square_api import asking
from pos_gateway.domain.merchant import Merchant
from pos_gateway.transport.exchange import Send

_TYPES = "ITEM,MODIFIER_LIST"
#: Maximum characters of a cursor, which is sent back. Square documents no limit.
_CURSOR = 4096


def items(merchant: Merchant, send: Send) -> Iterator[Sequence[PosItem]]:
    """The location's catalog. See ``ListsItems``."""
    cursors = {""}
    cursor = ""
    for _ in range(PAGES):
        query = {"types": _TYPES, **({"cursor": cursor} if cursor else {})}
        request = asking(f"{merchant.base_url}/v2/catalog/list?{urlencode(query)}")
        request = replace(request, expects=PAGE_BYTES)
        page = page_of(request, send, "pos.location_id", "ITEMS_READ")
        if page.get("errors"):
            raise CatalogProblem("/v2/catalog/list: a 200 with errors")
        location = merchant.pos["location_id"]
        yield [each for found in objects(page.get("objects")) for each in _goods(found, location)]
        following = page.get("cursor")
        if not following:
            return
        if not isinstance(following, str) or len(following) > _CURSOR or following in cursors:
            break
        cursors.add(following)
        cursor = following
    raise endless("catalog objects")


def _goods(found: dict[str, Any], location: str) -> Iterator[PosItem]:
    """What an order may name of an ITEM or a MODIFIER_LIST."""
    if not _is_here(found, location):
        return
    item, modifiers = inside(found, "item_data"), inside(found, "modifier_list_data")
    if item.get("is_archived") is not True:
        variations = objects(item.get("variations"))
        for each in variations:
            name = str(item.get("name") or "")
            data = inside(each, "item_variation_data")
            if len(variations) > 1 and data.get("name"):
                name = f"{name} ({data['name']})"
            if data.get("sellable") is not False:
                yield from _good(each, data, name, location)
    for each in objects(modifiers.get("modifiers")):
        data = inside(each, "modifier_data")
        yield from _good(each, data, str(data.get("name") or ""), location, is_modifier=True)


def _good(
    found: dict[str, Any],
    data: dict[str, Any],
    name: str,
    location: str,
    *,
    is_modifier: bool = False,
) -> Iterator[PosItem]:
    known_as = known_id(found.get("id"))
    if known_as is None or not _is_here(found, location):
        return
    overrides = objects(data.get("location_overrides"))
    here = next((each for each in overrides if each.get("location_id") == location), {})
    money = inside(here, "price_money") or inside(data, "price_money")
    is_open = (here.get("pricing_type") or data.get("pricing_type")) == "VARIABLE_PRICING"
    currency = money.get("currency")
    yield PosItem(
        known_as,
        name,
        sku_in(data.get("sku"), known_as),
        None if is_open else amount(money.get("amount")),
        currency if isinstance(currency, str) else "",
        is_modifier=is_modifier,
        is_sold_out=here.get("sold_out") is True,
    )


def _is_here(found: dict[str, Any], location: str) -> bool:
    """Whether an object is present at the location; what is inside an object may leave out where."""
    present, absent = (found.get(f"{each}_at_location_ids") for each in ("present", "absent"))
    if found.get("is_deleted") is True or (isinstance(absent, list) and location in absent):
        return False
    is_named = isinstance(present, list) and location in present
    return is_named or found.get("present_at_all_locations") is not False
