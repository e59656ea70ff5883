"""Tables of fields: each rule, with the path of the value that breaks the rule."""

from typing import Any

import pytest

from testkit.vendors.fields import Field, choice, faults, integer, many, text

TABLES = {
    "Order": {
        "id": text(read_only=True),
        "name": text(5, required=True),
        "kind": choice("A B", nullable=False),
        "code": text(shortest=2, pattern="[a-z]+"),
        "count": integer(1, 9),
        "price": Field("number", lowest=0),
        "is_paid": Field("boolean"),
        "notes": Field("map", longest=3, most=1, longest_name=2),
        "parts": many("Order", 2, fewest=1),
        "kinds": choice("A B", many=True),
        "extra": Field("any"),
    }
}
OK: dict[str, Any] = {"name": "n"}


def test_a_body_that_keeps_all_rules_has_no_faults() -> None:
    whole = {
        "name": "Burgr",
        "kind": "A",
        "code": "ab",
        "count": 9,
        "price": 1.5,
        "is_paid": False,
        "notes": {"ab": "abc"},
        "parts": [{**OK, "parts": [OK, OK]}],
        "kinds": ["A", "B"],
        "extra": [{"x": 1}],
    }
    assert faults(TABLES, "Order", whole) == []
    assert faults(TABLES, "Order", {**OK, "code": None, "parts": None}) == []


@pytest.mark.parametrize(
    ("body", "path", "rule"),
    [
        ([], "Order", "type"),
        ({}, "name", "missing"),
        ({"name": None}, "name", "missing"),
        ({"name": ""}, "name", "missing"),
        ({"name": 5}, "name", "type"),
        ({"name": "Burger"}, "name", "too_long"),
        ({**OK, "colour": 1}, "colour", "unknown"),
        ({**OK, "id": "mine"}, "id", "read_only"),
        ({**OK, "kind": "C"}, "kind", "enum"),
        ({**OK, "kind": None}, "kind", "type"),
        ({**OK, "code": "ab1"}, "code", "pattern"),
        ({**OK, "code": "a"}, "code", "too_short"),
        ({**OK, "count": 0}, "count", "too_low"),
        ({**OK, "count": 10}, "count", "too_high"),
        ({**OK, "count": 1.0}, "count", "type"),
        ({**OK, "count": True}, "count", "type"),
        ({**OK, "price": "1"}, "price", "type"),
        ({**OK, "is_paid": 1}, "is_paid", "type"),
        ({**OK, "notes": {"a": 1}}, "notes", "type"),
        ({**OK, "notes": {"a": "abcd"}}, "notes.a", "too_long"),
        ({**OK, "notes": {"abc": "a"}}, "notes.abc", "too_long"),
        ({**OK, "notes": {"a": "a", "b": "b"}}, "notes", "too_many"),
        ({**OK, "parts": OK}, "parts", "type"),
        ({**OK, "parts": []}, "parts", "too_few"),
        ({**OK, "parts": [OK] * 3}, "parts", "too_many"),
        ({**OK, "parts": [OK, {**OK, "parts": [{}]}]}, "parts[1].parts[0].name", "missing"),
        ({**OK, "kinds": ["A", "C"]}, "kinds[1]", "enum"),
    ],
)
def test_each_broken_rule_names_its_path(body: Any, path: str, rule: str) -> None:
    [fault] = faults(TABLES, "Order", body)
    assert (fault.path, fault.rule) == (path, rule)
    assert str(fault).startswith(f"{path}: ")


def test_all_faults_of_a_body_are_found_and_its_path_is_in_front() -> None:
    found = faults(TABLES, "Order", {"name": "", "count": 0, "x": 1}, "order")
    assert [each.path for each in found] == ["order.x", "order.name", "order.count"]
