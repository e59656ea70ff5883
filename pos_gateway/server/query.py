"""A request's query: a parameter that is misspelled, or given twice, is refused.

``?afer=4711`` would else begin with the first event that is kept.
"""

from collections.abc import Collection
from urllib.parse import parse_qsl

from pos_gateway.domain.errors import FieldError
from pos_gateway.server.problems import Problem

#: Most wrong parameters that are named, and most characters of each.
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
