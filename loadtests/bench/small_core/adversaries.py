"""The adversaries, by name."""

from loadtests.bench.small_core import (
    backlogs,
    behind,
    cancelling,
    expiring,
    largest,
    peak,
    replaying,
    returning,
)
from loadtests.bench.small_core.adversary import Adversary
from loadtests.bench.small_core.counting import published

_HANG = {"kind": "hang"}
_LIMIT = {"max_concurrency": 10}


def _slow(name: str, merchants: int, seconds: float) -> Adversary:
    return Adversary(
        name,
        f"{merchants} at {seconds:g} s, each with a backlog",
        merchants,
        {"kind": "accept", "latency": seconds},
        _LIMIT,
        prepare=backlogs.outlasting(seconds),
    )


ADVERSARIES = (
    _slow("backlog", 100, 1.0),
    _slow("slower", 40, 2.5),
    Adversary(
        "peak",
        f"{peak.MERCHANTS} at 20 ms, {peak.RATE} orders/s",
        peak.MERCHANTS,
        send=peak.come,
        at_a_rate=True,
    ),
    Adversary(
        "return",
        "300 that return at once, with 30 orders each",
        300,
        _HANG,
        _LIMIT,
        prepare=returning.hung(30),
        send=returning.answering,
    ),
    Adversary(
        "provider",
        "a provider of 100 that returns with 20,000 parked orders",
        100,
        _HANG,
        {**_LIMIT, "provider": "others"},
        prepare=returning.hung(200),
        send=returning.answering,
    ),
    Adversary(
        "expired",
        "20,000 orders of 100 that hang expire at once",
        100,
        _HANG,
        _LIMIT,
        prepare=expiring.waiting(200),
        done=expiring.expired,
    ),
    Adversary(
        "events",
        f"{behind.EVENTS:,} events behind",
        1,
        prepare=behind.ended_orders,
        send=behind.unpublished,
        done=published,
    ),
    Adversary(
        "replays",
        f"{replaying.LETTERS:,} replays",
        100,
        prepare=replaying.dead_letters,
        send=replaying.replayed,
        at_a_rate=True,
    ),
    Adversary(
        "cancels",
        f"{cancelling.REQUESTS:,} cancel requests",
        cancelling.MERCHANTS,
        send=cancelling.requested,
        done=cancelling.decided,
    ),
    Adversary(
        "largest",
        "2 MB/s of the largest orders",
        largest.MERCHANTS,
        send=largest.sent,
        at_a_rate=True,
    ),
)
