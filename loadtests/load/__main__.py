"""Bring a load on a whole gateway and settle its accounts: ``python -m loadtests.load steady``.

Starts RabbitMQ, simulated merchants, a database and the worker, all its own, and has locust play
the order backends. Prints locust's statistics, the latencies and the accounts; ends with 1 if
these do not add up.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kombu import Connection

from loadtests.bench.candidate import OURS
from loadtests.bench.report import table
from loadtests.bench.servers import Servers
from loadtests.bench.worker import ROOT, Worker
from loadtests.bench.world import World, world
from loadtests.load.histogram import histogram
from loadtests.load.scenario import SCENARIOS, LoadScenario
from loadtests.servers.rabbitmq import RabbitMQ
from pos_gateway.broker import topology

#: Seconds after the last order's deadline until everything must have been told: the longest
#: time that the gateway parks an order, one exchange, and some to spare.
_SETTLING = 60.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the scenarios named, or all of them. 0 if every order is accounted for, else 1."""
    options = _parser().parse_args(arguments)
    problems: list[str] = []
    with RabbitMQ() as rabbitmq:
        for name in options.scenarios or SCENARIOS:
            scenario = SCENARIOS[name]
            if options.seconds is not None:
                scenario = replace(scenario, seconds=options.seconds)
            problems += _play(rabbitmq, scenario)
    return 1 if problems else 0


def check(told: dict[str, Any], at_merchants: Iterable[dict[str, Any]]) -> list[str]:
    """What contradicts "every order came to one end": the backend's view against the merchants'."""
    problems = []
    if told["missing"]:
        problems.append(f"{len(told['missing'])} missing: {', '.join(told['missing'][:5])}")
    if not told["accepted"]:
        problems.append("not one order was accepted")
    creates = {each["order_id"]: each["creates"] for each in at_merchants}
    if phantom := [each for each in told["accepted"] if not creates.get(each)]:
        problems.append(f"{len(phantom)} accepted that no merchant has: {', '.join(phantom[:5])}")
    if doubled := [each for each, times in creates.items() if times > 1]:
        problems.append(f"{len(doubled)} made twice: {', '.join(doubled[:5])}")
    return problems


def report(told: dict[str, Any]) -> str:
    """Latencies and outcomes by class of merchant, and the sum."""
    parts = [
        f"order to event, {name} merchants:\n{histogram(seconds)}"
        for name, seconds in sorted(told["seconds"].items())
    ]
    total: Counter[str] = Counter()
    for counts in told["outcomes"].values():
        total.update(counts)
    columns = [name for name, _ in total.most_common()]
    lines = [
        [name, *(str(counts.get(column, 0)) for column in columns)]
        for name, counts in sorted(told["outcomes"].items())
    ]
    parts.append(table(["", *columns], lines))
    summands = " + ".join(f"{number} {name}" for name, number in total.most_common())
    missing = len(told["missing"])
    parts.append(f"{told['sent']} sent = {summands}; {missing} missing")
    return "\n\n".join(parts)


def _wait_until_it_consumes(worker: Worker, place: World, patience: float = 60.0) -> None:
    """The worker's start would count as the first orders' latency."""
    deadline = time.monotonic() + patience
    with Connection(place.broker_url) as connection:
        topology.declare(connection)
        channel = connection.default_channel
        while not channel.queue_declare(topology.orders_queue.name, passive=True).consumer_count:
            worker.check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"the worker consumes nothing after {patience:.0f} s")
            time.sleep(0.1)


def _play(rabbitmq: RabbitMQ, scenario: LoadScenario) -> list[str]:
    """Play one scenario against a gateway of its own, and say what does not add up."""
    print(f"# {scenario.name}\n", flush=True)
    with (
        world(Servers(rabbitmq), scenario.merchants.merchant_ids, scenario.profiles) as place,
        Worker(OURS.command, place.environment, place.folder) as worker,
    ):
        _wait_until_it_consumes(worker, place)
        told = _have_locust_play(scenario, place)
        worker.check()
        problems = check(told, place.merchants.orders())
    print(f"{report(told)}\n")
    for problem in problems:
        print(f"DOES NOT ADD UP: {problem}")
    return problems


def _have_locust_play(scenario: LoadScenario, place: World) -> dict[str, Any]:
    """What the order backends, which locust plays, were told."""
    outcomes = place.folder / "outcomes.json"
    options: dict[str, object] = {
        "--locustfile": ROOT / "loadtests" / "locustfile.py",
        "--users": scenario.users,
        "--spawn-rate": scenario.users,
        "--run-time": f"{scenario.seconds:g}s",
        "--exit-code-on-error": 0,
        "--order-rate": scenario.rate,
        "--merchants": scenario.merchants,
        "--deliver-within": scenario.deliver_within,
        "--settle": scenario.deliver_within + _SETTLING,
        "--outcomes": outcomes,
    }
    command = [sys.executable, "-m", "locust", "--headless", "--only-summary"]
    subprocess.run(
        [*command, *(str(part) for option in options.items() for part in option)],
        cwd=ROOT,
        env={**os.environ, "POS_GATEWAY_BROKER_URL": place.broker_url},
        timeout=scenario.seconds + scenario.deliver_within + _SETTLING + 60,
        check=True,
    )
    told: dict[str, Any] = json.loads(Path(outcomes).read_text())
    return told


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtests.load", description=__doc__)
    parser.add_argument(
        "scenarios",
        nargs="*",
        metavar="SCENARIO",
        type=_name,
        help=f"{', '.join(SCENARIOS)}; or all",
    )
    parser.add_argument("--seconds", type=float, help="how long, instead of a scenario's own")
    return parser


def _name(text: str) -> str:
    if text not in SCENARIOS:
        raise argparse.ArgumentTypeError(f"{text!r}: one of {', '.join(SCENARIOS)}")
    return text


if __name__ == "__main__":
    sys.exit(main())
