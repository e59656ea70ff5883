"""A thread that dies takes the worker with it."""

import os
import signal
import threading

import pytest

from pos_gateway.worker.crash import watch_threads


@pytest.mark.parametrize("error", [RuntimeError("a mistake of ours"), SystemExit(0)])
def test_a_thread_that_dies_of_an_exception_ends_the_worker_as_sigterm_does(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    sent: list[tuple[int, signal.Signals]] = []
    monkeypatch.setattr(os, "kill", lambda process, number: sent.append((process, number)))
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)  # put back afterwards
    watch_threads()

    def die() -> None:
        raise error

    thread = threading.Thread(target=die)
    thread.start()
    thread.join()
    ended = not isinstance(error, SystemExit)  # one that exits is done, not dead
    assert sent == [(os.getpid(), signal.SIGTERM)] * ended
