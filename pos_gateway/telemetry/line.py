"""A log line, from the call to the bytes, and an exception as kept for a line.

No frame is kept: no variable's value gets into a line, or lives longer. Only a message's first line
is kept: in later lines databases and pydantic repeat rejected values.
"""

import json
import linecache
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from math import isfinite
from traceback import walk_tb
from types import TracebackType
from typing import Any, NamedTuple, Self

from pos_gateway.telemetry.fields import FIELDS, HIDDEN

#: Names of the severities, in order: a severity is an index.
LEVELS = ("debug", "info", "warning", "error", "critical")
#: Maximum characters of a text: waiting lines must not fill the memory.
LONGEST = 2000
#: Maximum characters of an exception's message, frames of a traceback (the last frames), and
#: exceptions of a chain.
MESSAGE, FRAMES, CHAIN = 500, 30, 5

Scalar = str | int | float | bool | None

_CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"
_SCALARS = frozenset({str, int, float, bool, type(None)})
_encode = json.JSONEncoder(allow_nan=False).encode


class Raised(NamedTuple):
    """A chain's exception, and the link to the previous exception."""

    kind: str
    message: str
    #: File, line and function of each.
    frames: Sequence[tuple[str, int, str]]
    link: str

    @classmethod
    def of(cls, error: BaseException, link: str, *, messages: bool) -> Self:
        """Copy the kept parts of an exception."""
        message = first_line(_message(error))[:MESSAGE] if messages else ""
        return cls(_name(type(error)), message, _frames(error.__traceback__), link)

    def text(self) -> str:
        """The exception in Python's format. Reads the source files."""
        shown = ["Traceback (most recent call last):\n"] if self.frames else []
        for file, line, function in self.frames:
            source = linecache.getline(file, line).strip()
            shown.append(f'  File "{file}", line {line}, in {function}\n')
            shown.append(f"    {source}\n" if source else "")
        return "".join([*shown, f"{self.kind}: {self.message}" if self.message else self.kind])


class Trace(NamedTuple):
    """An exception and all causes, the first cause first."""

    raised: tuple[Raised, ...]

    @classmethod
    def of(cls, error: BaseException, *, messages: bool = True) -> Self:
        """The trace of an exception.

        Args:
            error: the exception.
            messages: whether to keep messages; False for code with an order, since messages may
                repeat the order's data.
        """
        chain: list[Raised] = []
        present: BaseException | None = error
        while present is not None and len(chain) < CHAIN:
            cause, context = present.__cause__, present.__context__
            before = context if cause is None and not present.__suppress_context__ else cause
            link = "" if before is None else _CONTEXT if cause is None else _CAUSE
            chain.append(Raised.of(present, link, messages=messages))
            present = before
        return cls(tuple(reversed(chain)))

    def text(self) -> str:
        """The chain in Python's format, without values. Reads the source files."""
        first, *rest = self.raised
        shown = [first.text()]
        for each in rest:
            shown += ["\n", each.link, each.text()]
        return "".join(shown)


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


def first_line(text: str) -> str:
    """A message's first line."""
    return text.partition("\n")[0]


def _frames(traceback: TracebackType | None) -> Sequence[tuple[str, int, str]]:
    walked = [(f.f_code.co_filename, n, f.f_code.co_qualname) for f, n in walk_tb(traceback)]
    return walked[-FRAMES:]


def _name(kind: type[BaseException]) -> str:
    module = kind.__module__
    return (
        kind.__qualname__ if module in ("builtins", "__main__") else f"{module}.{kind.__qualname__}"
    )


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  (must not replace the exception being logged)
        return "(no message: it cannot be shown)"
