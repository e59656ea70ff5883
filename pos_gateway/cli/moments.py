"""Durations and times on the command line: ``30m``, ``2026-01-31T12:00:00Z``."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
#: More is a typing mistake, and may leave the calendar.
_LONGEST = timedelta(days=36_500)
_LENGTH = re.compile(rf"(\d{{1,6}})([{''.join(_UNITS)}])")
#: How a time begins; among digits alone, any of them would be taken for the separator.
_DATED = re.compile(r"\d{4}-\d\d-\d\d[Tt ]", re.ASCII)
_EXAMPLE = "2026-01-31T12:00:00Z or 2026-01-31T13:00:00+01:00"


class Length(click.ParamType[timedelta]):
    """A duration: a number and s, m, h or d."""

    name = "length"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, timedelta):
            return value
        parts = _LENGTH.fullmatch(str(value))
        if parts is None:
            self.fail(f"{value!r} is no length of time; 90s, 30m, 2h or 7d is one", param, ctx)
        length = timedelta(**{_UNITS[parts[2]]: int(parts[1])})
        if length > _LONGEST:
            self.fail(f"{value!r} is longer than {_LONGEST.days}d", param, ctx)
        return length


class Moment(click.ParamType[datetime]):
    """A time with its offset (RFC 3339)."""

    name = "moment"

    def __init__(self, examples: str = _EXAMPLE) -> None:
        self._examples = examples

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, datetime):
            return value
        try:
            moment = datetime.fromisoformat(str(value)) if _DATED.match(str(value)) else None
        except ValueError:
            moment = None
        if moment is None or moment.tzinfo is None:
            self.fail(f"{value!r} is no time with its offset; {self._examples} is one", param, ctx)
        return moment


class Since(click.ParamType[datetime]):
    """A time with its offset, or how long ago it was."""

    name = "since"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, datetime):
            return value
        if str(value)[:1].isdigit() and str(value)[-1:] in _UNITS:
            return datetime.now(UTC) - Length().convert(value, param, ctx)
        return Moment(f"2h (ago), or {_EXAMPLE}").convert(value, param, ctx)


def new_deadline(command: Command) -> Command:
    """Options for a new deliver_by; ``deadline`` combines them."""
    length = click.option("--for", "length", type=Length(), metavar="LENGTH", help="The same, from now on: 30m.")  # fmt: skip
    moment = click.option(
        "--deliver-by",
        "moment",
        type=Moment(),
        metavar="TIME",
        help="Until when to try; after that it is worthless.",
    )
    return moment(length(command))


def deadline(moment: datetime | None, length: timedelta | None) -> datetime | None:
    """The time that either option gave; None if neither did."""
    if moment is not None and length is not None:
        raise click.UsageError("--deliver-by and --for say the same; give one of them")
    now = datetime.now(UTC)
    given = now + length if length is not None else moment
    if given is not None and given <= now:
        raise click.UsageError(f"--deliver-by: {given.isoformat()} is not in the future")
    return given


def age(at: float | None, now: float) -> str | None:
    """The time since then, in its largest unit."""
    if at is None:
        return None
    seconds = max(0, int(now - at))
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
