"""A restaurant's menu: groups of items, their modifier groups, and the options of those."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Item:
    """An item of the menu, or an option of a modifier group: one item may be both, at two prices.

    Attributes:
        price: in cents; None: an open price, which each order gives.
    """

    guid: str
    name: str
    price: int | None
    groups: Mapping[str, "Group"] = field(default_factory=dict)
    sku: str | None = None
    plu: str | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """A group of the menu, or a modifier group, of which an order has ``fewest`` to ``most`` options."""

    guid: str
    items: Mapping[str, Item]
    fewest: int = 0
    most: int | None = None


def read(entries: Iterable[Body]) -> dict[str, Group]:
    """Groups by GUID, of items that each say their group.

    Args:
        entries: each has ``group``, ``guid``, ``name``, ``price``, and perhaps ``options``, likewise;
            the first of a group has its ``fewest`` and ``most``.
    """
    items: dict[str, dict[str, Item]] = {}
    bounds: dict[str, Body] = {}
    for each in entries:
        codes = (each.get("sku"), each.get("plu"))
        below = read(each.get("options", ()))
        found = Item(each["guid"], each["name"], each["price"], below, *codes)
        items.setdefault(each["group"], {})[found.guid] = found
        given: Body = {name: each[name] for name in ("fewest", "most") if name in each}
        bounds.setdefault(each["group"], given)
    return {guid: Group(guid, found, **bounds[guid]) for guid, found in items.items()}


def published(menu: Mapping[str, Group]) -> Body:
    """As ``GET /menus/v2/menus`` has it: modifier groups and options are in maps, referred to by number."""
    groups: dict[str, Body] = {}
    options: dict[str, Body] = {}

    def listed(item: Item) -> Body:
        return {
            "guid": item.guid,
            "name": item.name,
            "price": None if item.price is None else item.price / 100,
            "sku": item.sku,
            "plu": item.plu,
            "pricingStrategy": "OPEN_PRICE" if item.price is None else "BASE_PRICE",
            "modifierGroupReferences": [numbered(each) for each in item.groups.values()],
        }

    def numbered(group: Group) -> int:
        references = []
        for item in group.items.values():
            number = len(options) + 1
            options[str(number)] = {}
            options[str(number)] = {"referenceId": number, **listed(item)}
            references.append(number)
        number = len(groups) + 1
        groups[str(number)] = {
            "referenceId": number,
            "guid": group.guid,
            "minSelections": group.fewest,
            "maxSelections": group.most,
            "modifierOptionReferences": references,
        }
        return number

    content = [
        {"guid": group.guid, "menuGroups": [], "menuItems": list(map(listed, group.items.values()))}
        for group in menu.values()
    ]
    return {
        "menus": [{"name": "Menu", "menuGroups": content}],
        "modifierGroupReferences": groups,
        "modifierOptionReferences": options,
    }
