"""What a worker weighs that holds as many orders as it may."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kombu import Connection

from loadtests.bench import filling, orders
from loadtests.bench.candidate import OURS, PLAIN, WATCHED, Candidate
from loadtests.bench.observing import held
from loadtests.bench.report import Verdict, section, table, verdicts
from loadtests.bench.servers import Servers
from loadtests.bench.waiting import InvalidRunError, wait_until
from loadtests.bench.worker import Worker
from loadtests.bench.world import world
from pos_gateway.broker import topology

NAME = "memory"
#: MiB, at most, with at least this many orders in flight and waiting.
MOST, IN_FLIGHT, WAITING = 120.0, 200, 2000
#: A worker takes ten orders for each slot, those in flight among them: these slots for both.
SLOTS = 225
#: Seconds that merchants take over an order, which makes none of them slow; and for which is watched.
_REPLY, _WATCHED = 2.5, 3.0
_MERCHANTS = [f"healthy-{number}" for number in range(400)]
_ORDERS = 4000
#: Seconds until the worker holds them.
_PATIENCE = 120.0

_CANDIDATES = (replace(WATCHED, slots=SLOTS, settings={"POS_GATEWAY_SLOTS": str(SLOTS)}), PLAIN)

#: MiB, orders in flight, and orders that are taken and not begun.
Moment = tuple[float, int, int]


@dataclass(frozen=True, slots=True)
class Weight:
    """What one worker was seen to hold."""

    candidate: str
    mib: float
    in_flight: int
    #: Taken from the queue and not begun.
    waiting: int


#: What each worker held, of each round.
Rounds = Sequence[Sequence[Weight]]


def measure(servers: Servers, rounds: int, *, quick: bool) -> Rounds:
    """Weigh the workers in turn; a quick run the gateway alone."""
    candidates = _CANDIDATES[:1] if quick else _CANDIDATES
    return [
        [_weigh(servers, each) for each in candidates[:: 1 if turn % 2 == 0 else -1]]
        for turn in range(rounds)
    ]


def report(rounds: Rounds) -> str:
    """The table."""
    weights = [each for played in rounds for each in played]
    lines = [
        [each.candidate, f"{each.mib:.0f}", f"{each.in_flight:,}", f"{each.waiting:,}"]
        for each in weights
    ]
    ours = [each.mib for each in weights if each.candidate == OURS.name]
    return section(
        f"{NAME}: a worker that holds all it may",
        table(("each round", "MiB", "in flight", "waiting"), lines),
        verdicts([Verdict("gateway, MiB", ours, at_most=MOST, form=".0f")]),
    )


def _weigh(servers: Servers, candidate: Candidate) -> Weight:
    profiles = {"healthy": {"kind": "accept", "latency": _REPLY}}
    with world(servers, _MERCHANTS, profiles) as place:
        whose = orders.spread(_ORDERS, _MERCHANTS)
        placed = [candidate.message(order) for order in orders.place_many(whose)]
        filling.fill(place.broker_url, placed)
        with (
            Worker(candidate.command, candidate.environment(place, 10.0), place.folder) as worker,
            Connection(place.broker_url) as connection,
        ):

            def seen() -> tuple[int, int]:
                """Orders in flight, and those that are taken and not begun."""
                worker.check()
                counts = place.merchants.summary()["profiles"].get("healthy", {})
                ready = filling.depth(connection, topology.orders_queue)
                begun = counts.get("requests", 0)
                return counts.get("in_flight", 0), _ORDERS - ready - begun

            def is_full() -> bool:
                return seen()[0] >= IN_FLIGHT

            if not wait_until(is_full, time.monotonic() + _PATIENCE):
                raise InvalidRunError(f"{candidate.name}: {seen()[0]} orders were in flight")
            moments: list[Moment] = []
            until = time.monotonic() + _WATCHED

            def is_watched() -> bool:
                moments.append((held(worker.pid), *seen()))
                return time.monotonic() >= until and heaviest(moments) is not None

            wait_until(is_watched, until + _PATIENCE, look=0.1)
            weight = heaviest(moments)
            if weight is None:
                raise InvalidRunError(
                    f"{candidate.name}: {IN_FLIGHT} orders were in flight for a moment only"
                )
    return Weight(candidate.name, *weight)


def heaviest(moments: Sequence[Moment]) -> Moment | None:
    """The most that was held while enough were in flight; None: too few were.

    Orders end together and begin anew: other moments are between two of these waves.
    """
    return max((each for each in moments if each[1] >= IN_FLIGHT), default=None)
