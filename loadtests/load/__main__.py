"""Bring a load on a whole gateway, and report the outcome: ``python -m loadtests.load lunch-peak``.

Starts RabbitMQ, PostgreSQL, simulated merchants and the worker, all its own, and has locust play the
order backends. Prints a summary and writes a page that tells the whole story. Ends with 1 if an
objective of the scenario was missed, an order lost, or the worker ended; and with 3 if the run is none:
its producer or its simulated merchants were what was measured, or failed.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from loadtests.bench.cores import keep_off_the_workers_core
from loadtests.bench.servers import Servers
from loadtests.bench.waiting import InvalidRunError
from loadtests.bench.worker import WorkerEndedError
from loadtests.load.page import page
from loadtests.load.run import ProducerEndedError, play
from loadtests.load.scenario import FOLDER, LoadScenario, names
from loadtests.load.story import story, summary
from loadtests.load.verdict import Word, judge
from pos_gateway.settings import forget_environment
from pos_gateway.simulated_merchants.errors import ScenarioError
from testkit.faults.adapters import install
from testkit.servers.postgresql import PostgreSQL
from testkit.servers.process import ServerFailedError, ServerMissingError
from testkit.servers.rabbitmq import RabbitMQ

ROOT = Path(__file__).resolve().parents[2]

#: As a shell has it, of a program that Ctrl-C ended.
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Play a scenario; without one, list them."""
    options = _parser().parse_args(arguments)
    forget_environment()
    if options.adapter_in is not None:
        print(install(options.adapter_in.resolve()))
        return 0
    try:
        if options.scenario is None:
            print(_listed())
            return 0
        scenario = LoadScenario.read(options.scenario, seconds=options.seconds)
    except ScenarioError as wrong:
        print(wrong, file=sys.stderr)
        return 2
    if options.merchants_at is not None:
        print(_merchants(scenario, options.merchants_at))
        return 0
    report = options.report or ROOT / "build" / "load" / f"{scenario.name}.html"
    try:
        return _play(scenario, report).value
    except WorkerEndedError as ended:
        print(ended, file=sys.stderr)
        return Word.MISSED.value
    except (
        InvalidRunError,
        ProducerEndedError,
        ServerMissingError,
        ServerFailedError,
    ) as failed:
        print(failed, file=sys.stderr)
        return Word.NO_RESULT.value
    except KeyboardInterrupt:
        print("Stopped: nothing is judged.", file=sys.stderr)
        return _INTERRUPTED


def _play(scenario: LoadScenario, report: Path) -> Word:
    print(f"{scenario.name}: {_size(scenario)}. {scenario.description}\n", flush=True)
    keep_off_the_workers_core()
    with RabbitMQ() as rabbitmq, PostgreSQL() as postgresql:
        run = play(Servers(rabbitmq, postgresql), scenario)
    verdict = judge(run)
    sections = story(run, verdict)
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(page(sections, verdict.word))
    print(summary(sections))
    print(f"The whole story: {report.resolve().as_uri()}\n{scenario.name}: {verdict.sentence}")
    return verdict.word


def _listed() -> str:
    """The scenarios, with what they are."""
    lines = ["Scenarios, for `make load SCENARIO=…`; a path to a .toml file will do too:", ""]
    for scenario in map(LoadScenario.read, names()):
        lines.append(f"  {scenario.name:20} {_size(scenario):28} {scenario.description}")
    return "\n".join([*lines, "", f"They are in {FOLDER.relative_to(ROOT)}/."])


def _size(scenario: LoadScenario) -> str:
    orders = scenario.arrivals.expected(scenario.seconds)
    return f"about {orders:,.0f} orders in {scenario.seconds:g} s"


def _merchants(scenario: LoadScenario, base_url: str) -> str:
    """The records of the scenario's merchants, for ``pos-gateway merchants import``."""
    records = (
        {"id": merchant_id, "base_url": f"{base_url.rstrip('/')}/m/{merchant_id}", **each.terms}
        for name, each in scenario.merchants.items()
        for merchant_id in scenario.members(name)
    )
    return "\n".join(map(json.dumps, records))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.load",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scenario", nargs="?", help="a name, or a .toml file; left out: list them")
    parser.add_argument("--seconds", type=float, help="how long, instead of the scenario's own")
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="where the page goes (build/load/SCENARIO.html)"
    )
    parser.add_argument(
        "--merchants-at",
        metavar="URL",
        help="only print the merchants' records for a gateway of yours; URL is the simulated merchants'",
    )
    parser.add_argument(
        "--adapter-in",
        type=Path,
        metavar="FOLDER",
        help="only put the adapter of merchants without a key there, and print the PYTHONPATH for it",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
