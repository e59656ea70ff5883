"""CPU time of logging attempts: the gateway's way, and structlog's by itself. Patched by gevent.

    python -m gevent.monkey --module loadtests.bench.logging_attempts NUMBER ROUNDS

Prints a JSON list with microseconds for each attempt, by candidate and thread, for each round.
"""

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import gevent
import structlog

from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.outcome import CallResult, Kind, Outcome
from pos_gateway.ledger.states import AttemptHistory, Claim, Key
from pos_gateway.processing import call
from pos_gateway.telemetry import log, stages

STDERR = 2
#: Attempts in a row, and seconds until the next ones: as a worker at work has them, not a flood.
YIELD_EVERY, PAUSE = 20, 0.02

MERCHANT = Merchant.parse(
    {"id": "merchant-0123456789", "base_url": "https://pos.example.com", "provider": "acme"}
)
CLAIM = Claim(
    Key(MERCHANT.id, "6f1d4e5a-0000-4000-8000-000000000000"),
    "worker",
    1,
    1,
    AttemptHistory(),
    sending=True,
)
ACCEPTED = Outcome(Kind.ACCEPTED, contact=CallResult.ANSWERED)


def gateway() -> None:
    """A line is handed to the thread that writes."""
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


def log_like(configure: Callable[[], None]) -> None:
    """From now on attempts are logged in this way."""
    configure()
    call.log = structlog.get_logger()  # the one before has its configuration for good


def attempt() -> None:
    """What an attempt has to do with logs: its stages, and its line."""
    stages.begin(time.perf_counter())
    passed = stages.call()
    stages.connecting(0.001)
    stages.replied()
    call.log_attempt(MERCHANT, CLAIM, ACCEPTED, passed, passed.total)


CANDIDATES: dict[str, Callable[[], None]] = {
    "gateway": gateway,
    "gateway, a line that is not written": quiet,
    "structlog, written at once": at_once,
}


def main(number: int, rounds: int) -> None:
    """Measure the candidates in turn, every other round backwards."""
    results: list[dict[str, dict[str, float]]] = []
    with a_reader():
        for turn in range(rounds + 1):  # the first one warms up
            names = list(CANDIDATES) if turn % 2 else list(reversed(CANDIDATES))
            result = {name: _measured(CANDIDATES[name], number) for name in names}
            results.append({name: result[name] for name in CANDIDATES})
    print(json.dumps(results[1:]))


@contextmanager
def a_reader() -> Iterator[None]:
    """What is written to standard error is read by another process, at once."""
    before = os.dup(STDERR)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as reader:
        assert reader.stdin is not None
        os.dup2(reader.stdin.fileno(), STDERR)
        yield
        os.dup2(before, STDERR)


def _measured(configure: Callable[[], None], number: int) -> dict[str, float]:
    log_like(configure)
    logged, whole, process = 0.0, time.thread_time(), time.process_time()
    for _ in range(number // YIELD_EVERY):
        began = time.thread_time()
        for _ in range(YIELD_EVERY):
            attempt()
        logged += time.thread_time() - began
        gevent.sleep(PAUSE)
    log.flush()
    native = time.process_time() - process - (time.thread_time() - whole)
    return {"green": logged / number * 1e6, "native": native / number * 1e6}


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main(int(sys.argv[1]), int(sys.argv[2]))
