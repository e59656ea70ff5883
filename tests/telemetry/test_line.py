"""What a log line contains, and what it does not."""

import json
from enum import StrEnum
from math import inf
from typing import Any

import pytest

from pos_gateway.telemetry.fields import HIDDEN
from pos_gateway.telemetry.line import CHAIN, FRAMES, LONGEST, MESSAGE, Line, Trace, kept


def written(trace: Trace | None = None, /, **fields: Any) -> dict[str, Any]:
    line: dict[str, Any] = json.loads(Line(0.0, 1, kept(fields), trace).rendered())
    return line


class Word(StrEnum):
    YES = "yes"


def test_a_line_has_time_level_event_and_then_its_fields() -> None:
    line = Line(1.5, 2, {"orders": 3, "event": "it.happened", "error": 'a "word"\u2028'})
    assert line.rendered() == (
        b'{"timestamp": "1970-01-01T00:00:01.500000Z", "level": "warning", "event": "it.happened",'
        b' "orders": 3, "error": "a \\"word\\"\\u2028"}\n'
    )


def test_unknown_fields_are_not_shown() -> None:
    line = written(event="it.happened", phone="0151 1", customer="Mrs. Smith", orders=1)
    assert (line["phone"], line["customer"], line["orders"]) == (HIDDEN, HIDDEN, 1)


def test_no_field_overrides_time_level_or_event() -> None:
    line = written(event="it.happened", level="debug", timestamp="never")
    assert (line["level"], line["timestamp"][:4]) == ("info", "1970")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("text", "text"),
        ("x" * (LONGEST + 1), "x" * LONGEST),
        (Word.YES, "yes"),
        (True, True),
        (1.25, 1.25),
        (None, None),
        (inf, "inf"),
        ({"name": "Mrs. Smith"}, "[dict]"),
        (ValueError("Mrs. Smith"), "[ValueError]"),
    ],
)
def test_values_are_short_texts_and_numbers(value: Any, shown: Any) -> None:
    assert written(error=value)["error"] == shown


def test_a_line_is_a_snapshot_of_its_fields() -> None:
    items = ["a"]
    fields = kept({"event": "it.happened", "orders": items})
    items.append("b")
    assert fields["orders"] == "[list]"


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except type(error) as caught:
        return caught


def test_an_exception_is_shown_with_its_causes_and_without_values() -> None:
    secret = "hunter2"
    try:
        try:
            len(secret) / 0
        except ZeroDivisionError as error:
            raise ValueError("no such thing") from error
    except ValueError as error:
        trace = Trace.of(error)
    text = written(trace, event="it.failed")["exception"]
    cause, _, effect = text.partition("The above exception was the direct cause")
    assert "len(secret) / 0" in cause
    assert cause.strip().endswith("ZeroDivisionError: division by zero")
    assert f'File "{__file__}", line ' in effect
    assert effect.endswith("ValueError: no such thing")
    assert secret not in text.replace('secret = "hunter2"', "")


def test_an_exception_raised_while_handling_another_is_shown_as_such() -> None:
    try:
        try:
            raise KeyError("first")
        except KeyError:
            raise OSError("second")  # noqa: B904
    except OSError as error:
        text = Trace.of(error).text()
    assert "During handling of the above exception" in text


def test_an_exception_raised_from_none_hides_its_context() -> None:
    try:
        try:
            raise KeyError("first")
        except KeyError:
            raise OSError("second") from None
    except OSError as error:
        assert "first" not in Trace.of(error).text()


def test_values_quoted_by_a_database_or_pydantic_are_not_shown() -> None:
    error = raised(ValueError("it was not taken\nDETAIL:  Failing row contains (Mrs. Smith)"))
    line = written(Trace.of(error), event="it.failed", error=str(error))
    assert line["error"] == "it was not taken"
    assert line["exception"].endswith("ValueError: it was not taken")


def test_what_was_raised_by_operator_has_an_order_is_shown_without_its_message() -> None:
    try:
        try:
            int("0151 1")
        except ValueError as error:
            raise KeyError("Mrs. Smith") from error
    except KeyError as error:
        text = Trace.of(error, messages=False).text()
    assert 'int("0151 1")' in text
    assert "ValueError\n" in text
    assert text.endswith("KeyError")


def test_a_shown_exception_is_bounded() -> None:
    def deep(left: int) -> None:
        if left:
            deep(left - 1)
        raise ValueError("m" * 10_000)

    error: BaseException = raised(KeyError())
    try:
        deep(100)
    except ValueError as caught:
        error = caught
    for number in range(20):
        after = raised(OSError(number))
        after.__cause__ = error
        error = after
    trace = Trace.of(error)
    assert len(trace.raised) == CHAIN
    assert trace.raised[-1].message == "19"
    chained = Trace.of(error.__cause__ or error)
    assert chained.raised[-1].message == "18"
    while error.__cause__ is not None:
        error = error.__cause__
    [only] = Trace.of(error).raised
    assert (len(only.frames), len(only.message)) == (FRAMES, MESSAGE)
    assert only.frames[-1][-1].endswith("deep")  # the function


def test_a_cycle_of_causes_is_bounded() -> None:
    first, second = raised(KeyError("a")), raised(OSError("b"))
    first.__context__, second.__context__ = second, first
    assert len(Trace.of(first).raised) <= CHAIN


def test_an_exception_that_cannot_be_formatted_raises_no_second_one() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert "cannot be shown" in Trace.of(raised(Odd())).text()
