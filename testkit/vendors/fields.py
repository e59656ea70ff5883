"""Validation of JSON bodies by tables: the fields of each object, their types, lengths and bounds.

A table names an object's fields; a field names a plain type, or a table. Tables may be
recursive (a selection whose modifiers are selections). Unknown fields are refused.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Rule(StrEnum):
    """A broken rule: each vendor maps rules to its error codes."""

    UNKNOWN = "unknown"
    MISSING = "missing"
    READ_ONLY = "read_only"
    TYPE = "type"
    ENUM = "enum"
    PATTERN = "pattern"
    SHORT = "too_short"
    LONG = "too_long"
    LOW = "too_low"
    HIGH = "too_high"
    FEW = "too_few"
    MANY = "too_many"


@dataclass(frozen=True, slots=True)
class Fault:
    """A value that breaks a rule. ``path`` is a JSON path: ``order.line_items[0].quantity``."""

    path: str
    rule: Rule
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


@dataclass(frozen=True, slots=True)
class Field:
    """The rules of a field.

    Args:
        type: ``text``, ``integer``, ``number``, ``boolean``, ``map`` (texts by name), ``any``, or
            the name of a table.
        required: neither absent nor null; of a text also not empty.
        many: an array of the type.
        nullable: null means the same as absent.
        read_only: set by the vendor alone; refused in a request.
        shortest, longest: characters of a text, or of each of a map's texts.
        lowest, highest: of a number, inclusive.
        fewest, most: elements of an array, or entries of a map.
        longest_name: characters of a map's names.
        one_of: allowed texts; empty: all.
        pattern: a regular expression for the whole text.
    """

    type: str
    required: bool = False
    many: bool = False
    nullable: bool = True
    read_only: bool = False
    shortest: int = 0
    longest: int | None = None
    lowest: float | None = None
    highest: float | None = None
    fewest: int = 0
    most: int | None = None
    longest_name: int | None = None
    one_of: frozenset[str] = frozenset()
    pattern: str | None = None


Table = Mapping[str, Field]
Tables = Mapping[str, Table]

_PLAIN: Mapping[str, Callable[[Any], bool]] = {
    "text": lambda value: isinstance(value, str),
    "integer": lambda value: type(value) is int,
    "number": lambda value: type(value) in (int, float),
    "boolean": lambda value: isinstance(value, bool),
    "map": lambda value: (
        isinstance(value, dict) and all(isinstance(each, str) for each in value.values())
    ),
    "any": lambda value: True,
}


def text(longest: int | None = None, **rules: Any) -> Field:
    """A text of up to ``longest`` characters."""
    return Field("text", longest=longest, **rules)


def choice(values: str, **rules: Any) -> Field:
    """A text among blank-separated words."""
    return Field("text", one_of=frozenset(values.split()), **rules)


def integer(lowest: float | None = None, highest: float | None = None, **rules: Any) -> Field:
    """An integer between both, inclusive."""
    return Field("integer", lowest=lowest, highest=highest, **rules)


def many(type_: str, most: int | None = None, **rules: Any) -> Field:
    """An array of up to ``most`` elements of the type."""
    return Field(type_, many=True, most=most, **rules)


def faults(tables: Tables, table: str, value: object, path: str = "") -> list[Fault]:
    """Rules of the table that the value breaks, in the table's order; empty for a valid value.

    Args:
        tables: by name.
        table: name of the table for ``value``.
        path: of ``value`` within the body; empty for the whole body.
    """
    return list(_of_object(tables, table, value, path))


def _of_object(tables: Tables, table: str, value: object, path: str) -> Iterator[Fault]:
    if not isinstance(value, dict):
        yield Fault(path or table, Rule.TYPE, f"must be an object ({table})")
        return
    fields, prefix = tables[table], f"{path}." if path else ""
    for name in value:
        if name not in fields:
            yield Fault(f"{prefix}{name}", Rule.UNKNOWN, f"is no field of {table}")
    for name, field in fields.items():
        yield from _of_field(tables, field, value.get(name), name in value, f"{prefix}{name}")


def _of_field(
    tables: Tables, field: Field, value: Any, is_there: bool, path: str
) -> Iterator[Fault]:
    if value is None or (value == "" and field.required):
        if field.required:
            yield Fault(path, Rule.MISSING, "is required")
        elif is_there and not field.nullable:
            yield Fault(path, Rule.TYPE, "must not be null")
    elif field.read_only:
        yield Fault(path, Rule.READ_ONLY, "is read-only")
    elif not field.many:
        yield from _of_value(tables, field, value, path)
    elif not isinstance(value, list):
        yield Fault(path, Rule.TYPE, "must be an array")
    else:
        yield from _of_size(field, len(value), path)
        for number, each in enumerate(value):
            yield from _of_value(tables, field, each, f"{path}[{number}]")


def _of_value(tables: Tables, field: Field, value: Any, path: str) -> Iterator[Fault]:
    is_plain = _PLAIN.get(field.type)
    if is_plain is None:
        yield from _of_object(tables, field.type, value, path)
    elif not is_plain(value):
        yield Fault(path, Rule.TYPE, f"must be of type {field.type}")
    elif field.type == "text":
        yield from _of_text(field, value, path)
    elif field.type == "map":
        yield from _of_size(field, len(value), path)
        for name, each in value.items():
            if field.longest_name is not None and len(name) > field.longest_name:
                longest = f"has a name longer than {field.longest_name} characters"
                yield Fault(f"{path}.{name}", Rule.LONG, longest)
            yield from _of_text(field, each, f"{path}.{name}")
    elif field.lowest is not None and value < field.lowest:
        yield Fault(path, Rule.LOW, f"is {value}, below {field.lowest}")
    elif field.highest is not None and value > field.highest:
        yield Fault(path, Rule.HIGH, f"is {value}, above {field.highest}")


def _of_text(field: Field, value: str, path: str) -> Iterator[Fault]:
    if field.one_of and value not in field.one_of:
        yield Fault(path, Rule.ENUM, f"is {value!r}, and not {', '.join(sorted(field.one_of))}")
    if len(value) < field.shortest:
        yield Fault(path, Rule.SHORT, f"has fewer than {field.shortest} characters")
    if field.longest is not None and len(value) > field.longest:
        yield Fault(path, Rule.LONG, f"has {len(value)} characters, more than {field.longest}")
    if field.pattern is not None and not re.fullmatch(field.pattern, value):
        yield Fault(path, Rule.PATTERN, f"is {value!r}, and does not match {field.pattern}")


def _of_size(field: Field, size: int, path: str) -> Iterator[Fault]:
    if size < field.fewest:
        yield Fault(path, Rule.FEW, f"has {size} elements, fewer than {field.fewest}")
    if field.most is not None and size > field.most:
        yield Fault(path, Rule.MANY, f"has {size} elements, more than {field.most}")
