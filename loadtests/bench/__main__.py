"""Run the benchmark: ``python -m loadtests.bench [--quick] [--only NAME | --all] [--rounds N]``."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from loadtests.bench import charts
from loadtests.bench.bench import COMPARISON, LETTERS, NAMES, Bench
from loadtests.bench.candidate import RivalMissingError
from loadtests.bench.cores import keep_off_the_workers_core
from loadtests.bench.filling import QueueNotFilledError
from loadtests.bench.report import machine
from loadtests.bench.servers import Servers
from loadtests.bench.small_core.adversaries import ADVERSARIES
from loadtests.bench.small_core.adversary import Adversary
from loadtests.bench.small_core.core import CORES, Core
from loadtests.bench.small_core.measure import SmallCore
from loadtests.bench.waiting import InvalidRunError
from loadtests.bench.worker import WorkerEndedError
from pos_gateway.settings import forget_environment
from testkit.servers.postgresql import PostgreSQL
from testkit.servers.rabbitmq import RabbitMQ

_Named = TypeVar("_Named")
#: What may be said of ``small-core``.
_ADVERSARIES = {each.name: each for each in ADVERSARIES}
_CORES = {f"{each.part:g}": each for each in CORES}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print tables for each case. 0 even if targets are missed; 1 if a run was invalid."""
    options = _parser().parse_args(arguments)
    small_core = SmallCore(options.adversaries or ADVERSARIES, options.cores)
    forget_environment()
    keep_off_the_workers_core()
    names = [LETTERS.get(name, name) for name in options.only]
    some = COMPARISON if options.quick and not options.all else NAMES
    bench = Bench(names or some, options.rounds, quick=options.quick, measures=[small_core])
    try:
        bench.check()
        with _servers(options.ledger) as servers:
            print(f"{machine()}\n", flush=True)
            for tables in bench.play(servers):
                print(tables, flush=True)
    except RivalMissingError as error:
        print(error, file=sys.stderr)
        return 1
    except (InvalidRunError, QueueNotFilledError, WorkerEndedError) as error:
        print(f"This run is invalid: {bench.playing}: {error}", file=sys.stderr)
        return 1
    finally:
        figures = json.dumps(bench.figures, indent=2, default=asdict) + "\n"
        if options.json:
            options.json.write_text(figures)
        if options.charts:
            charts.draw(json.loads(figures), options.charts)
        if options.series:
            options.series.write_text(json.dumps(bench.series) + "\n")
    for fault in bench.faults:
        print(f"A run is invalid: {fault}", file=sys.stderr)
    return 1 if bench.faults else 0


@contextmanager
def _servers(ledger: str) -> Iterator[Servers]:
    with ExitStack() as stack:
        rabbitmq = stack.enter_context(RabbitMQ())
        postgresql = stack.enter_context(PostgreSQL()) if ledger == "postgresql" else None
        yield Servers(rabbitmq, postgresql)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter runs, one round: 3 minutes")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--only",
        action="append",
        default=[],
        choices=[*NAMES, *sorted(LETTERS)],
        metavar="NAME",
        help=f"repeatable; {', '.join(NAMES)}; an attack's letter ({', '.join(sorted(LETTERS))})",
    )
    which.add_argument(
        "--all",
        action="store_true",
        help=f"all of these, also when it is to be quick; else that plays {', '.join(COMPARISON)}:"
        " the gateway beside what a user would pick instead",
    )
    parser.add_argument(
        "--ledger",
        choices=["postgresql", "sqlite"],
        default="postgresql",
        help="where the gateway's ledger is; SQLite writes on the worker's own core",
    )
    parser.add_argument(
        "--adversaries",
        type=_adversaries,
        metavar="NAMES",
        help=f"of small-core, with commas: {', '.join(_ADVERSARIES)}; all unless given",
    )
    parser.add_argument(
        "--cores",
        type=_cores,
        metavar="PARTS",
        help=f"of small-core, with commas: {', '.join(_CORES)}; all, or 0.5 if quick",
    )
    parser.add_argument(
        "--rounds", type=_at_least_one, metavar="N", help="3 (one of the backlog), or 1 if quick"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every run's figures too")
    parser.add_argument("--charts", type=Path, metavar="FOLDER", help="draw them there, as SVG")
    parser.add_argument(
        "--series", type=Path, metavar="FILE", help="write slots over time of the attacks, as JSON"
    )
    return parser


def _adversaries(text: str) -> list[Adversary]:
    return [_named(name, _ADVERSARIES) for name in text.split(",")]


def _cores(text: str) -> list[Core]:
    return [_named(part, _CORES) for part in text.split(",")]


def _named(name: str, known: Mapping[str, _Named]) -> _Named:
    if name not in known:
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
    return known[name]


def _at_least_one(text: str) -> int:
    rounds = int(text)
    if rounds < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return rounds


if __name__ == "__main__":
    sys.exit(main())
