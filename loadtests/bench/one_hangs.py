"""A steady hundred orders a second, ten of them to a merchant that hangs: what the others notice.

An exchange times out after 30 s, so that the merchant that hangs asks for 300 of 200 slots.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from loadtests.bench.attacks.attack import ATTACKS, Attack
from loadtests.bench.attacks.bout import (
    LATENCY,
    MOST_LATENCY,
    Pair,
    compare,
    latency_line,
    p99_ratio,
)
from loadtests.bench.attacks.figures import Latency, latency
from loadtests.bench.attacks.plays import QUICKEST, Load, SteadySize, steady_on_time
from loadtests.bench.attacks.trial import Trial
from loadtests.bench.candidate import ASYNCIO, DRAMATIQ, PLAIN, WATCHED, Candidate
from loadtests.bench.report import Verdict, accounted, section, table, verdicts
from loadtests.bench.servers import Servers

NAME = "one-hangs"
LOAD = Load(rate=100.0, latency=QUICKEST)
_HANGING = next(attack for attack in ATTACKS if attack.name == "hanging")
ATTACK = replace(_HANGING, name=NAME, letter="", timeout=30.0)

_SIZES = {False: SteadySize(5, 60), True: SteadySize(2, 8, settle=2)}
#: They play the attack in the first round, if there is time: it is all the same in the others.
RIVALS = (PLAIN, DRAMATIQ, ASYNCIO)
_UNDISTURBED, _ATTACKED = WATCHED.name, f"{WATCHED.name}, one hangs"

#: The healthy merchants' figures in each round, by the candidate's name.
Rounds = Sequence[Mapping[str, Latency]]


def measure(servers: Servers, rounds: int, *, quick: bool) -> Rounds:
    """Play undisturbed and attacked in turn, every other round backwards."""
    size, played = _SIZES[quick], []
    for turn in range(rounds):
        runs: list[tuple[str, Candidate, Attack | None]] = [
            (_UNDISTURBED, WATCHED, None),
            (_ATTACKED, WATCHED, ATTACK),
        ]
        if turn == 0 and not quick:
            runs += [(f"{rival.name}, one hangs", rival, ATTACK) for rival in RIVALS]
        figures: dict[str, Latency] = {}
        for name, candidate, attack in runs if turn % 2 == 0 else reversed(runs):
            trial = Trial(candidate, ATTACK.population, attack)
            seen = steady_on_time(servers, trial, size, LOAD)
            figures[name] = latency(seen, ATTACK, size.warm_up)
        played.append(figures)
    return played


def report(rounds: Rounds) -> str:
    """The table."""
    names = dict.fromkeys(name for played in rounds for name in played)
    lines = [
        latency_line(name, [played[name] for played in rounds if name in played]) for name in names
    ]
    return section(
        f"{NAME}: {LOAD.rate:.0f} orders/s, one in ten to a merchant that hangs for 30 s",
        table(("submit to POS, healthy merchants", *LATENCY), lines),
        verdicts([judge(rounds)]),
        accounted(played[_ATTACKED].accounting for played in rounds),
        faults=faults(rounds),
    )


def judge(rounds: Rounds) -> Verdict:
    """The gateway's p99."""
    pairs = [Pair(played[_UNDISTURBED], played[_ATTACKED]) for played in rounds]
    what = "gateway: p99, one hangs / undisturbed"
    return compare(what, pairs, p99_ratio, at_most=MOST_LATENCY)


def faults(rounds: Rounds) -> Sequence[str]:
    """Why rounds of the gateway's say nothing."""
    return judge(rounds).faults
