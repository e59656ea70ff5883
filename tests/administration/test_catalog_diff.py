"""The changes that a pull makes to a merchant's catalog.

| adversary | what becomes of it |
|---|---|
| an entry of a person's own, under a SKU that the POS has not | stays, while the POS has the id |
| an entry of an item that the POS has no more | gone: stays, or goes if that is asked for |
| one SKU at several items | unclear: the entry stays as it is, or there is none |
| an item and a modifier of one SKU | the item |
| one item in several menus, at one price | the first; the entry's own, if it is one of them |
| one item at several prices | unclear |
| an item without a SKU | none |
| an item twice, in two pages | once |
"""

from collections.abc import Mapping
from typing import Any

import pytest

from pos_gateway.adapters.pos_items import PosItem
from pos_gateway.administration.catalog_diff import diff


def pos(pos_id: str, sku: str = "", **fields: Any) -> PosItem:
    return PosItem(pos_id, pos_id.lower(), sku, **fields)


def cheese(pos_id: str, **fields: Any) -> PosItem:
    return pos(pos_id, "cheese", is_modifier=True, **fields)


def in_menu(pos_id: str, price: int | None = 300) -> PosItem:
    return pos(pos_id, "coke", price=price, good="COKE")


@pytest.mark.parametrize(
    ("entries", "found", "kinds", "after"),
    [
        ({}, [pos("A", "a")], {"a": "added"}, {"a": "A"}),
        ({"a": "A"}, [pos("A", "a")], {}, {"a": "A"}),
        ({"a": "A"}, [pos("A"), pos("B", "a")], {"a": "changed"}, {"a": "B"}),
        ({"a": "A"}, [pos("B", "a")], {"a": "changed"}, {"a": "B"}),
        ({"mine": "A"}, [pos("A", "a")], {"a": "added"}, {"mine": "A", "a": "A"}),
        ({"a": "A"}, [pos("B", "b")], {"a": "gone", "b": "added"}, {"a": "A", "b": "B"}),
        ({}, [pos("A")], {}, {}),
        ({}, [pos("A", "a"), pos("A", "a")], {"a": "added"}, {"a": "A"}),
        ({}, [pos("A", "a"), pos("B", "a")], {"a": "unclear"}, {}),
        ({"a": "B"}, [pos("A", "a"), pos("B", "a")], {}, {"a": "B"}),
        ({"a": "C"}, [pos("A", "a"), pos("B", "a"), pos("C")], {"a": "unclear"}, {"a": "C"}),
        ({}, [cheese("O1"), pos("A", "cheese")], {"cheese": "added"}, {"cheese": "A"}),
        ({}, [cheese("O1"), cheese("O2")], {"cheese": "unclear"}, {}),
        ({}, [in_menu("G1/C"), in_menu("G2/C")], {"coke": "added"}, {"coke": "G1/C"}),
        ({"coke": "G2/C"}, [in_menu("G1/C"), in_menu("G2/C")], {}, {"coke": "G2/C"}),
        ({}, [in_menu("G1/C"), in_menu("G2/C", 350)], {"coke": "unclear"}, {}),
    ],
)
def test_what_a_pull_changes(
    entries: Mapping[str, str],
    found: list[PosItem],
    kinds: Mapping[str, str],
    after: Mapping[str, str],
) -> None:
    changed = diff(entries, found)
    assert {each.sku: each.kind for each in changed.changes} == kinds
    assert changed.applied(entries, removing=False) == after
    # A second pull finds nothing to write.
    again = diff(after, found)
    assert again.applied(after, removing=False) == after
    assert {each.kind for each in again.changes} <= {"gone", "unclear"}


def test_what_is_gone_is_removed_if_that_is_asked_for() -> None:
    changed = diff({"a": "A", "b": "B"}, [pos("B", "b")])
    assert changed.applied({"a": "A", "b": "B"}, removing=True) == {"b": "B"}
    assert changed.same == 1


def test_a_change_has_the_item_before_as_the_pos_has_it_now() -> None:
    before, now = pos("A", price=1), pos("B", "a", price=2)
    [change] = diff({"a": "A"}, [before, now]).changes
    assert (change.before, change.was, change.now) == ("A", before, [now])


def test_an_unclear_sku_whose_item_is_gone_is_said_as_both() -> None:
    changed = diff({"a": "C"}, [pos("A", "a"), pos("B", "a")])
    assert [each.kind for each in changed.changes] == ["gone", "unclear"]
    assert changed.applied({"a": "C"}, removing=False) == {"a": "C"}
