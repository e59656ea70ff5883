"""The seller's catalog: item variations, modifiers, taxes; and ListCatalog's objects.

*Document*: what is sold out, and where an object is present, are fields of the objects; modifiers are
inside their MODIFIER_LIST, and objects of type MODIFIER as well. *Judgement*: a single list.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Listed:
    """An item variation or a modifier of the seller's catalog.

    Args:
        category: printers and KDS route by category; without a category an item may print nowhere.
        is_here: present at the location.
        sku: of a variation.
    """

    name: str
    price: int
    category: str | None = "Food"
    is_sold_out: bool = False
    is_here: bool = True
    sku: str | None = None


@dataclass(slots=True)
class Catalog:
    """The seller's goods, by Square's ids; ``taxes``: percentages, each ADDITIVE; ``others``: objects as they are."""

    variations: dict[str, Listed] = field(default_factory=dict)
    modifiers: dict[str, Listed] = field(default_factory=dict)
    taxes: dict[str, str] = field(default_factory=dict)
    others: list[dict[str, Any]] = field(default_factory=list)

    def objects(self, location_id: str, currency: str) -> list[dict[str, Any]]:
        """CatalogObjects: an item for each variation, modifiers, taxes."""
        objects: list[dict[str, Any]] = []
        for known, each in self.variations.items():
            override = {"location_id": location_id, "sold_out": each.is_sold_out}
            of_variation = {
                "item_id": f"item-{known}",
                "name": "Regular",
                "pricing_type": "FIXED_PRICING",
                "price_money": {"amount": each.price, "currency": currency},
                "location_overrides": [override],
            }
            of_variation |= {} if each.sku is None else {"sku": each.sku}
            variation = {"type": "ITEM_VARIATION", "id": known, "item_variation_data": of_variation}
            item: dict[str, Any] = {"name": each.name, "variations": [variation]}
            if each.category is not None:
                item["categories"] = [{"id": each.category}]
            objects.append(
                {
                    "type": "ITEM",
                    "id": f"item-{known}",
                    "present_at_all_locations": each.is_here,
                    "item_data": item,
                }
            )
        modifiers: list[dict[str, Any]] = []
        for known, each in self.modifiers.items():
            money = {"amount": each.price, "currency": currency}
            data = {"name": each.name, "price_money": money}
            modifiers.append({"type": "MODIFIER", "id": known, "modifier_data": data})
        if modifiers:
            of_list = {"name": "Modifiers", "selection_type": "MULTIPLE", "modifiers": modifiers}
            objects.append(
                {"type": "MODIFIER_LIST", "id": "modifiers", "modifier_list_data": of_list}
            )
        objects += modifiers
        for known, percentage in self.taxes.items():
            of_tax = {"percentage": percentage, "inclusion_type": "ADDITIVE"}
            objects.append({"type": "TAX", "id": known, "tax_data": of_tax})
        return objects + self.others
