"""A check's finding: one line."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum

from pos_gateway.cli import output
from pos_gateway.settings import Settings


class Severity(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARN = "warn"  # orders are delivered, but something is wrong
    FAIL = "fail"  # orders are not delivered


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A finding, and the remedy if it is wrong."""

    level: Severity
    what: str
    advice: str = ""


_STYLES = {Severity.OK: "green", Severity.WARN: "yellow", Severity.FAIL: "bold red"}

#: A check yields its findings as it makes them.
Check = Callable[[Settings], Iterator[CheckResult]]


def show(finding: CheckResult) -> None:
    """Print it as a line: severity, finding, remedy."""
    level = (f"{finding.level:<4}", _STYLES[finding.level])
    advice = f"  -> {finding.advice}" if finding.advice else ""
    output.line(level, (f"  {finding.what}", ""), (advice, "dim"))


def show_json(finding: CheckResult) -> None:
    """Print it as one line of JSON."""
    output.json_line(asdict(finding))


def ok(what: str) -> CheckResult:
    return CheckResult(Severity.OK, what)


def warn(what: str, advice: str) -> CheckResult:
    return CheckResult(Severity.WARN, what, advice)


def fail(what: str, advice: str) -> CheckResult:
    return CheckResult(Severity.FAIL, what, advice)
