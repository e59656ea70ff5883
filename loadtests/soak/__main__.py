"""Everything goes wrong, again and again, under load: ``python -m loadtests.soak``.

Real workers, RabbitMQ, PostgreSQL and simulated POSes of every guarantee. What is left afterwards
is judged by the POSes' own records, by what the backend was told, and by what an operator is shown
(``faults/invariants.py``), and printed as a table in Markdown.
"""

import argparse
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from statistics import median
from types import FrameType

import structlog

from loadtests.bench.report import table
from loadtests.soak import parts
from loadtests.soak.parts import Result
from loadtests.soak.progress import Steps
from pos_gateway.runtime.failpoints import OF_ORDERS
from pos_gateway.settings import forget_environment
from testkit.faults.site import site
from testkit.servers.postgresql import PostgreSQL
from testkit.servers.process import ServerFailedError
from testkit.servers.rabbitmq import RabbitMQ

#: Sentences about what is broken that are printed, of each part.
SHOWN = 50


class Stopped(BaseException):
    """A signal, or the clock, has ended the run early."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table; 0 if every invariant holds, 1 if one is broken or the run was cut short."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = _parser().parse_args(arguments)
    forget_environment()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    results: list[Result] = []
    cut_short = ""
    try:
        with _stopping(options.minutes * 60):
            for result in _play(options):
                results.append(result)  # what was played is kept if the rest is not
    except (Stopped, ServerFailedError) as reason:
        cut_short = str(reason)
    if results:
        print(f"```sh\n{shlex.join(['python', '-m', 'loadtests.soak', *arguments])}\n```\n")
        print(_table(results))
    for result in results:
        for sentence in result.broken[:SHOWN]:
            print(f"{result.name}: {sentence}", file=sys.stderr)
        if further := result.broken[SHOWN:]:
            print(f"{result.name}: and {len(further)} more", file=sys.stderr)
    if cut_short:
        print(f"Not all was played: {cut_short}", file=sys.stderr)
    return 1 if cut_short or any(result.broken for result in results) else 0


def _play(options: argparse.Namespace) -> Iterator[Result]:
    with RabbitMQ() as rabbitmq, PostgreSQL() as postgresql:
        for name, faults, orders, play in _plan(options):
            with site(rabbitmq, postgresql, options.seed) as here:
                steps = Steps(name, faults)
                began = time.monotonic()
                result = play(here, orders, seed=options.seed, steps=steps)
                healthy = name != "kills"
                parts.conclude(here, result, began=began, all_healthy=healthy, steps=steps)
            yield result


@contextmanager
def _stopping(seconds: float) -> Iterator[None]:
    """Raise Stopped in the block at Ctrl-C, at SIGTERM, and when its time is over; once."""
    why = {
        signal.SIGINT: "it was interrupted.",
        signal.SIGTERM: "it was told to stop.",
        signal.SIGALRM: f"{seconds / 60:g} minutes are over; --minutes allows for more.",
    }

    def stop(number: int, _frame: FrameType | None) -> None:
        for each in why:  # what is to be ended is ended in peace
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(why[signal.Signals(number)])

    before = {each: signal.signal(each, stop) for each in why}
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for each, handler in before.items():
            signal.signal(each, handler)


def _plan(options: argparse.Namespace) -> Iterator[tuple[str, int, int, Callable[..., Result]]]:
    """The parts' names, numbers of faults and of orders, and what plays them."""
    chosen = options.part or ["kills", "sigterms", "broker"]
    tenth = max(1, options.orders // 10)
    if "kills" in chosen:
        play = partial(parts.kills, at_random=options.kills, each=options.each_failpoint)
        number = options.kills + options.each_failpoint * len(OF_ORDERS)
        yield "kills", number, options.orders, play
    if "sigterms" in chosen:
        yield "sigterms", options.sigterms, tenth, partial(parts.sigterms, times=options.sigterms)
    if "broker" in chosen:
        numbers = {
            "broker_kills": options.broker_kills,
            "cuts": options.cuts,
            "alarms": options.alarms,
        }
        yield "broker", sum(numbers.values()), tenth, partial(parts.broker, **numbers)


def _table(results: Sequence[Result]) -> str:
    rows: list[tuple[str, Callable[[Result], object]]] = [
        ("faults", lambda r: r.faults),
        ("orders confirmed", lambda r: f"{r.orders:,}"),
        ("orders in flight at a fault, median", lambda r: _median(r.in_flight)),
        ("lost", lambda r: len(r.verdict.lost)),
        ("made twice, POS with keys", lambda r: _doubled(r, "keyed")),
        ("made twice, POS that can be asked", lambda r: _doubled(r, "queryable")),
        ("made twice, blind POS", lambda r: _doubled(r, "blind")),
        (
            "in doubt, POS that could be asked",
            lambda r: len(r.verdict.in_doubt) - len(r.in_doubt_blind),
        ),
        ("in doubt, blind POS, all of them listed", lambda r: len(r.in_doubt_blind)),
        ("orders in SENDING at the kills, blind POS", lambda r: len(r.may_be_in_doubt) or "-"),
        ("dead-lettered after three kills", lambda r: len(r.poison)),
        ("published out of order", lambda r: len(r.verdict.out_of_order)),
        ("ledger and POS disagree", lambda r: len(r.verdict.contradicted)),
        ("held up at healthy merchants", lambda r: len(r.verdict.held_up)),
        ("longest exit, s", lambda r: _seconds(r.longest_exit)),
        ("longest until orders went on, s", lambda r: _seconds(r.longest_silence)),
        ("took, s", lambda r: f"{r.seconds:.0f}"),
    ]
    lines = [[name, *(str(value(result)) for result in results)] for name, value in rows]
    return table(("", *(result.name for result in results)), lines)


def _doubled(result: Result, guarantee: str) -> int:
    return sum(sentence.startswith(f"('{guarantee}") for sentence in result.verdict.doubled)


def _median(values: Sequence[int]) -> str:
    return f"{median(values):.0f}" if values else "-"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtests.soak", description=__doc__)
    number = partial(parser.add_argument, type=_number, metavar="N")
    number("--orders", default=100_000, help="for the kills; a tenth for each other part")
    number("--kills", default=100, help="kill -9 at random moments")
    number("--each-failpoint", default=20, help="kill -9 at each failpoint")
    number("--sigterms", default=20, help="workers replaced, one by one")
    number("--broker-kills", default=20, help="the broker killed and started again")
    number("--cuts", default=50, help="connections to the broker cut")
    number("--alarms", default=5, help="memory alarms at the broker")
    parser.add_argument(
        "--part",
        action="append",
        choices=["kills", "sigterms", "broker"],
        help="only this part; repeatable",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=60.0,
        metavar="N",
        help="after which the run is cut short, and has failed (60)",
    )
    parser.add_argument("--seed", type=int, default=1, help="of what goes wrong, and when")
    return parser


def _number(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("0 or more")
    return number


if __name__ == "__main__":
    sys.exit(main())
