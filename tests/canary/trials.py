"""Simulated rollouts: outcomes of merchants' orders, drawn by a seed."""

from collections.abc import Iterator
from random import Random

#: Each merchant's orders with a property, and all of its orders.
Counts = list[tuple[int, int]]

#: This many of a hundred merchants reject a tenth of their orders, the others one in two hundred.
PICKY, USUAL, RARE = 5, 0.005, 0.1


def merchants(chance: Random, number: int, *, orders: int = 40, more: float = 0.0) -> Counts:
    """Merchants that differ, with ``more`` of all of their orders rejected."""
    found = []
    for _ in range(number):
        rate = (RARE if chance.random() < PICKY / 100 else USUAL) + more
        size = chance.randint(1, 2 * orders)
        found.append((sum(chance.random() < rate for _ in range(size)), size))
    return found


def rollouts(
    runs: int, *, canary: int, stable: int, more: float = 0.0
) -> Iterator[tuple[Counts, Counts]]:
    """This many pairs of a canary's merchants and the others'."""
    for seed in range(runs):
        chance = Random(seed)
        yield merchants(chance, canary, more=more), merchants(chance, stable)


def growing(chance: Random, number: int, looks: int) -> Iterator[Counts]:
    """The same merchants, judged again and again while their orders arrive."""
    rates = [RARE if chance.random() < PICKY / 100 else USUAL for _ in range(number)]
    counts = [(0, 0)] * number
    for _ in range(looks):
        counts = [
            (bad + (chance.random() < rate), orders + 1)
            for (bad, orders), rate in zip(counts, rates, strict=True)
        ]
        yield counts


def times(
    chance: Random, number: int, *, slower: float = 1.0, orders: int = 40
) -> list[list[float]]:
    """Merchants' times: each merchant has a usual one."""
    found = []
    for _ in range(number):
        usual = chance.lognormvariate(-2, 0.3) * slower
        found.append(
            [usual * chance.lognormvariate(0, 0.4) for _ in range(chance.randint(1, 2 * orders))]
        )
    return found
