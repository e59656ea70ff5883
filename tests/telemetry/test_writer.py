"""The log writer's thread: a log call never waits for it, and every dropped line is counted."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pos_gateway.telemetry import writer as subject
from pos_gateway.telemetry.line import LEVELS, Line
from pos_gateway.telemetry.writer import LogWriter
from tests.telemetry.streams import PATIENCE, Gate, Refusing

INFO = LEVELS.index("info")


def say(writer: LogWriter, *numbers: int, level: str = "info") -> None:
    for number in numbers:
        writer.put(Line(0.0, LEVELS.index(level), {"event": "it.happened", "orders": number}))


def said(lines: list[dict[str, Any]]) -> list[int]:
    return [line["orders"] for line in lines if line["event"] == "it.happened"]


@contextmanager
def standing_still(lines: int) -> Iterator[tuple[LogWriter, Gate]]:
    """A writer whose thread is blocked while it writes line 0."""
    gate = Gate()
    writer = LogWriter(gate.write, lines)
    say(writer, 0)
    assert gate.reached.wait(PATIENCE)
    yield writer, gate


def test_lines_are_written_in_order() -> None:
    gate = Gate()
    gate.open()
    writer = LogWriter(gate.write)
    say(writer, *range(1000))
    assert writer.flush(PATIENCE)
    assert said(gate.lines) == list(range(1000))
    assert not any(writer.ring.dropped)


def test_while_the_stream_blocks_the_newest_lines_are_kept_and_the_others_counted() -> None:
    with standing_still(lines=10) as (writer, gate):
        say(writer, *range(1, 31))
        assert writer.ring.dropped[INFO] == 20
        gate.open()
        assert writer.flush(PATIENCE)
    assert said(gate.lines) == [0, *range(21, 31)]
    [note] = [line for line in gate.lines if line["event"] == "log.dropped"]
    assert (note["records"], note["dropped_info"], note["level"]) == (20, 20, "warning")
    assert gate.lines[1] == note  # where the lines are missing
    say(writer, 31)
    assert writer.flush(PATIENCE)
    assert said(gate.lines)[-1] == 31
    assert len(gate.lines) == 13  # it is logged once


def test_errors_are_dropped_last() -> None:
    with standing_still(lines=10) as (writer, gate):
        say(writer, 1, 2, 3, level="error")
        say(writer, *range(4, 40))
        say(writer, 40, 41, level="warning")
        say(writer, 42, 43, level="debug")
        gate.open()
        assert writer.flush(PATIENCE)
    assert said(gate.lines) == [0, 1, 2, 3, 35, 36, 37, 38, 39, 40, 41]
    assert writer.ring.dropped == [2, 31, 0, 0, 0]
    [note] = [line for line in gate.lines if line["event"] == "log.dropped"]
    assert (note["dropped_info"], note["dropped_debug"]) == (31, 2)
    assert "dropped_error" not in note


def test_dropped_errors_are_reported_as_an_error() -> None:
    with standing_still(lines=2) as (writer, gate):
        say(writer, 1, 2, 3, level="error")
        gate.open()
        assert writer.flush(PATIENCE)
    [note] = [line for line in gate.lines if line["event"] == "log.dropped"]
    assert (note["level"], note["dropped_error"]) == ("error", 1)


def test_refused_lines_are_counted_and_reported_once_the_stream_takes_lines() -> None:
    stream = Refusing(times=100)  # whether the lines are written together or one by one
    writer = LogWriter(stream.write)
    say(writer, 1, 2, 3)
    assert writer.flush(PATIENCE)
    assert stream.lines == []
    assert writer.ring.dropped[INFO] == 3
    stream.left = 0
    say(writer, 4)
    assert writer.flush(PATIENCE)
    assert [line["event"] for line in stream.lines] == ["log.dropped", "it.happened"]
    assert stream.lines[0]["records"] == 3


def test_a_refused_report_is_repeated() -> None:
    stream = Refusing(times=3)  # the first line, then the report and the second line
    writer = LogWriter(stream.write)
    for number in range(3):
        say(writer, number)
        assert writer.flush(PATIENCE)
    assert [line.get("records") for line in stream.lines] == [2, None]
    assert said(stream.lines) == [2]


def test_a_flush_waits_no_longer_than_its_timeout() -> None:
    with standing_still(lines=10) as (writer, gate):
        say(writer, 1)
        assert not writer.flush(0.01)
        gate.open()
        assert writer.flush(PATIENCE)
    assert said(gate.lines) == [0, 1]


def test_a_line_wakes_the_idle_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it is put just as the thread becomes idle."""
    monkeypatch.setattr(subject, "GATHER", 0.0)
    written = threading.Semaphore(0)

    class Counting:
        def write(self, data: bytes) -> None:
            written.release()

    writer = LogWriter(Counting().write)
    for number in range(3000):
        say(writer, number)
        assert written.acquire(timeout=PATIENCE), number


def test_a_flush_without_lines_returns_at_once() -> None:
    gate = Gate()
    assert LogWriter(gate.write).flush(PATIENCE)
    assert not gate.reached.is_set()


def test_a_line_that_cannot_be_formatted_is_reported_and_later_ones_are_written() -> None:
    gate = Gate()
    gate.open()
    writer = LogWriter(gate.write)
    writer.put(Line(0.0, 1, {"event": "it.happened", "orders": object()}))  # type: ignore[dict-item]
    say(writer, 1)
    assert writer.flush(PATIENCE)
    assert [line["event"] for line in gate.lines] == ["log.unreadable", "it.happened"]
    assert gate.lines[0]["error"] == "TypeError"


def test_a_write_is_no_larger_than_a_pipe_takes_atomically() -> None:
    """Several processes share a pipe, and their lines must not be interleaved."""
    pieces: list[bytes] = []

    class Noting(Gate):
        def write(self, data: bytes) -> None:
            pieces.append(data)

    writer = LogWriter(Noting().write)
    for number in range(100):
        writer.put(Line(0.0, 1, {"event": "it.happened", "orders": number, "error": "e" * 700}))
    assert writer.flush(PATIENCE)
    assert max(map(len, pieces)) <= 4096
    assert len(pieces) < 50
    assert all(piece.endswith(b"\n") for piece in pieces)
