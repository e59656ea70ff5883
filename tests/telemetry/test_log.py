"""Logs as programs write them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.telemetry import preloaded
from tests.telemetry.streams import PATIENCE, Pipe

ROOT = Path(__file__).parents[2]
CONFIGURED = """
import logging, os, signal, sys, threading
import structlog
from pos_gateway.runtime.green import native
from pos_gateway.telemetry import log
log.configure(logging.INFO, file=sys.argv[1] if sys.argv[1:] else None)
logger = structlog.get_logger()
"""
PATCHED = "from gevent import monkey; monkey.patch_all()\nimport gevent\n" + CONFIGURED
#: With native threads, and with a worker's green threads.
KINDS = pytest.mark.parametrize("begin", [CONFIGURED, PATCHED], ids=["plain", "green"])


def run(program: str, *arguments: str, status: int = 0) -> list[dict[str, Any]]:
    """The lines of a program that ends with this status."""
    green = program.startswith(PATCHED)
    done = preloaded.run(program, arguments, green=green, timeout=PATIENCE)
    assert done.returncode == status, done.stderr
    return [json.loads(line) for line in done.stderr.splitlines()]


def events(lines: list[dict[str, Any]]) -> list[str]:
    return [line["event"] for line in lines]


@KINDS
def test_an_exception_is_one_line_with_its_place_and_no_values(begin: str) -> None:
    [said] = run(
        begin
        + """
secret = "hunter2"
try:
    len(secret) / 0
except ZeroDivisionError:
    logger.exception("it.failed", order_id="o-1")
"""
    )
    assert (said["event"], said["level"], said["order_id"]) == ("it.failed", "error", "o-1")
    assert 'File "<string>", line ' in said["exception"]
    assert said["exception"].endswith("in <module>\nZeroDivisionError: division by zero")
    assert "hunter2" not in json.dumps(said)


@KINDS
def test_a_program_writes_every_line_before_it_ends(begin: str) -> None:
    lines = run(begin + "for number in range(3000): logger.info('it.happened', orders=number)")
    assert [line["orders"] for line in lines] == list(range(3000))


@KINDS
def test_a_program_that_ends_by_an_exception_writes_every_line_and_logs_it(
    begin: str,
) -> None:
    lines = run(
        begin + "log.report_crashes()\nlogger.info('it.happened')\nraise KeyError('oh')", status=1
    )
    assert events(lines) == ["it.happened", "process.crashed"]
    assert lines[1]["level"] == "critical"
    assert lines[1]["exception"].endswith("KeyError: 'oh'")


@KINDS
def test_a_program_that_calls_os_exit_has_written_what_it_flushed(begin: str) -> None:
    lines = run(begin + "logger.info('it.happened')\nassert log.flush()\nos._exit(3)", status=3)
    assert events(lines) == ["it.happened"]


@KINDS
def test_pythons_loggers_write_to_the_same_log(begin: str) -> None:
    library, odd, unspeakable, warning = run(
        begin
        + """
logging.getLogger("kombu.mixins").debug("too quiet")
logging.getLogger("kombu.mixins").warning("%d of %s", 2, ["a"], exc_info=ValueError("b"))
logging.getLogger("odd").error("%d", "no number")
class Unspeakable:
    def __str__(self): raise ZeroDivisionError
logging.getLogger("odd").error(Unspeakable())
logging.captureWarnings(True)
import warnings; warnings.warn("old")
"""
    )
    assert (library["event"], library["level"]) == ("library.logged", "warning")
    assert (library["logger"], library["message"]) == ("kombu.mixins", "2 of ['a']")
    assert library["exception"] == "ValueError: b"
    assert (odd["level"], odd["message"]) == ("error", "%d")
    assert unspeakable["message"] == "[Unspeakable]"
    assert (warning["logger"], "old" in warning["message"]) == ("py.warnings", True)


def test_libraries_lines_take_no_lock_on_any_python() -> None:
    [line] = run(
        CONFIGURED
        + """
def handle(self, record):  # as Python 3.13 has it
    with self.lock:
        self.emit(record)
logging.Handler.handle = handle
logging.getLogger("kombu").warning("said")
"""
    )
    assert line["message"] == "said"


@KINDS
def test_libraries_debug_lines_are_dropped(begin: str) -> None:
    """Celery repeats messages there, with customers' names in them."""
    lines = run(
        begin
        + """
log.configure(logging.DEBUG)
logging.getLogger("celery.pool").debug("TaskPool: Apply ... Mrs. Smith")
logger.debug("it.happened")
"""
    )
    assert events(lines) == ["it.happened"]


