"""When orders come: by chance, at the rate of a shape, whatever became of those before."""

from collections.abc import Iterator
from random import Random

from loadtests.load.scenario import LoadScenario
from loadtests.load.shapes import Shape


def orders(scenario: LoadScenario, backend: str) -> Iterator[tuple[float, str]]:
    """The orders of one of the scenario's backends: seconds from the beginning, and whose it is.

    Backends are alike but for their chance, which hangs on the scenario's seed and their names alone.
    """
    chance = Random(f"{scenario.seed}/{backend}")
    whose, share = scenario.picks(chance), 1 / scenario.backends
    for second in arrivals(scenario.arrivals, scenario.seconds, chance, share=share):
        yield second, next(whose)


def arrivals(
    shape: Shape, seconds: float, chance: Random, *, share: float = 1.0
) -> Iterator[float]:
    """Seconds from the beginning to each order of a backend that has this share of them.

    A Poisson process: backends that know nothing of each other make one of all their orders. It is
    drawn at the highest rate, and thinned to the one of the moment.
    """
    second = 0.0
    while (second := second + chance.expovariate(share * shape.highest)) < seconds:
        if chance.random() * shape.highest < shape.rate_at(second, seconds):
            yield second
