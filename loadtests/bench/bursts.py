"""All of a merchant's orders at once: how long until the last one is made.

The merchant could take its limit of them at a time from the first moment on; what is more than that
time is the gateway's.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kombu import Connection

from loadtests.bench.attacks.patience import wait_for_consumer, wait_until
from loadtests.bench.candidate import WATCHED
from loadtests.bench.filling import put
from loadtests.bench.orders import place_many
from loadtests.bench.report import table
from loadtests.bench.run import InvalidRunError
from loadtests.bench.servers import Servers
from loadtests.bench.verdict import Verdict
from loadtests.bench.worker import Worker
from loadtests.bench.world import world
from pos_gateway.broker import topology

NAME = "bursts"
#: Seconds of a request, at most.
_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class Burst:
    """So many orders of one merchant, published as fast as the broker takes them."""

    orders: int
    #: Seconds that the merchant takes over an order, and how many it takes at once.
    latency: float
    limit: int

    @property
    def name(self) -> str:
        """For a table's line."""
        return f"{self.orders:,} at {1000 * self.latency:g} ms, limit {self.limit}"

    @property
    def work(self) -> float:
        """Seconds that the merchant needs, always busy."""
        return self.orders * self.latency / self.limit

    @property
    def wanted(self) -> float:
        """Seconds that it may take."""
        return 1.25 * self.work + 1.0


BURSTS = (
    Burst(500, 0.02, 10),
    Burst(500, 0.2, 10),
    Burst(500, 2.0, 50),
    Burst(5000, 0.02, 10),
)


@dataclass(frozen=True, slots=True)
class Bursts:
    """Seconds from the first publish to the last reply, by the burst's name, in each round."""

    rounds: Sequence[dict[str, float]]

    def as_json(self) -> list[dict[str, float]]:
        """The figures by name."""
        return list(self.rounds)


def measure(servers: Servers, rounds: int, *, quick: bool) -> Bursts:
    """Play each burst on a worker of its own, which knows nothing of its merchant yet."""
    bursts = BURSTS[:1] if quick else BURSTS
    played = []
    for turn in range(rounds):
        in_turn = bursts if turn % 2 == 0 else reversed(bursts)
        played.append({burst.name: _play(servers, burst) for burst in in_turn})
    return Bursts(played)


def report(seen: Bursts) -> str:
    """The table."""
    named = [burst for burst in BURSTS if burst.name in seen.rounds[0]]
    header = ("seconds until the last order is made", "median", "rounds", "target", "")
    lines = [judge(seen, burst).line() for burst in named]
    return f"## {NAME}: all of a merchant's orders at once\n\n{table(header, lines)}\n"


def judge(seen: Bursts, burst: Burst) -> Verdict:
    """The target."""
    values = [played[burst.name] for played in seen.rounds]
    return Verdict(burst.name, values, at_most=burst.wanted, form=".1f")


def _play(servers: Servers, burst: Burst) -> float:
    profile: dict[str, Any] = {"kind": "accept", "latency": burst.latency}
    terms = {"m": {"max_concurrency": burst.limit}}
    messages = [WATCHED.message(order) for order in place_many(["m-0"] * burst.orders)]
    with world(servers, ["m-0"], {"m": profile}, terms) as place:
        with Connection(place.broker_url) as connection:
            topology.declare(connection)
        with Worker(WATCHED.command, WATCHED.environment(place, _TIMEOUT), place.folder) as worker:
            wait_for_consumer(place.broker_url, worker)
            began = time.time()
            put(place.broker_url, messages)

            def all_came() -> bool:
                worker.check()
                return len(place.merchants.arrivals()) >= burst.orders

            deadline = time.monotonic() + 10 * burst.wanted + 30
            if not wait_until(all_came, deadline):
                raise InvalidRunError(f"{burst.name}: not all orders came")
            last = max(at for _, _, at in place.merchants.arrivals())
    return last + burst.latency - began
