"""Profile a worker under load: ``python -m loadtests.profile [--rate N] [--against FILE] [--path]``."""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from loadtests.bench.attacks.figures import Cost
from loadtests.bench.attacks.plays import Load, SteadySize, steady
from loadtests.bench.attacks.trial import Trial
from loadtests.bench.candidate import WATCHED
from loadtests.bench.cases import HEALTHY, Entry, run
from loadtests.bench.cores import keep_off_the_workers_core
from loadtests.bench.report import machine, table
from loadtests.bench.servers import Servers
from loadtests.bench.waiting import InvalidRunError
from loadtests.bench.worker import MakeWorker, WorkerEndedError
from loadtests.profile.flame import flame_graph
from loadtests.profile.order_path import trace
from loadtests.profile.parts import PARTS, Stack, read, shares
from loadtests.profile.recording import COMMAND, PROFILER, Sampled
from pos_gateway.settings import forget_environment
from testkit.servers.postgresql import PostgreSQL
from testkit.servers.rabbitmq import RabbitMQ

#: Orders of a full queue, and seconds at a steady rate, that are sampled.
ORDERS, SECONDS = 15_000, 20.0
#: Functions that are named.
_HEAVIEST = 12

_PROFILED = replace(WATCHED, command=COMMAND)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print where an order's CPU goes and which functions it calls, and leave ``flame.svg`` and ``profile.json``."""
    options = _parser().parse_args(arguments)
    forget_environment()
    before = json.loads(options.against.read_text()) if options.against else None
    options.folder.mkdir(parents=True, exist_ok=True)
    raw = options.folder / "stacks.txt"
    if not options.path and not PROFILER.exists():
        print(f"There is no {PROFILER}: `make profile` installs py-spy.", file=sys.stderr)
        return 1
    keep_off_the_workers_core()
    try:
        with ExitStack() as stack:
            servers = Servers(stack.enter_context(RabbitMQ()), stack.enter_context(PostgreSQL()))
            path = trace(servers)
            if not options.path:
                rate, cpu_ms = _play(servers, options.rate, partial(Sampled, into=raw))
    except (InvalidRunError, WorkerEndedError) as error:
        print(f"There is no profile: {error}", file=sys.stderr)
        return 1
    print(path)
    if options.path:
        return 0
    with raw.open() as lines:
        stacks = list(read(lines))
    load = f"at {options.rate:,.0f} orders a second" if options.rate else "from a full queue"
    parts = {part: share * cpu_ms for part, share in shares(stacks).items()}
    profile = {
        "machine": machine(),
        "load": load,
        "rate": rate,
        "cpu_ms": cpu_ms,
        "parts": parts,
    }
    (options.folder / "profile.json").write_text(json.dumps(profile, indent=2) + "\n")
    legend = {part: f"{part}: {parts[part]:.3f} ms" for part in PARTS}
    title = f"An order's CPU, {load}: {cpu_ms:.2f} ms"
    (options.folder / "flame.svg").write_text(flame_graph(stacks, title, legend))
    print(f"\n{report(profile, stacks, before)}")
    print(f"The flame graph is {options.folder / 'flame.svg'}.")
    return 0


def report(
    profile: Mapping[str, Any], stacks: Sequence[Stack], before: Mapping[str, Any] | None = None
) -> str:
    """The tables: CPU of an order by part, beside an earlier profile's, and the heaviest functions."""
    columns = ["CPU ms an order", "now", "share"]
    lines = [
        [part, f"{ms:.3f}", f"{ms / profile['cpu_ms']:.1%}"]
        for part, ms in profile["parts"].items()
    ]
    lines.append(
        [
            "all",
            f"{profile['cpu_ms']:.3f}",
            f"{sum(profile['parts'].values()) / profile['cpu_ms']:.1%}",
        ]
    )
    if before is not None:
        columns += ["before", "change"]
        earlier = {**before["parts"], "all": before["cpu_ms"]}
        for line in lines:
            was = earlier.get(line[0], 0.0)
            line += [f"{was:.3f}", f"{float(line[1]) - was:+.3f}"]
    heaviest = Counter[str]()
    for stack in stacks:
        if stack.frames:
            heaviest[str(stack.frames[-1])] += stack.samples
    total = sum(stack.samples for stack in stacks)
    functions = [
        [name, f"{profile['cpu_ms'] * samples / total:.3f}"]
        for name, samples in heaviest.most_common(_HEAVIEST)
    ]
    return "\n\n".join(
        (
            f"{profile['machine']}",
            f"{total:,} samples of {profile['rate']:,.0f} orders/s, {profile['load']}",
            table(columns, lines),
            table(("in the function itself", "CPU ms an order"), functions),
        )
    )


def _play(servers: Servers, rate: float | None, make: MakeWorker) -> tuple[float, float]:
    """Orders a second, and CPU milliseconds for each."""
    if rate is None:
        entry = Entry("gateway", _PROFILED, 0.02, ORDERS, 120)
        result = run(servers, entry, quick=False, make=make)
        return result.rate, result.cpu_ms
    size, load = SteadySize(4, SECONDS), Load.at(rate)
    seen = steady(servers, Trial(_PROFILED, HEALTHY), size, load, make=make)
    if seen.fault:
        raise InvalidRunError(seen.fault)
    start = seen.scheduled.began + size.warm_up
    cost = Cost.between(seen.readings, start, start + size.measured)
    return rate, 1000 * cost.worker / rate


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtests.profile", description=__doc__)
    parser.add_argument(
        "--rate", type=float, metavar="N", help="orders a second, instead of a full queue"
    )
    parser.add_argument(
        "--against", type=Path, metavar="FILE", help="an earlier profile.json to compare with"
    )
    parser.add_argument(
        "--path",
        action="store_true",
        help="list the functions of an order's path, and sample nothing",
    )
    parser.add_argument("--folder", type=Path, default=Path("build/profile"), metavar="FOLDER")
    return parser


if __name__ == "__main__":
    sys.exit(main())
