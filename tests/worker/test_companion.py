"""The events process beside a synchronous worker: started, restarted, stopped."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pos_gateway.worker import events_process as companion
from pos_gateway.worker.events_process import EventsProcess
from tests.ledger.lab import SOON

#: Ends as ``events run --until-eof`` does.
UNTIL_EOF = "import sys; sys.stdin.read()"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """The processes that were started; all are stopped afterwards."""
    processes: list[subprocess.Popen[bytes]] = []

    def start() -> "subprocess.Popen[bytes]":
        processes.append(subprocess.Popen([sys.executable, "-c", UNTIL_EOF], stdin=subprocess.PIPE))
        return processes[-1]

    monkeypatch.setattr(companion, "_started", start)
    monkeypatch.setattr(companion, "RESTART_AFTER", 0.01)
    yield processes
    for each in processes:
        each.kill()
        each.wait()


def test_starting_twice_runs_one_process_and_stopping_ends_it(
    started: list["subprocess.Popen[bytes]"],
) -> None:
    one = EventsProcess()
    one.start()
    one.start()
    one.stop()
    one.stop()
    assert [each.returncode for each in started] == [0]


def test_a_process_that_ended_by_itself_is_restarted(
    started: list["subprocess.Popen[bytes]"], monkeypatch: pytest.MonkeyPatch
) -> None:
    again = companion.threading.Event()
    start = companion._started

    def start_and_say() -> "subprocess.Popen[bytes]":
        try:
            return start()
        finally:
            if len(started) > 1:
                again.set()

    monkeypatch.setattr(companion, "_started", start_and_say)
    one = EventsProcess()
    one.start()
    started[0].kill()
    assert again.wait(SOON)
    assert started[1].poll() is None
    one.stop()


def test_a_forked_child_of_the_worker_does_not_stop_it(
    started: list["subprocess.Popen[bytes]"],
) -> None:
    one = EventsProcess()
    one.start()
    child = os.fork()
    if not child:
        one.stop()
        os._exit(0)
    os.waitpid(child, 0)
    one.stop()
    assert [each.returncode for each in started] == [0]  # neither killed nor restarted


def test_a_process_that_cannot_be_started_is_started_later(
    started: list["subprocess.Popen[bytes]"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No memory for a fork: that is when such a process is killed, too."""
    again = companion.threading.Event()
    start, refusals = companion._started, [BlockingIOError(11, "try again"), MemoryError()]

    def start_if_there_is_room() -> "subprocess.Popen[bytes]":
        if started and refusals:
            raise refusals.pop()
        try:
            return start()
        finally:
            if len(started) > 1:
                again.set()

    monkeypatch.setattr(companion, "_started", start_if_there_is_room)
    one = EventsProcess()
    one.start()
    started[0].kill()
    assert again.wait(SOON)
    one.stop()
