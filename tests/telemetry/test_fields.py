"""Every log call in the gateway's source: its event and fields are known and documented."""

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from pos_gateway.telemetry.fields import FIELDS
from pos_gateway.telemetry.line import LEVELS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "logging.md").read_text()
_METHODS = frozenset({*LEVELS, "exception", "log"})
#: Arguments of a log call that are not fields.
_TO_STRUCTLOG = frozenset({"exc_info", "trace"})


@cache
def log_calls() -> Sequence[tuple[str, ast.Call]]:
    """All calls of a logger, and where they are."""
    return [*_log_calls()]


def _log_calls() -> Iterator[tuple[str, ast.Call]]:
    for path in sorted((ROOT / "pos_gateway").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(value=logger, attr=method)) if (
                    method in _METHODS
                    and re.fullmatch(r"log|structlog\.get_logger\(.*\)", ast.unparse(logger))
                ):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def events() -> set[str]:
    """The names of all events in the source."""
    named = re.compile(r'"([a-z]+\.[a-z_]+)"')
    said = [ast.unparse(call) for _, call in log_calls()]
    for path in (ROOT / "pos_gateway").rglob("*.py"):  # some are logged through another function
        said += re.findall(r"self\._(?:say|trouble)\(.*", path.read_text())
    found = {name for each in said for name in named.findall(each.replace("'", '"'))}
    found |= {f"breaker.{state}" for state in ("opened", "half_opened", "closed")}
    return found | {"log.dropped", "log.unreadable", "library.logged"}


def test_log_calls_are_found() -> None:
    assert len(log_calls()) > 30


def test_every_field_of_every_line_is_allowed() -> None:
    unknown = [
        f"{where}: {keyword.arg or '**'}"
        for where, call in log_calls()
        for keyword in call.keywords
        if keyword.arg not in FIELDS and keyword.arg not in _TO_STRUCTLOG
    ]
    assert unknown == []


def test_event_names_are_constants() -> None:
    """A value in an event's name would be logged unchecked."""
    for where, call in log_calls():
        words = call.args[1:] if call.func.attr == "log" else call.args  # type: ignore[attr-defined]
        assert len(words) == 1, where
        for node in ast.walk(words[0]):
            assert not isinstance(node, ast.BinOp), where
        if isinstance(words[0], ast.JoinedStr):
            assert ast.unparse(words[0]).startswith("f'breaker."), where


def test_every_event_is_documented() -> None:
    assert sorted(name for name in events() if f"`{name}`" not in PAGE) == []


def test_exactly_the_fields_that_exist_are_documented() -> None:
    documented = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|$", PAGE, re.MULTILINE))
    assert documented == {name: what for name, what in FIELDS.items() if what}
