"""The order itself as tables: masked, or revealed."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pos_gateway.domain.errors import InvalidOrder
from pos_gateway.domain.masking import masked
from pos_gateway.domain.order import Order
from pos_gateway.ledger.order_admin import OrderAdmin
from pos_gateway.ledger.states import Key
from pos_gateway.runtime.vault import CannotOpen

#: Maximum items, and modifiers of an item, that are shown.
ITEMS, MODIFIERS = 200, 30
#: Currencies by the digits of their minor unit (ISO 4217), where that is no hundredth.
_DIGITS = dict.fromkeys(
    [
        "BIF",
        "CLP",
        "DJF",
        "GNF",
        "ISK",
        "JPY",
        "KMF",
        "KRW",
        "PYG",
        "RWF",
        "UGX",
        "UYI",
        "VND",
        "VUV",
        "XAF",
        "XOF",
        "XPF",
    ],
    0,
)
_DIGITS |= dict.fromkeys(["BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND"], 3)
_DIGITS |= dict.fromkeys(["CLF", "UYW"], 4)
_IN_TABLE = ("order_id", "merchant_id", "items", "total", "tip", "currency")


class OrderLine(NamedTuple):
    """An item, or a modifier of the one above it."""

    name: str
    sku: str
    quantity: int
    price: str
    #: With its modifiers; empty for a modifier.
    total: str
    is_modifier: bool
    #: Names and texts of what else it has.
    others: list[tuple[str, str]]


class Content(NamedTuple):
    """An order for a template."""

    lines: list[OrderLine]
    #: How many items are not shown.
    hidden: int
    tip: str | None
    total: str
    others: list[tuple[str, str]]


def content(ledger: OrderAdmin, key: Key, *, reveal: bool) -> tuple[Content | None, str]:
    """The order, or why it cannot be shown."""
    try:
        order_json = ledger.order_json(key)
    except CannotOpen as error:
        return None, f"The order itself is {error}."
    if order_json is None:
        return None, "The order itself is not kept: it was pruned, or no worker has had it yet."
    try:
        order = Order.parse_json(order_json)
        record = order.model_dump(mode="json", exclude_none=True) if reveal else masked(order)
        return _content(record), ""
    except (InvalidOrder, ValueError, RecursionError):
        return None, "The order that is kept cannot be read."


def amount(minor: int, currency: str) -> str:
    """``12.50 EUR``: money in the currency's own unit."""
    digits = _DIGITS.get(currency, 2)
    whole, rest = divmod(abs(minor), 10**digits)
    fraction = f".{rest:0{digits}}" if digits else ""
    return f"{'-' if minor < 0 else ''}{whole:,}{fraction} {currency}"


def _content(record: Mapping[str, Any]) -> Content:
    currency = record["currency"]
    lines: list[OrderLine] = []
    for item in record["items"][:ITEMS]:
        lines.append(_line(item, currency, amount(item["quantity"] * _price(item), currency)))
        modifiers = list(_below(item))
        lines += [_line(modifier, currency, "") for modifier in modifiers[:MODIFIERS]]
        if len(modifiers) > MODIFIERS:
            rest = f"… and {len(modifiers) - MODIFIERS} more modifiers"
            lines.append(OrderLine(rest, "", 0, "", "", True, []))
    return Content(
        lines,
        max(0, len(record["items"]) - ITEMS),
        amount(record["tip"], currency) if record.get("tip") is not None else None,
        amount(record["total"], currency),
        _others(record, _IN_TABLE),
    )


def _price(part: Mapping[str, Any]) -> int:
    """The price of one, with its modifiers."""
    below: int = sum(each["quantity"] * _price(each) for each in part.get("modifiers", ()))
    return int(part["unit_price"]) + below


def _below(part: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The modifiers of an item, each before its own."""
    for each in part.get("modifiers", ()):
        yield each
        yield from _below(each)


def _line(record: Mapping[str, Any], currency: str, total: str) -> OrderLine:
    return OrderLine(
        record["name"],
        record.get("sku", ""),
        record["quantity"],
        amount(record["unit_price"], currency),
        total,
        not total,
        _others(record, ("name", "sku", "quantity", "unit_price", "modifiers")),
    )


def _others(record: Mapping[str, Any], but: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(name, _text(value)) for name, value in record.items() if name not in but]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
