"""A thread that dies ends the worker."""

import os
import signal
import threading

import pytest

from pos_gateway.worker.crash import watch_threads


@pytest.mark.parametrize("error", [RuntimeError("a mistake of ours"), SystemExit(0)])
def test_an_exception_in_a_thread_stops_the_worker_as_sigterm_does(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    sent: list[tuple[int, signal.Signals]] = []
    monkeypatch.setattr(os, "kill", lambda process, number: sent.append((process, number)))
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)  # restored afterwards
    watch_threads()

    def die() -> None:
        raise error

    thread = threading.Thread(target=die)
    thread.start()
    thread.join()
    ended = not isinstance(error, SystemExit)  # a thread that exits has ended, not crashed
    assert sent == [(os.getpid(), signal.SIGTERM)] * ended
