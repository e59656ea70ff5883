"""Microseconds of CPU of an attempt's log line: the gateway, and structlog that writes at once."""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import structlog

from loadtests.bench.micro.runner import PAUSE, Play, thread_cpu
from pos_gateway.attempt import call
from pos_gateway.attempt.attempt import Attempt
from pos_gateway.broker.wire import RawMessage
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.outcome import CallResult, Kind, Outcome
from pos_gateway.ledger.states import AttemptHistory, CallRecord, Claim, Key
from pos_gateway.telemetry import log

STDERR = 2

MERCHANT = Merchant.parse(
    {"id": "merchant-0123456789", "base_url": "https://pos.example.com", "provider": "acme"}
)
KEY = Key(MERCHANT.id, "6f1d4e5a-0000-4000-8000-000000000000")
CLAIM = Claim(KEY, "worker", 1, 1, AttemptHistory(), sending=True)
ACCEPTED = Outcome(Kind.ACCEPTED, contact=CallResult.ANSWERED)


def gateway() -> None:
    """The gateway hands a line to its writing thread."""
    log.configure(logging.INFO)


def quiet() -> None:
    """A line is not severe enough, as a worker has it by default."""
    log.configure(logging.WARNING)


def at_once() -> None:
    """structlog as its documentation has it."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )


CANDIDATES: dict[str, Callable[[], None]] = {
    "gateway": gateway,
    "gateway, a line that is not written": quiet,
    "structlog, written at once": at_once,
}


def log_like(configure: Callable[[], None]) -> None:
    """From now on attempts are logged in this way."""
    configure()
    call.log = structlog.get_logger()  # the one before has its configuration for good


def attempt(_number: int = 0) -> None:
    """What an attempt has to do with logs: its stages, and its line."""
    done: Attempt[Any] = Attempt(None, RawMessage(b""), claims=[CLAIM])
    done.call = CallRecord(0.001, 0.001, 0.0, 0.001, 0.002, 201)
    call.log_attempt(MERCHANT, done, ACCEPTED)


@contextmanager
def a_reader() -> Iterator[None]:
    """Another process reads standard error, at once."""
    before = os.dup(STDERR)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as reader:
        assert reader.stdin is not None
        os.dup2(reader.stdin.fileno(), STDERR)
        yield
        os.dup2(before, STDERR)


@contextmanager
def opened(number: int) -> Iterator[Play]:
    """The candidates in turn, on the green thread and on the native one."""

    def cpu(configure: Callable[[], None]) -> tuple[float, float]:
        log_like(configure)
        thread, process = time.thread_time(), time.process_time()
        green = thread_cpu(number, attempt, pause=PAUSE)
        log.flush()
        native = time.process_time() - process - (time.thread_time() - thread)
        return green * 1e6, native / number * 1e6

    def play(turn: int) -> dict[str, float]:
        names = list(CANDIDATES)
        seen = {name: cpu(CANDIDATES[name]) for name in (names if turn % 2 else reversed(names))}
        green = {name: seen[name][0] for name in names}
        return green | {f"{name}: its native thread": seen[name][1] for name in names}

    with a_reader():
        yield play
