"""Run the benchmark: ``python -m loadtests.bench [--quick] [--only NAME] [--rounds N]``."""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from loadtests.bench.cores import keep_off_the_workers_core
from loadtests.bench.filling import QueueNotFilledError
from loadtests.bench.report import Round, number, report
from loadtests.bench.run import InvalidRunError, Result, run
from loadtests.bench.scenario import CASES, Case
from loadtests.bench.worker import WorkerEndedError
from loadtests.servers.rabbitmq import RabbitMQ

_VERSIONS = ("celery", "gevent", "kombu", "amqp", "requests")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table for each case. 0 even if targets are missed; 1 if a run was invalid."""
    options = _parser().parse_args(arguments)
    cases = [case for case in CASES if not options.only or case.name in options.only]
    rounds = options.rounds or (1 if options.quick else 3)
    results: dict[str, list[Round]] = {}
    keep_off_the_workers_core()
    with RabbitMQ() as rabbitmq:
        print(f"{machine()}\n", flush=True)
        for case in cases:
            try:
                results[case.name] = _play(rabbitmq, case, rounds, quick=options.quick)
            except (InvalidRunError, QueueNotFilledError, WorkerEndedError) as error:
                print(f"This run is invalid: {case.name}: {error}", file=sys.stderr)
                return 1
            print(report(case, results[case.name]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(_as_json(results), indent=2) + "\n")
    return 0


def machine() -> str:
    """What the figures are from."""
    versions = ", ".join(f"{name} {version(name)}" for name in _VERSIONS)
    return f"{os.cpu_count()} cores, Python {platform.python_version()}, {versions}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer orders, one round: 3 minutes")
    parser.add_argument(
        "--only", action="append", choices=[case.name for case in CASES], help="repeatable"
    )
    parser.add_argument("--rounds", type=_at_least_one, metavar="N", help="3, or 1 if quick")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every run's figures too")
    return parser


def _play(rabbitmq: RabbitMQ, case: Case, rounds: int, *, quick: bool) -> list[Round]:
    """The entries in turn, every other round backwards: what drifts meets each of them alike."""
    played: list[Round] = []
    for turn in range(rounds):
        results: dict[str, Result] = {}
        for entry in case.entries if turn % 2 == 0 else reversed(case.entries):
            _progress(f"{case.name}, round {turn + 1} of {rounds}: {entry.name} ...")
            began = time.monotonic()
            result = results[entry.name] = run(rabbitmq, entry, quick=quick)
            _progress(f"    {number(result.rate)} orders/s ({time.monotonic() - began:.0f} s)")
        played.append(results)
    return played


def _progress(line: str) -> None:
    if sys.stderr.isatty():
        print(line, file=sys.stderr, flush=True)


def _as_json(results: Mapping[str, Sequence[Round]]) -> dict[str, Any]:
    return {
        "machine": machine(),
        "cases": {
            name: [[result.as_json() for result in each.values()] for each in rounds]
            for name, rounds in results.items()
        },
    }


def _at_least_one(text: str) -> int:
    rounds = int(text)
    if rounds < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return rounds


if __name__ == "__main__":
    sys.exit(main())
