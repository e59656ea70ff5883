"""A merchant's catalog beside the POS's: the changes that a pull makes.

A pull writes the POS's SKUs and keeps the rest: an entry under a SKU that is no SKU at the POS was written by
hand, and stays while the POS has its id. An id that the POS has no more stays, too, unless asked otherwise: without the
entry its orders would go ad hoc, and be accepted.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pos_gateway.adapters.pos_items import PosItem


@dataclass(frozen=True, slots=True)
class CatalogChange:
    """A SKU's entry before and after."""

    #: ``added``, ``changed``, ``gone`` or ``unclear``.
    kind: str
    sku: str
    #: The POS's id before; None: no entry.
    before: str | None = None
    #: The item before, as far as the POS still has one.
    was: PosItem | None = None
    #: The items now: one; none at a ``gone`` entry; several at an ``unclear`` SKU, whose entry stays.
    now: Sequence[PosItem] = ()


@dataclass(frozen=True, slots=True)
class CatalogDiff:
    """The changes, by kind and SKU."""

    changes: Sequence[CatalogChange]
    #: Entries that stay as they are.
    same: int

    def of(self, kind: str) -> list[CatalogChange]:
        """The changes of a kind."""
        return [each for each in self.changes if each.kind == kind]

    def applied(self, entries: Mapping[str, str], *, removing: bool) -> dict[str, str]:
        """The catalog with the changes; ``removing``: without entries that are gone."""
        after = dict(entries)
        for each in self.changes:
            if each.kind in ("added", "changed"):
                after[each.sku] = each.now[0].pos_id
            elif each.kind == "gone" and removing:
                del after[each.sku]
        return after


def diff(entries: Mapping[str, str], found: Iterable[PosItem]) -> CatalogDiff:
    """The changes that the POS's items make to a merchant's entries."""
    by_id: dict[str, PosItem] = {}
    by_sku: dict[str, list[PosItem]] = defaultdict(list)
    for item in found:
        if item.pos_id not in by_id:
            by_id[item.pos_id] = item
            if item.sku:
                by_sku[item.sku].append(item)
    changes: list[CatalogChange] = []
    for sku, candidates in by_sku.items():
        before = entries.get(sku)
        if before in [each.pos_id for each in candidates]:
            continue
        named = _named(candidates)
        kind = "unclear" if len(named) > 1 else "added" if before is None else "changed"
        changes.append(CatalogChange(kind, sku, before, by_id.get(before or ""), named))
    moved = {each.sku for each in changes if each.kind == "changed"}
    changes += [
        CatalogChange("gone", sku, before)
        for sku, before in entries.items()
        if before not in by_id and sku not in moved
    ]
    order = ("added", "changed", "gone", "unclear")
    changes.sort(key=lambda each: (order.index(each.kind), each.sku))
    same = len(entries) - sum(each.kind in ("changed", "gone") for each in changes)
    return CatalogDiff(changes, same)


def _named(candidates: Sequence[PosItem]) -> Sequence[PosItem]:
    """The item that a SKU names; all candidates if that is unclear.

    An item comes before a modifier of the same SKU, and an item at one price in several menus is one.
    """
    first, *others = [each for each in candidates if not each.is_modifier] or candidates
    same = (first.good, first.price)
    is_one = not others or (first.good and all((each.good, each.price) == same for each in others))
    return [first] if is_one else candidates
