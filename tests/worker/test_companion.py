"""What runs beside a synchronous worker: kept, and let go of."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pos_gateway.worker import events_process as companion
from pos_gateway.worker.events_process import Companion
from tests.ledger.lab import SOON

#: Ends as ``events run --until-eof`` does.
UNTIL_EOF = "import sys; sys.stdin.read()"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """The processes that were started, none of which is left."""
    processes: list[subprocess.Popen[bytes]] = []

    def start() -> "subprocess.Popen[bytes]":
        processes.append(subprocess.Popen([sys.executable, "-c", UNTIL_EOF], stdin=subprocess.PIPE))
        return processes[-1]

    monkeypatch.setattr(companion, "_started", start)
    monkeypatch.setattr(companion, "AGAIN_AFTER", 0.01)
    yield processes
    for each in processes:
        each.kill()
        each.wait()


def test_it_is_one_however_often_it_is_started_and_ends_when_it_is_told(
    started: list["subprocess.Popen[bytes]"],
) -> None:
    one = Companion()
    one.start()
    one.start()
    one.stop()
    one.stop()
    assert [each.returncode for each in started] == [0]


def test_another_is_started_for_one_that_has_ended_by_itself(
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
    one = Companion()
    one.start()
    started[0].kill()
    assert again.wait(SOON)
    assert started[1].poll() is None
    one.stop()


def test_a_forked_child_of_the_worker_does_not_end_it(
    started: list["subprocess.Popen[bytes]"],
) -> None:
    one = Companion()
    one.start()
    child = os.fork()
    if not child:
        one.stop()
        os._exit(0)
    os.waitpid(child, 0)
    one.stop()
    assert [each.returncode for each in started] == [0]  # it was not killed, nor another started
