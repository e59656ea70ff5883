"""How many workers orders need, how evenly merchants fall on shards, and how many move to one more.

    python -m loadtests.shards                      # the tables of docs/scale.md
    python -m loadtests.shards --merchants 20000 --orders 800

Each merchant's orders go to one shard, whichever it is: what one shard gets more than its part, its
workers, its broker and its database must be able to take.
"""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import ceil

#: Seconds of a core for an order when they come one by one, and the share of a core that a worker is
#: to use (docs/performance.md). From a full queue an order costs less than half as much.
CPU, USED = 0.002, 0.6
#: Slots of a worker, and the share of them that is to be busy: heavy merchants leave some free.
SLOTS, BUSY = 200, 0.75
#: Seconds that merchants take to reply.
REPLIES = (0.2, 0.5, 1.0, 2.0)
#: How uneven merchants are: the k-th gets orders as 1/k^s. At 0 all get the same; at 1 the first of
#: 100,000 gets a twelfth of all, which no kitchen cooks.
EXPONENTS = (0.0, 0.6, 0.8, 1.0)
SHARDS = (2, 4, 8, 16)


def shard_of(merchant_id: str, shards: Sequence[str]) -> str:
    """The shard that a merchant belongs to: the one whose name, with the merchant's, hashes highest.

    Rendezvous hashing: who computes it needs the names and nothing else, and a shard that is added
    takes its part from all others alike and moves no other merchant.
    """
    return max(shards, key=lambda shard: sha256(f"{shard}/{merchant_id}".encode()).digest())


@dataclass(frozen=True, slots=True)
class Balance:
    """How a number of shards stands."""

    shards: int
    exponent: float
    #: The most that one has, over the mean.
    merchants: float
    orders: float
    #: Of all merchants, those that move when one more is added.
    moved: float


def balances(merchants: int) -> Iterator[Balance]:
    """For every number of shards and every unevenness."""
    ids = [f"m-{number}" for number in range(merchants)]
    for count in SHARDS:
        names = [f"shard-{number}" for number in range(count + 1)]
        before = [shard_of(each, names[:count]) for each in ids]
        after = [shard_of(each, names) for each in ids]
        moved = sum(a != b for a, b in zip(before, after, strict=True)) / merchants
        for exponent in EXPONENTS:
            weights = [1 / (place + 1) ** exponent for place in range(merchants)]
            yield Balance(
                count,
                exponent,
                _busiest(before, [1.0] * merchants),
                _busiest(before, weights),
                moved,
            )


def table(found: Iterable[Balance], orders: float) -> str:
    """As it stands in docs/scale.md; ``orders`` a second are those of all shards."""
    lines = [
        "| shards | s | most merchants, of the mean | most orders, of the mean | orders/s there | move to one more |",
        "|-------:|--:|----------------------------:|-------------------------:|---------------:|-----------------:|",
    ]
    lines += [
        f"| {each.shards} | {each.exponent:.1f} | {each.merchants:.2f} | {each.orders:.2f}"
        f" | {each.orders * orders / each.shards:,.0f} | {each.moved:.1%} |"
        for each in found
    ]
    return "\n".join(lines)


def workers(orders: float, reply: float) -> int:
    """Workers for a rate of orders to merchants with a reply time."""
    return max(ceil(orders * CPU / USED), ceil(orders * reply / (SLOTS * BUSY)))


def table_of_workers(orders: Iterable[float]) -> str:
    """As it stands in docs/scale.md."""
    lines = [
        f"| orders/s | {' | '.join(f'replies after {reply:g} s' for reply in REPLIES)} |",
        f"|---------:|{'|'.join('---:' for _ in REPLIES)}|",
    ]
    lines += [
        f"| {each:,.0f} | {' | '.join(str(workers(each, reply)) for reply in REPLIES)} |"
        for each in orders
    ]
    return "\n".join(lines)


def _busiest(shard_of_each: Sequence[str], weights: Sequence[float]) -> float:
    totals: dict[str, float] = {}
    for shard, weight in zip(shard_of_each, weights, strict=True):
        totals[shard] = totals.get(shard, 0.0) + weight
    return max(totals.values()) * len(totals) / sum(weights)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtests.shards", description=__doc__)
    parser.add_argument("--merchants", type=int, default=100_000, help="how many (%(default)s)")
    parser.add_argument("--orders", type=float, default=5_000, help="a second (%(default)s)")
    arguments = parser.parse_args()
    shares = (arguments.orders, *(arguments.orders / count for count in SHARDS))
    print(table_of_workers(shares), end="\n\n")
    print(table(balances(arguments.merchants), arguments.orders))


if __name__ == "__main__":
    main()
