"""A POS's catalog: the items and modifiers that a merchant's orders may name, for an operator's pull.

Only ``merchants catalog pull`` reads a POS's catalog; an order never waits for the catalog. A catalog comes whole or not at
all: each list ends with the POS's own last page, or with CatalogProblem.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable
from urllib.parse import urlsplit

from pos_gateway.adapters.replies import json_object, retry_after
from pos_gateway.domain.merchant import Merchant
from pos_gateway.transport.errors import TransportError
from pos_gateway.transport.exchange import Request, Send

#: Maximum pages of a list, bytes of a page, and parts of a page's JSON: of an order's reply all are far fewer.
PAGES, PAGE_BYTES, _PARTS = 1_000, 16 * 2**20, 2_000_000
#: Seconds before the next pull after a 429 without ``Retry-After``.
_PAUSE = 60.0
_FROM_A_FILE = "write the catalog from a file: pos-gateway merchants catalog import FILE"
_ID = re.compile(r"[\x21-\x7e]{1,192}")
_SKU = 256


@dataclass(frozen=True, slots=True)
class PosItem:
    """An item or a modifier that an order may name."""

    #: As in a merchant's catalog.
    pos_id: str
    name: str
    #: By which orders may know the item; empty: by none.
    sku: str = ""
    #: Minor units; None: open, or by circumstances.
    price: int | None = None
    #: ISO 4217; empty: not said.
    currency: str = ""
    is_modifier: bool = False
    is_sold_out: bool = False
    #: Same for an item that has several ids, in several menus; empty: the id.
    good: str = ""


class CatalogProblem(Exception):
    """The POS's catalog cannot be read as a whole. ``advice`` is the remedy."""

    def __init__(self, problem: str, advice: str = "run the pull again later") -> None:
        super().__init__(problem)
        self.advice = advice


@runtime_checkable
class ListsItems(Protocol):
    """What an adapter has besides, if its POS lists items that the merchant's catalog may map."""

    def items(self, merchant: Merchant, send: Send) -> Iterator[Sequence[PosItem]]:
        """All that an order at this merchant may name, a page at a time. An id may come twice.

        Raises:
            CatalogProblem: the list has no end, or cannot be read.
            TransportError: as from ``send``.
        """
        ...


def page_of(request: Request, send: Send, named: str, scope: str) -> dict[str, Any]:
    """The object in the POS's 200.

    Args:
        request: for a page.
        send: to the POS.
        named: the field of the merchant's record that names the location.
        scope: the permission that the credential needs.

    Raises:
        CatalogProblem: any other reply.
        TransportError: as from ``send``.
    """
    path = urlsplit(request.url).path
    try:
        reply = send(request)
    except TransportError as error:
        if error.code != "reply_too_long":
            raise
        raise CatalogProblem(f"{path}: {error}", _FROM_A_FILE) from error
    if reply.status != 200:
        advice = {
            401: f"is the credential right, and does it have {scope}?",
            403: f"does the credential have {scope}?",
            404: f"is {named} right?",
            429: f"run the pull again in {retry_after(reply) or _PAUSE:.0f} s",
        }
        said = f"{path}: the POS answered {reply.status}"
        raise CatalogProblem(said, *[advice[each] for each in (reply.status,) if each in advice])
    found = json_object(reply, _PARTS)
    if found is None:
        raise CatalogProblem(f"{path}: the reply is no JSON object of at most {_PARTS} parts")
    return found


def objects(value: Any) -> list[dict[str, Any]]:
    """The objects of a list; empty for any other value."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def known_id(value: Any) -> str | None:
    """An id that a catalog can have; None: anything else."""
    return value if isinstance(value, str) and _ID.fullmatch(value) else None


def sku_in(*values: Any) -> str:
    """The first of these values that an order's ``sku`` can be; empty: none."""
    return next(
        (each for each in values if isinstance(each, str) and _is_sku(each)),
        "",
    )


def _is_sku(text: str) -> bool:
    return bool(text.strip()) and len(text) <= _SKU and text.isprintable()


def amount(value: Any) -> int | None:
    """Minor units; None: none are given."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def endless(what: str) -> CatalogProblem:
    """The problem of a list without an end."""
    return CatalogProblem(
        f"the POS's list of {what} has no end: a page came twice, or {PAGES} pages are not all",
        _FROM_A_FILE,
    )
