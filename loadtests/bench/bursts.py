"""All of a merchant's orders at once: how long until the last one is made.

The merchant could take its limit of them at a time from the first moment on; what is more than that
time is the gateway's.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadtests.bench.candidate import WATCHED
from loadtests.bench.filling import declare, put
from loadtests.bench.orders import place_many
from loadtests.bench.report import Verdict, section, verdicts
from loadtests.bench.servers import Servers
from loadtests.bench.waiting import InvalidRunError, wait_for_consumer, wait_until
from loadtests.bench.worker import Worker
from loadtests.bench.world import world

NAME = "bursts"
#: Seconds of a request, at most.
_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class Burst:
    """Orders of one merchant, published as fast as the broker takes them."""

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


#: Seconds from the first publish to the last reply, by the burst's name, in each round.
Rounds = Sequence[Mapping[str, float]]


def measure(servers: Servers, rounds: int, *, quick: bool) -> Rounds:
    """Play each burst on a worker of its own, which knows nothing of its merchant yet."""
    bursts = BURSTS[:1] if quick else BURSTS
    return [
        {burst.name: _play(servers, burst) for burst in bursts[:: 1 if turn % 2 == 0 else -1]}
        for turn in range(rounds)
    ]


def report(rounds: Rounds) -> str:
    """The table."""
    judged = [judge(rounds, burst) for burst in BURSTS if burst.name in rounds[0]]
    title = f"{NAME}: all of a merchant's orders at once"
    return section(title, verdicts(judged, "seconds until the last order is made"))


def judge(rounds: Rounds, burst: Burst) -> Verdict:
    """The target."""
    values = [played[burst.name] for played in rounds]
    return Verdict(burst.name, values, at_most=burst.wanted, form=".1f")


def _play(servers: Servers, burst: Burst) -> float:
    profile: dict[str, Any] = {"kind": "accept", "latency": burst.latency}
    terms = {"m": {"max_concurrency": burst.limit}}
    messages = [WATCHED.message(order) for order in place_many(["m-0"] * burst.orders)]
    with world(servers, ["m-0"], {"m": profile}, terms) as place:
        declare(place.broker_url)
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
