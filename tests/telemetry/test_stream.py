"""Where log lines go: full pipes, full disks, rotated files."""

import os
import threading
from copy import copy
from pathlib import Path

import pytest

from pos_gateway.telemetry import stream as subject
from pos_gateway.telemetry.stream import Descriptor, LogFile
from tests.telemetry.streams import PATIENCE, Pipe


def test_a_full_nonblocking_pipe_is_waited_for() -> None:
    pipe = Pipe()
    pipe.fill()
    os.set_blocking(pipe.writer, False)
    stream = Descriptor(pipe.writer)
    waits = threading.Event()
    wait = stream._wait

    def note() -> None:
        waits.set()
        wait()

    stream._wait = note  # type: ignore[method-assign]
    writer = threading.Thread(target=stream.write, args=(b'{"orders": 1}\n',))
    writer.start()
    assert waits.wait(PATIENCE)
    pipe.read_until("orders")
    writer.join()
    pipe.give_away()
    assert pipe.read_all() == [{"orders": 1}]


def test_partial_writes_are_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces: list[bytes] = []

    def write(_: int, data: memoryview) -> int:
        pieces.append(bytes(data[:3]))
        return len(pieces[-1])

    monkeypatch.setattr(subject, "native", lambda *_: write)
    Descriptor(1).write(b"abcdefgh\n")
    assert pieces == [b"abc", b"def", b"gh\n"]


def test_a_refused_line_leaves_no_empty_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written, answers = bytearray(), [OSError(), None]

    def write(_: int, data: memoryview) -> int:
        if answers and (answer := answers.pop(0)) is not None:
            raise answer
        written.extend(data)
        return len(data)

    monkeypatch.setattr(subject, "native", lambda *_: write)
    stream = Descriptor(1)
    with pytest.raises(OSError):
        stream.write(b"lost\n")
    stream.write(b"kept\n")
    assert written == b"kept\n"


def test_a_child_forked_during_a_write_starts_with_its_own_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rest of the parent's line is written by the parent."""
    written: list[bytes] = []
    forked: list[Descriptor] = []

    def write(_: int, data: memoryview) -> int:
        written.append(bytes(data))
        if not forked:
            forked.append(copy(stream))
        return len(data)

    monkeypatch.setattr(subject, "native", lambda *_: write)
    stream = Descriptor(1)
    stream.write(b"parent\n")
    forked[0].write(b"child\n")
    assert written == [b"parent\n", b"child\n"]


def test_a_truncated_line_is_not_joined_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    written = bytearray()
    is_full = False

    def write(_: int, data: memoryview) -> int:
        if is_full and written:
            raise OSError
        piece = data[:4] if is_full else data
        written.extend(piece)
        return len(piece)

    monkeypatch.setattr(subject, "native", lambda *_: write)
    stream = Descriptor(1)
    is_full = True
    with pytest.raises(OSError):
        stream.write(b"first line\n")
    is_full = False
    stream.write(b"second\n")
    stream.write(b"third\n")
    assert bytes(written) == b"firs\nsecond\nthird\n"


def test_a_rotated_file_is_reopened(tmp_path: Path) -> None:
    path = tmp_path / "worker.log"
    file = LogFile(str(path))
    file.write(b"one\n")
    path.rename(tmp_path / "worker.log.1")
    file.write(b"two\n")
    path.unlink()
    file.write(b"three\n")
    assert (tmp_path / "worker.log.1").read_bytes() == b"one\n"
    assert path.read_bytes() == b"three\n"


def test_lines_are_appended_to_an_existing_file(tmp_path: Path) -> None:
    path = tmp_path / "worker.log"
    path.write_bytes(b"before\n")
    LogFile(str(path)).write(b"after\n")
    assert path.read_bytes() == b"before\nafter\n"


def test_a_file_that_cannot_be_opened_refuses(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        LogFile(str(tmp_path / "no-folder" / "worker.log")).write(b"line\n")
