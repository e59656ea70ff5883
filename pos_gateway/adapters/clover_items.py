"""A merchant's inventory at Clover: items and modifiers.

Sources, on docs.clover.com: "Get all inventory items", "Get all modifiers", "Paginate elements" (``limit`` and
``offset``), "Manage item modifiers availability". All need INVENTORY_R, and a missing permission is a 401. Items have ``sku`` and
``code``, modifiers neither: by Clover's id goes what has none, since a backend that shows Clover's menu has no other. Modifiers
are listed by themselves: a list within an item ends after 100.

Judgement: an item that is deleted between two pages moves all later ones forward, so that a page begins with the last
element of the page before, or the catalog has changed meanwhile.
"""

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlencode

from pos_gateway.adapters.clover_api import url
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
from pos_gateway.domain.merchant import Merchant
from pos_gateway.transport.exchange import Request, Send

#: Elements of a page; Clover allows 1,000.
_PAGE = 500


def items(merchant: Merchant, send: Send) -> Iterator[Sequence[PosItem]]:
    """The merchant's inventory. See ``ListsItems``."""
    for what in ("items", "modifiers"):
        for page in _pages(what, merchant, send):
            yield [good for each in page for good in _good(each, is_modifier=what == "modifiers")]


def _pages(what: str, merchant: Merchant, send: Send) -> Iterator[list[dict[str, Any]]]:
    offset, last = 0, None
    for _ in range(PAGES):
        asked = url(merchant, f"{what}?{urlencode({'limit': _PAGE, 'offset': offset})}")
        request = Request("GET", asked, expects=PAGE_BYTES)
        page = page_of(request, send, "pos.merchant_id", "INVENTORY_R")
        found = objects(page.get("elements"))
        if last is not None and [each.get("id") for each in found[:1]] != [last]:
            raise CatalogProblem(
                f"Clover's list of {what} has changed while it was read", "run the pull again"
            )
        yield found
        if len(found) < _PAGE:
            return
        offset, last = offset + len(found) - 1, found[-1].get("id")
    raise endless(what)


def _good(found: dict[str, Any], *, is_modifier: bool) -> Iterator[PosItem]:
    known_as = known_id(found.get("id"))
    if known_as is None or found.get("deleted") is True or found.get("deletedTime"):
        return
    yield PosItem(
        known_as,
        str(found.get("name") or ""),
        sku_in(found.get("sku"), found.get("code"), known_as),
        None if found.get("priceType") == "VARIABLE" else amount(found.get("price")),
        is_modifier=is_modifier,
        is_sold_out=found.get("available") is False,
    )