@KINDS
def test_the_log_is_written_to_a_file_if_one_is_named(begin: str, tmp_path: Path) -> None:
    path = tmp_path / "worker.log"
    assert run(begin + "logger.info('it.happened')", str(path)) == []
    assert json.loads(path.read_text())["event"] == "it.happened"


@KINDS
def test_a_forked_child_writes_its_own_lines_and_none_of_its_parents(begin: str) -> None:
    lines = run(
        begin
        + """
for number in range(100): logger.info("parent.said", orders=number)
child = os.fork()
if child == 0:
    for number in range(100): logger.info("child.said", orders=number)
    assert log.flush()
    os._exit(0)
waitpid = native("os", "waitpid")  # gevent misses a SIGCHLD now and then beside a native thread
assert os.waitstatus_to_exitcode(waitpid(child, 0)[1]) == 0
logger.info("parent.said", orders=100)
"""
    )
    for who, number in (("parent.said", 101), ("child.said", 100)):
        assert [line["orders"] for line in lines if line["event"] == who] == list(range(number))


def test_a_child_forked_while_the_stream_blocks_writes_once_it_unblocks() -> None:
    """The parent's thread holds no lock that the child would wait for."""
    pipe = Pipe()
    pipe.fill()
    program = (
        CONFIGURED
        + """
logger.info("parent.said")
log.flush(0.2)
if os.fork() == 0:
    logger.info("child.said")
    print("forked", flush=True)
else:
    os.wait()
"""
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, stderr=pipe.writer
    ) as process:
        pipe.give_away()
        assert process.stdout is not None
        assert process.stdout.readline() == b"forked\n"
        assert sorted(events(pipe.read_all())) == ["child.said", "parent.said"]
        assert process.wait(PATIENCE) == 0


def test_a_blocked_stream_does_not_block_green_threads() -> None:
    """The blocked thread is a native one; a green one would block all others."""
    pipe = Pipe()
    pipe.fill()
    program = (
        PATCHED
        + """
turns = []
def work():
    for number in range(500):
        logger.info("it.happened", orders=number)
        turns.append(number)
        gevent.sleep(0)
gevent.joinall([gevent.spawn(work) for _ in range(4)])
print(len(turns), len(os.listdir("/proc/self/task")), flush=True)
sys.stdin.readline()
"""
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=pipe.writer,
    ) as process:
        pipe.give_away()
        assert process.stdin is not None
        assert process.stdout is not None
        turns, threads = map(int, process.stdout.readline().split())
        assert turns == 2000
        assert threads >= 2
        process.stdin.write(b"\n")
        process.stdin.flush()
        lines = pipe.read_all()
        assert process.wait(PATIENCE) == 0
    assert [line["orders"] for line in lines] == [n for n in range(500) for _ in range(4)]


@KINDS
def test_a_program_ends_although_its_output_is_not_read(begin: str) -> None:
    pipe = Pipe()
    pipe.fill()
    program = begin + "for number in range(100): logger.info('it.happened')"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, stderr=pipe.writer, timeout=PATIENCE
    )
    assert done.returncode == 0
    pipe.give_away()
    pipe.read_all()


@KINDS
def test_a_program_goes_on_although_its_reader_is_gone(begin: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    program = (
        begin
        + """
logger.warning("it.happened")
assert log.flush()
from prometheus_client import REGISTRY
print(REGISTRY.get_sample_value("pos_gateway_log_records_dropped_total", {"level": "warning"}))
"""
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, stderr=writer
    )
    os.close(writer)
    assert (done.returncode, done.stdout) == (0, b"1.0\n")


def test_a_signal_handler_may_log_at_any_moment() -> None:
    """Its handler runs between any two steps of a log call, and logs."""
    lines = run(
        CONFIGURED
        + """
told = []
def tell(number, frame):
    told.append(number)
    logger.info("signal.came", orders=len(told))
signal.signal(signal.SIGALRM, tell)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0001)
said = 0
while len(told) < 300:
    logger.info("it.happened", orders=said)
    said += 1
signal.setitimer(signal.ITIMER_REAL, 0)
logger.info("all.said", orders=said)
"""
    )
    said = lines.pop()["orders"]
    dropped = sum(line["records"] for line in lines if line["event"] == "log.dropped")
    lines = [line for line in lines if line["event"] != "log.dropped"]
    assert len(lines) + dropped >= said + 300


def test_keyboard_interrupt_is_no_crash() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            CONFIGURED
            + "log.report_crashes()\nos.kill(os.getpid(), signal.SIGINT)\nsignal.pause()",
        ],
        cwd=ROOT,
        capture_output=True,
        timeout=PATIENCE,
    )
    assert done.returncode == -signal.SIGINT
    assert b"process.crashed" not in done.stderr
