"""A steady hundred orders a second, ten of them to a merchant that hangs: what the others notice.

An exchange times out after 30 s, so that the merchant that hangs asks for 300 of 200 slots.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from loadtests.bench.attacks.attack import ATTACKS, Attack
from loadtests.bench.attacks.bout import MOST_LATENCY, Pair, compare, p99_ratio
from loadtests.bench.attacks.comparison import Comparison, Setting
from loadtests.bench.attacks.figures import Latency
from loadtests.bench.attacks.plays import QUICKEST, Load, SteadySize
from loadtests.bench.candidate import ASYNCIO, DRAMATIQ, PLAIN, WATCHED, Candidate
from loadtests.bench.report import Verdict

_HANGING = next(attack for attack in ATTACKS if attack.name == "hanging")
ATTACK = replace(_HANGING, name="one-hangs", letter="", timeout=30.0)
LOAD = Load(rate=100.0, latency=QUICKEST)
#: They play the attack in the first round, if there is time: it is all the same in the others.
RIVALS = (PLAIN, DRAMATIQ, ASYNCIO)
ATTACKED = "gateway, one hangs"


def _runs(setting: Setting) -> Mapping[str, tuple[Candidate, Attack]]:
    rivals = () if setting.turn or setting.quick else RIVALS
    return {f"{each.name}, one hangs": (each, ATTACK) for each in (WATCHED, *rivals)}


def _judged(name: str, pairs: Sequence[Pair[Latency]]) -> Iterator[Verdict]:
    if name == ATTACKED:
        yield compare(f"{name} / undisturbed: p99", pairs, p99_ratio, at_most=MOST_LATENCY)


ONE_HANGS = Comparison(
    ATTACK.name,
    f"{LOAD.rate:.0f} orders/s, one in ten to a merchant that hangs for 30 s",
    ATTACK.population,
    {False: SteadySize(5, 60), True: SteadySize(2, 8, settle=2)},
    _runs,
    _judged,
    candidate=WATCHED,
    load=LOAD,
)
