"""What a check found: one line."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from pos_gateway.cli import output
from pos_gateway.settings import Settings


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"  # orders are delivered, and something is not as it should be
    FAIL = "fail"  # orders are not delivered


@dataclass(frozen=True, slots=True)
class Finding:
    """What is so, and what would do if it is not right."""

    level: Level
    what: str
    advice: str = ""


_STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}

#: A check gives its findings one after the other, as it learns of them.
Check = Callable[[Settings], Iterator[Finding]]


def show(finding: Finding) -> None:
    """Print it as a line: how bad it is, what is so, and what would do."""
    level = (f"{finding.level:<4}", _STYLES[finding.level])
    advice = f"  -> {finding.advice}" if finding.advice else ""
    output.line(level, (f"  {finding.what}", ""), (advice, "dim"))


def ok(what: str) -> Finding:
    """It is right."""
    return Finding(Level.OK, what)


def warn(what: str, advice: str) -> Finding:
    """It works, but."""
    return Finding(Level.WARN, what, advice)


def fail(what: str, advice: str) -> Finding:
    """It does not work."""
    return Finding(Level.FAIL, what, advice)
