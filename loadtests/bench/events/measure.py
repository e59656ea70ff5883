"""The cases of the event pipeline, and their table."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from loadtests.bench.events import helped, live
from loadtests.bench.events.helped import DYING, HELPED, SERIAL
from loadtests.bench.events.live import CHUNKS, OURS_NAME, SINGLY, Live
from loadtests.bench.report import Verdict, section, table, verdicts
from loadtests.bench.servers import Servers
from testkit.servers.postgresql import PostgreSQL

NAME = "events"
#: Seconds until 95 % were received, at most: of a worker's own, and of bulks by their size.
SINGLE, BULKS = 0.1, {1_000: 1.0, 10_000: 5.0}
#: The bulk whose events may cost no more than those of the largest above.
LARGEST = 100_000
#: Times the serial pipeline's speed.
WITH_HELPERS, WITH_DYING = 1.8, 0.95


@dataclass(frozen=True, slots=True)
class EventCost:
    """What each round showed."""

    live: Sequence[Mapping[str, Live]]
    helped: Sequence[Mapping[str, float]]


def measure(servers: Servers, rounds: int, *, quick: bool) -> EventCost:
    """Play all of it, every other round backwards."""
    lives: list[dict[str, Live]] = []
    helpings: list[dict[str, float]] = []
    with ExitStack() as stack:
        if servers.postgresql is None:
            servers = Servers(servers.rabbitmq, stack.enter_context(PostgreSQL()))
        for turn in range(rounds):
            names = [OURS_NAME, SINGLY, CHUNKS]
            lives.append({})
            for name in names if turn % 2 == 0 else reversed(names):
                sizes = [*BULKS, *([LARGEST] if name == OURS_NAME else [])]
                seconds = 5 if quick else 15
                lives[-1][name] = live.play(servers, name, seconds=seconds, sizes=sizes)
            helpings.append(helped.play(servers, turn, quick=quick))
    return EventCost(lives, helpings)


def report(cost: EventCost) -> str:
    """The tables."""
    sizes = [*BULKS, LARGEST]
    header = ("95 % received after, ms", "single", *(f"bulk of {size:,}" for size in sizes))
    lines = []
    for number, one in enumerate(cost.live, 1):
        for name, each in one.items():
            bulks = [each.bulks.get(size) for size in sizes]
            figures = [_ms(each.p95), *("" if b is None else _ms(b[0]) for b in bulks)]
            lines.append([f"round {number}, {name}", *figures])
    helped_lines = [
        [f"round {number}", *(f"{one[way]:.1f}" for way in (SERIAL, HELPED, DYING))]
        for number, one in enumerate(cost.helped, 1)
    ]
    return section(
        f"{NAME}: from an outcome's commit until a consumer has received it",
        f"A worker under {live.RATE:.0f} orders a second beside it.",
        table(header, lines),
        f"Seconds for a bulk whose hydration takes {1000 * helped.COST:.0f} ms an event:",
        table(("", SERIAL, HELPED, DYING), helped_lines),
        verdicts(judge(cost)),
    )


def judge(cost: EventCost) -> list[Verdict]:
    """The targets."""
    ours = [one[OURS_NAME] for one in cost.live]
    each = {
        size: [one.bulks[size][1] / size for one in ours if size in one.bulks]
        for size in (*BULKS, LARGEST)
    }
    largest = max(BULKS)
    return [
        Verdict("single, p95, s", [one.p95 for one in ours], at_most=SINGLE, form=".3f"),
        *(
            Verdict(f"bulk of {size:,}, p95, s", [one.bulks[size][0] for one in ours], at_most=most)
            for size, most in BULKS.items()
        ),
        Verdict(
            f"time an event, {LARGEST:,} / {largest:,}",
            [a / b for a, b in zip(each[LARGEST], each[largest], strict=True)],
            at_most=1.0,
        ),
        Verdict(
            "speed with two helpers / serial",
            [one[SERIAL] / one[HELPED] for one in cost.helped],
            at_least=WITH_HELPERS,
        ),
        Verdict(
            "speed with helpers that die / serial",
            [one[SERIAL] / one[DYING] for one in cost.helped],
            at_least=WITH_DYING,
        ),
    ]


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:,.0f}"
