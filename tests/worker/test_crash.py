"""A thread that dies ends the worker."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pos_gateway.worker import crash
from pos_gateway.worker.crash import watch_threads
from tests.worker.lab import Lab


@pytest.mark.parametrize("error", [RuntimeError("a mistake of ours"), SystemExit(0)])
def test_an_exception_in_a_thread_stops_the_worker_as_sigterm_does(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    sent: list[tuple[int, signal.Signals]] = []
    monkeypatch.setattr(os, "kill", lambda process, number: sent.append((process, number)))
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)  # restored afterwards
    monkeypatch.setattr(crash, "_errors", [])
    watch_threads()

    def die() -> None:
        raise error

    thread = threading.Thread(target=die)
    thread.start()
    thread.join()
    ended = not isinstance(error, SystemExit)  # a thread that exits has ended, not crashed
    assert sent == [(os.getpid(), signal.SIGTERM)] * ended
    assert crash.exit_code() == ended * os.EX_SOFTWARE


#: A module for Celery's imports, with a mistake.
MISTAKEN = """
import threading
from celery import signals

def fail():
    raise RuntimeError("a mistake of ours")

@signals.worker_ready.connect
def ready(**_):
    threading.Thread(target=fail).start()
"""


def test_a_worker_that_has_crashed_ends_with_a_failure(lab: Lab, tmp_path: Path) -> None:
    """Compose's ``restart: on-failure`` would leave a worker away that ended with 0."""
    (tmp_path / "mistaken.py").write_text(MISTAKEN)
    with lab.worker("-I", "mistaken", python_path=str(tmp_path)) as worker:
        assert worker.wait() == os.EX_SOFTWARE
    assert "worker.crashed" in worker.log


#: A synchronous worker's process that can start no thread: a limit of processes, say.
THREADLESS = """
from celery import signals
from pos_gateway import celery
from pos_gateway.attempt.gateway import Gateway
from pos_gateway.telemetry import log

def fail(_):
    raise RuntimeError("can't start new thread")

log.configure(20)
Gateway.start = fail
signals.worker_process_init.send(sender=None)
print("it takes orders")
"""


def test_a_process_of_a_synchronous_worker_that_cannot_start_takes_no_orders(
    tmp_path: Path,
) -> None:
    """Celery logs exceptions of its signals, and goes on."""
    environment = os.environ | {"POS_GATEWAY_BROKER_URL": "memory://"}
    command = [sys.executable, "-c", THREADLESS]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert "process.crashed" in done.stderr
