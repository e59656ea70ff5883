"""The writer's thread: whoever says something never waits for it, and nothing is lost unsaid."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pos_gateway.telemetry import writer as subject
from pos_gateway.telemetry.line import LEVELS, Line
from pos_gateway.telemetry.writer import Writer
from tests.telemetry.streams import PATIENCE, Gate, Refusing


def say(writer: Writer, *numbers: int, level: str = "info") -> None:
    for number in numbers:
        writer.put(Line(0.0, LEVELS.index(level), {"event": "it.happened", "orders": number}))


def said(lines: list[dict[str, Any]]) -> list[int]:
    return [line["orders"] for line in lines if line["event"] == "it.happened"]


@contextmanager
def standing_still(lines: int) -> Iterator[tuple[Writer, Gate]]:
    """A writer whose thread is in the midst of writing line 0, and gets no further."""
    gate = Gate()
    writer = Writer(gate, lines)
    say(writer, 0)
    assert gate.reached.wait(PATIENCE)
    yield writer, gate


def test_lines_are_written_in_the_order_in_which_they_are_said() -> None:
    gate = Gate()
    gate.open()
    writer = Writer(gate)
    say(writer, *range(1000))
    assert writer.flush(PATIENCE)
    assert said(gate.lines) == list(range(1000))
    assert not any(writer.dropped.values())


def test_while_the_stream_stands_still_the_newest_are_kept_and_the_others_counted() -> None:
    with standing_still(lines=10) as (writer, gate):
        say(writer, *range(1, 31))
        assert writer.dropped["info"] == 20
        gate.open()
        assert writer.flush(PATIENCE)
    assert said(gate.lines) == [0, *range(21, 31)]
    [note] = [line for line in gate.lines if line["event"] == "log.dropped"]
    assert (note["records"], note["dropped_info"], note["level"]) == (20, 20, "warning")
    assert gate.lines[1] == note  # where they are missing
    say(writer, 31)
    assert writer.flush(PATIENCE)
    assert said(gate.lines)[-1] == 31
    assert len(gate.lines) == 13  # it is said once


def test_errors_are_kept_while_there_is_anything_else_to_drop() -> None:
    with standing_still(lines=10) as (writer, gate):
        say(writer, 1, 2, 3, level="error")
        say(writer, *range(4, 40))
        say(writer, 40, 41, level="warning")
        say(writer, 42, 43, level="debug")
        gate.open()
        assert writer.flush(PATIENCE)
    assert said(gate.lines) == [0, 1, 2, 3, 35, 36, 37, 38, 39, 40, 41]
    assert writer.dropped == {"debug": 2, "info": 31, "warning": 0, "error": 0, "critical": 0}
    [note] = [line for line in gate.lines if line["event"] == "log.dropped"]
    assert (note["dropped_info"], note["dropped_debug"]) == (31, 2)
    assert "dropped_error" not in note


def test_errors_that_are_dropped_are_told_of_as_an_error() -> None:
    with standing_still(lines=2) as (writer, gate):
        say(writer, 1, 2, 3, level="error")
        gate.open()
        assert writer.flush(PATIENCE)
    [note] = [line for line in gate.lines if line["event"] == "log.dropped"]
    assert (note["level"], note["dropped_error"]) == ("error", 1)


def test_lines_that_the_stream_refuses_are_counted_and_told_of_when_it_takes_some_again() -> None:
    stream = Refusing(times=1)
    writer = Writer(stream)
    say(writer, 1, 2, 3)
    assert writer.flush(PATIENCE)
    assert stream.lines == []
    assert writer.dropped["info"] == 3
    say(writer, 4)
    assert writer.flush(PATIENCE)
    assert [line["event"] for line in stream.lines] == ["log.dropped", "it.happened"]
    assert stream.lines[0]["records"] == 3


def test_a_note_that_the_stream_refuses_is_made_again() -> None:
    stream = Refusing(times=3)  # the first line, then the note and the second line
    writer = Writer(stream)
    for number in range(3):
        say(writer, number)
        assert writer.flush(PATIENCE)
    assert [line.get("records") for line in stream.lines] == [2, None]
    assert said(stream.lines) == [2]


def test_whoever_waits_for_the_end_waits_so_long_and_no_longer() -> None:
    with standing_still(lines=10) as (writer, gate):
        say(writer, 1)
        assert not writer.flush(0.01)
        gate.open()
        assert writer.flush(PATIENCE)
    assert said(gate.lines) == [0, 1]


def test_a_thread_that_rests_is_woken_by_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """However soon after it began to rest: whoever comes in between is seen."""
    monkeypatch.setattr(subject, "GATHER", 0.0)
    written = threading.Semaphore(0)

    class Counting:
        def write(self, data: bytes) -> None:
            written.release()

    writer = Writer(Counting())
    for number in range(3000):
        say(writer, number)
        assert written.acquire(timeout=PATIENCE), number


def test_there_is_nothing_to_wait_for_where_nothing_was_said() -> None:
    gate = Gate()
    assert Writer(gate).flush(PATIENCE)
    assert not gate.reached.is_set()


def test_a_line_that_cannot_be_made_is_told_of_and_those_after_it_are_written() -> None:
    gate = Gate()
    gate.open()
    writer = Writer(gate)
    writer.put(Line(0.0, 1, {"event": "it.happened", "orders": object()}))  # type: ignore[dict-item]
    say(writer, 1)
    assert writer.flush(PATIENCE)
    assert [line["event"] for line in gate.lines] == ["log.unreadable", "it.happened"]
    assert gate.lines[0]["error"] == "TypeError"


def test_a_pipe_is_given_no_more_at_once_than_it_takes_whole() -> None:
    """Several processes share one, and their lines are not to be mixed up."""
    pieces: list[bytes] = []

    class Noting(Gate):
        def write(self, data: bytes) -> None:
            pieces.append(data)

    writer = Writer(Noting())
    for number in range(100):
        writer.put(Line(0.0, 1, {"event": "it.happened", "orders": number, "error": "e" * 700}))
    assert writer.flush(PATIENCE)
    assert max(map(len, pieces)) <= 4096
    assert len(pieces) < 50
    assert all(piece.endswith(b"\n") for piece in pieces)
