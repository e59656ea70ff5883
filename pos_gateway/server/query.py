"""A request's query: a parameter that is misspelled, or given twice, is refused.

``?afer=4711`` would else begin with the first event that is kept.
"""

import re
from collections.abc import Collection
from urllib.parse import parse_qsl

from pos_gateway.domain.errors import FieldError
from pos_gateway.server.problems import Problem

#: The highest position that the database can hold.
LAST_POSITION = 2**63 - 1
#: A number as JSON has it, not negative.
_DECIMAL = re.compile(r"[0-9]{1,19}(\.[0-9]{1,19})?(e[+-]?[0-9]{1,3})?")
#: Maximum wrong parameters that are named, and maximum characters of each.
_NAMED, _SHOWN = 10, 80


def require_parameters(query: bytes, allowed: Collection[str]) -> dict[str, str]:
    """The query's parameters. Raises Problem 422 for one that the route lacks, or that comes twice."""
    found: dict[str, str] = {}
    errors: list[FieldError] = []
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name not in allowed:
            errors.append(FieldError(name[:_SHOWN], "is no parameter of this request"))
        elif name in found:
            errors.append(FieldError(name, "is given twice"))
        found[name] = value
    if errors:
        errors = errors[:_NAMED]
        raise Problem(422, "invalid_request", "; ".join(map(str, errors)), errors=errors)
    return found


def whole(text: str) -> int:
    """A parameter that is a whole number, written in digits alone. Raises ValueError."""
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise ValueError("should be a whole number, 0 or more")
    return int(text)


def decimal(text: str) -> float:
    """A parameter that is a number. Raises ValueError."""
    if _DECIMAL.fullmatch(text) is None:
        raise ValueError("should be a number, 0 or more")
    return float(text)
