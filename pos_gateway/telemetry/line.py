"""A log line, from the call to the bytes."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from math import isfinite
from typing import Any, NamedTuple

from pos_gateway.telemetry.fields import FIELDS, HIDDEN
from pos_gateway.telemetry.trace import Trace, first_line

#: Names of the severities, in order: a severity is an index.
LEVELS = ("debug", "info", "warning", "error", "critical")
#: Maximum characters of a text: waiting lines must not fill the memory.
LONGEST = 2000

Scalar = str | int | float | bool | None

_SCALARS = frozenset({str, int, float, bool, type(None)})
_encode = json.JSONEncoder(allow_nan=False).encode


class Line(NamedTuple):
    """A log line. Immutable."""

    #: Unix time.
    at: float
    severity: int
    #: The fields, ``event`` among them.
    fields: Mapping[str, Scalar]
    trace: Trace | None = None

    def rendered(self) -> bytes:
        """The line as JSON, with the newline; values of unknown fields hidden."""
        at = datetime.fromtimestamp(self.at, UTC).isoformat(timespec="microseconds")
        said: dict[str, Scalar] = {
            "timestamp": f"{at[:-6]}Z",
            "level": LEVELS[self.severity],
            "event": self.fields.get("event"),
        }
        for name, value in self.fields.items():
            if name not in said:
                said[name] = value if name in FIELDS else HIDDEN
        for name, value in said.items():
            if type(value) is float:  # JSON has no infinity
                said[name] = round(value, 4) if isfinite(value) else str(value)
        if isinstance(error := said.get("error"), str):
            said["error"] = first_line(error)
        if self.trace is not None:
            said["exception"] = self.trace.text()
        return _encode(said).encode() + b"\n"


def kept(fields: dict[str, Any]) -> dict[str, Scalar]:
    """The same dict, changed in place: short texts, numbers, and nothing mutable.

    A value of a different type, possibly personal data or long, becomes the type's name: the caller
    must choose the values to log.
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
    if isinstance(value, str):  # a member of a str enumeration
        return str.__str__(value)[:LONGEST]
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    return f"[{type(value).__name__}]"
