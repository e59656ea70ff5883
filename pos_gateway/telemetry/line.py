"""One line of the log, from the moment in which it is said until it is bytes."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from math import isfinite
from typing import Any, NamedTuple

from pos_gateway.telemetry.fields import FIELDS, HIDDEN
from pos_gateway.telemetry.trace import Trace, first_line

#: Names of the severities: the number of each is its place.
LEVELS = ("debug", "info", "warning", "error", "critical")
#: Characters of a text at most: lines that wait must not fill the memory.
LONGEST = 2000

Scalar = str | int | float | bool | None

_SCALARS = frozenset({str, int, float, bool, type(None)})
_encode = json.JSONEncoder(allow_nan=False).encode


class Line(NamedTuple):
    """What is said. Nothing in it changes any more."""

    #: Unix time.
    at: float
    severity: int
    #: What is said, ``event`` among it.
    fields: Mapping[str, Scalar]
    trace: Trace | None = None

    def rendered(self) -> bytes:
        """As JSON, with the newline; only what may be in it."""
        at = datetime.fromtimestamp(self.at, UTC).isoformat(timespec="microseconds")
        said: dict[str, Scalar] = {
            "timestamp": f"{at[:-6]}Z",
            "level": LEVELS[self.severity],
            "event": self.fields.get("event"),
        }
        for name, value in self.fields.items():
            if name not in said:
                said[name] = _shown(value) if name in FIELDS else HIDDEN
        if isinstance(error := said.get("error"), str):
            said["error"] = first_line(error)
        if self.trace is not None:
            said["exception"] = self.trace.text()
        return _encode(said).encode() + b"\n"


def kept(fields: dict[str, Any]) -> dict[str, Scalar]:
    """The same fields, changed in place: short texts, numbers, and nothing that could still change.

    Anything else becomes its type's name. What it holds may be somebody's, or long, and whoever says
    it has to choose.
    """
    for name, value in fields.items():
        kind = type(value)
        if kind is str:
            if len(value) > LONGEST:
                fields[name] = value[:LONGEST]
        elif kind not in _SCALARS:
            fields[name] = _plain(value)
    return fields


def _plain(value: Any) -> Scalar:
    if isinstance(value, str):  # an enumeration's
        return str.__str__(value)[:LONGEST]
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    return f"[{type(value).__name__}]"


def _shown(value: Scalar) -> Scalar:
    """As JSON has it: seconds to the tenth of a millisecond, and no infinity."""
    if type(value) is float:
        return round(value, 4) if isfinite(value) else str(value)
    return value
