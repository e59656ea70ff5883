"""A steady hundred orders a second, ten of them to a merchant that hangs: what the others notice.

An exchange is given up after 30 s, so that the merchant that hangs asks for 300 of 200 slots.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from loadtests.bench.attacks.attack import ATTACKS, Attack
from loadtests.bench.attacks.latency import Latency, latency
from loadtests.bench.attacks.load import QUICKEST, Load
from loadtests.bench.attacks.report import LATENCY, MOST_LATENCY, latency_line
from loadtests.bench.attacks.steady import SteadySize, steady_on_time
from loadtests.bench.attacks.trial import Trial
from loadtests.bench.candidate import ASYNCIO, DRAMATIQ, PLAIN, WATCHED, Candidate
from loadtests.bench.report import accounted, table
from loadtests.bench.servers import Servers
from loadtests.bench.verdict import Verdict

NAME = "one-hangs"
LOAD = Load(rate=100.0, latency=QUICKEST)
_HANGING = next(attack for attack in ATTACKS if attack.name == "hanging")
ATTACK = replace(_HANGING, name=NAME, letter="", timeout=30.0)

_SIZES = {False: SteadySize(5, 60), True: SteadySize(2, 8, settle=2)}
#: They play the attack in the first round, if there is time: it is all the same in the others.
RIVALS = (PLAIN, DRAMATIQ, ASYNCIO)
_UNDISTURBED, _ATTACKED = WATCHED.name, f"{WATCHED.name}, one hangs"


@dataclass(frozen=True, slots=True)
class OneHangs:
    """The healthy merchants' figures by who played, in each round."""

    rounds: Sequence[Mapping[str, Latency]]

    @property
    def faults(self) -> Sequence[str]:
        """Why rounds of the gateway's say nothing."""
        return judge(self.rounds).faults

    def as_json(self) -> list[dict[str, Any]]:
        """The figures by name."""
        return [{name: asdict(each) for name, each in played.items()} for played in self.rounds]


def measure(servers: Servers, rounds: int, *, quick: bool) -> OneHangs:
    """Play undisturbed and attacked in turn, every other round backwards."""
    size, played = _SIZES[quick], []
    for turn in range(rounds):
        runs: list[tuple[str, Candidate, Attack | None]] = [
            (_UNDISTURBED, WATCHED, None),
            (_ATTACKED, WATCHED, ATTACK),
        ]
        figures: dict[str, Latency] = {}
        if turn == 0 and not quick:
            runs += [(f"{rival.name}, one hangs", rival, ATTACK) for rival in RIVALS]
        for name, candidate, attack in runs if turn % 2 == 0 else reversed(runs):
            trial = Trial(candidate, ATTACK.population, attack)
            seen = steady_on_time(servers, trial, size, LOAD)
            figures[name] = latency(seen, ATTACK, size.warm_up)
        played.append(figures)
    return OneHangs(played)


def report(cost: OneHangs) -> str:
    """The table."""
    names = dict.fromkeys(name for played in cost.rounds for name in played)
    lines = [
        latency_line(name, [played[name] for played in cost.rounds if name in played])
        for name in names
    ]
    verdict = judge(cost.rounds)
    parts = [
        f"## {NAME}: {LOAD.rate:.0f} orders/s, one in ten to a merchant that hangs for 30 s",
        table(("submit to POS, healthy merchants", *LATENCY), lines),
        table(("", "median", "rounds", "target", ""), [verdict.line()]),
        *accounted([played[_ATTACKED].accounting for played in cost.rounds]),
        *(f"Invalid: {fault}." for fault in verdict.faults),
    ]
    return "\n\n".join(parts) + "\n"


def judge(rounds: Sequence[Mapping[str, Latency]]) -> Verdict:
    """The gateway's p99."""
    pairs = [(played[_UNDISTURBED], played[_ATTACKED]) for played in rounds]
    return Verdict(
        "gateway: p99, one hangs / undisturbed",
        [hit.p99 / calm.p99 for calm, hit in pairs if not (calm.fault or hit.fault)],
        [each.fault for pair in pairs for each in pair if each.fault],
        at_most=MOST_LATENCY,
        doubtful=any(each.disturbed_by.split(" ")[0].isupper() for pair in pairs for each in pair),
    )
