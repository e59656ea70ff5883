"""The tables of a dead merchant's backlog."""

import math
from collections.abc import Callable, Sequence

from loadtests.bench.attacks.backlog import ITS_RATE, RATE, SHARE, WIDTH, Backlog
from loadtests.bench.candidate import OURS
from loadtests.bench.report import number, table
from loadtests.bench.verdict import Verdict

NAME, LETTER = "backlog", "d"

#: What is wanted of the gateway: orders of the dead merchant sifted a second, seconds to the first
#: healthy order behind them, share of a core while all are parked, seconds from recovery to drain.
LEAST_SIFTED = 2500.0
MOST_FIRST = 10.0
MOST_IDLE = 0.10
MOST_RECOVERY = 60.0


def report(rounds: Sequence[Sequence[Backlog]]) -> str:
    """What each candidate's runs showed, and the gateway's targets, as Markdown."""
    played = [each for results in rounds for each in results]
    orders = max(each.dead for each in played)
    lines = [_line(name, show, rounds[0]) for name, show in _ROWS]
    ours = [each for each in played if each.candidate == OURS.name]
    parts = [
        f"## {NAME} ({LETTER}): a dead merchant's {orders:,} orders are queued ahead of everyone",
        table(("first round", *(each.candidate for each in rounds[0])), lines),
        table(
            ("gateway", "median", "rounds", "target", ""),
            [verdict.line() for verdict in judge(ours)],
        ),
    ]
    parts += [f"Invalid: {each.candidate}: {each.fault}." for each in played if each.fault]
    return "\n\n".join(parts) + "\n"


def judge(results: Sequence[Backlog]) -> list[Verdict]:
    """The gateway's targets. What a run did not come to is infinitely late."""
    valid = [each for each in results if not each.fault]
    return [
        Verdict(
            "sifted, orders/s",
            [each.sift_rate for each in valid],
            at_least=LEAST_SIFTED,
            form=",.0f",
        ),
        Verdict(
            "first healthy order, s",
            [_or_never(each.first_healthy) for each in valid],
            at_most=MOST_FIRST,
            form=".1f",
        ),
        Verdict(
            "CPU while parked, share of a core",
            [each.idle.cost.worker if each.idle else math.inf for each in valid],
            at_most=MOST_IDLE,
            form=".1%",
        ),
        Verdict(
            f"from recovery to {SHARE * ITS_RATE:.0f}/s over {WIDTH:.0f} s, s",
            [_or_never(each.recovery.seconds if each.recovery else None) for each in valid],
            at_most=MOST_RECOVERY,
            form=".1f",
        ),
    ]


def _or_never(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds


def _seconds(seconds: float | None) -> str:
    return "not in time" if seconds is None else f"{seconds:.1f}"


#: What is shown of a run; a dash stands for what it did not come to.
_ROWS: tuple[tuple[str, Callable[[Backlog], str | None]], ...] = (
    ("sifted, orders/s", lambda run: number(run.sift_rate)),
    ("first healthy order, s", lambda run: _seconds(run.first_healthy)),
    ("last healthy order behind, s", lambda run: _seconds(run.last_healthy)),
    ("parked: worker", lambda run: f"{run.idle.cost.worker:.1%}" if run.idle else None),
    ("parked: RabbitMQ", lambda run: f"{run.idle.cost.rabbitmq:.1%}" if run.idle else None),
    ("parked: PostgreSQL", lambda run: f"{run.idle.cost.postgresql:.1%}" if run.idle else None),
    (
        "parked: requests/s at the dead one",
        lambda run: f"{run.idle.probes:.1f}" if run.idle else None,
    ),
    ("parked: left in queue orders", lambda run: f"{run.idle.waiting:,}" if run.idle else None),
    (
        f"parked: healthy at {RATE:.0f}/s, p50 ms",
        lambda run: f"{run.flow.p50 * 1000:.1f}" if run.flow else None,
    ),
    (
        f"parked: healthy at {RATE:.0f}/s, p99 ms",
        lambda run: f"{run.flow.p99 * 1000:.1f}" if run.flow else None,
    ),
    ("parked: healthy that did not come", lambda run: f"{run.flow.missing}" if run.flow else None),
    ("drain begins, s", lambda run: _seconds(run.recovery.seconds) if run.recovery else None),
    ("drained then, orders/s", lambda run: number(run.recovery.rate) if run.recovery else None),
)


def _line(
    name: str, show: Callable[[Backlog], str | None], results: Sequence[Backlog]
) -> list[str]:
    return [name, *(show(result) or "-" for result in results)]
