"""Merchants that would take the others' slots, and what admission promises beside each."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from pos_gateway.domain.outcome import CallResult
from tests.admission.adversaries.driver import (
    Answer,
    Driver,
    Group,
    Seconds,
    about,
    hangs_from,
)

#: Seconds that 99 of 100 orders of healthy merchants wait for a slot at most.
HEALTHY_P99 = 0.01
#: When merchants stop answering, or arrive all at once, seconds after the start.
STRIKE = 15.0


@dataclass(frozen=True)
class Adversary:
    """An adversary, with the healthy merchants beside it."""

    name: str
    groups: Callable[[], list[Group]]
    #: Slots of 200 that its merchants hold at least: 60 % of what the healthy leave, where it
    #: always has work, and 95 % of all where no other merchant has any (85 % if there are as many as
    #: slots: some of them keep up with their fair part, and slots stay free for those).
    held: float = 0.0
    #: Calls that are cut short at most.
    cut_short: int = 0
    #: Seconds until each of its merchants has had a slot at most.
    first: float = 1e9
    #: Calls of its merchants that fail at most, and seconds that 99 of 100 of their orders wait.
    failed: float = 1e9
    p99: float = 1e9
    #: Their orders that start within a tenth of a second at most: starts take the worker's CPU.
    at_once: float = 1e9
    #: Seconds that an order in doubt waits for its first look-up at most, and orders of its merchants
    #: that are answered at least.
    doubt: float = 1e9
    answered: int = 0
    seconds: float = 26.0
    warm_up: float = 12.0

    def play(self, seconds: float | None = None, seed: int = 1) -> Driver:
        """The same run for a seed; longer than usual for that many ``seconds``."""
        end = self.seconds if seconds is None else seconds
        return Driver(*self.groups(), seconds=end, warm_up=self.warm_up, seed=seed).run()

    def broken(self, driver: Driver, *, cut_short: bool = True) -> list[str]:
        """The promises that a run broke."""
        healthy, others = driver.seen.get("healthy"), driver.seen.get("others")
        broken = []
        if healthy is not None and len(healthy.waited) < 500:
            broken.append(f"{len(healthy.waited)} healthy orders started")
        if healthy is not None and healthy.p99() > HEALTHY_P99:
            broken.append(f"healthy p99 {healthy.p99() * 1000:.0f} ms")
        if others is not None and others.held < self.held:
            broken.append(f"{others.held:.0f} slots of {self.held:.0f}")
        if others is not None and self.first < 1e9:
            first = max(others.first.values(), default=0.0)
            never = driver.never_started("others")
            if never or first > self.first:
                broken.append(f"first slot after {first:.1f} s, {never} never")
        if others is not None and others.failed > self.failed:
            broken.append(f"{others.failed} calls failed")
        if others is not None and others.p99() > self.p99:
            broken.append(f"p99 {others.p99():.1f} s")
        if others is not None and others.most_at_once() > self.at_once:
            broken.append(f"{others.most_at_once()} start in 0.1 s")
        if others is not None and driver.longest_doubt("others") > self.doubt:
            broken.append(f"{driver.longest_doubt('others'):.0f} s in doubt")
        if others is not None and others.answered < self.answered:
            broken.append(f"{others.answered} answered")
        if cut_short and driver.cut_short > self.cut_short:
            broken.append(f"{driver.cut_short} cut short")
        return broken


def healthy() -> Group:
    """Sixty merchants at 20 ms, 100 orders a second."""
    return Group("healthy", 60, about(0.02), rate=100)


def beside(*others: Group) -> Callable[[], list[Group]]:
    """Those healthy merchants, and others."""
    return lambda: [healthy(), *others]


def slow(
    merchants: int, seconds: float, *, backlog: int = 40, spread: float = 0.2, **more: object
) -> Group:
    """Merchants that take this long and always have orders waiting."""
    reply = about(seconds, spread)
    return Group("others", merchants, reply, backlog=backlog, **{"start": 3.0, **more})  # type: ignore[arg-type]


def hanging(
    merchants: int, rate: float, *, provider: str | None = None, at: float = STRIKE
) -> Group:
    """Merchants at 0.2 s that stop answering all at once."""
    return Group("others", merchants, hangs_from(at, about(0.2)), rate=rate, provider=provider)


def _alternating(random: Random, now: float) -> float:
    return random.uniform(0.8, 1.2) * (0.05 if now % 10 < 5 else 2.5)


def _flapping(_random: Random, now: float) -> float:
    return 1e9 if now >= STRIKE and (now - STRIKE) % 20 < 10 else 0.4


def flaky(seconds: float, share: float) -> Seconds:
    """A reply that takes this long, and never comes in this share of calls, whatever the load."""
    reply = about(seconds)
    return lambda random, now: 1e9 if random.random() < share else reply(random, now)


def _erratic(random: Random, _now: float) -> float:
    return random.lognormvariate(-0.5, 1.0)


def _asks(seconds: float) -> Callable[[int], Answer]:
    return lambda _in_flight: (CallResult.OVERLOADED, seconds)


def _takes(most: int) -> Callable[[int], Answer]:
    return lambda in_flight: (
        CallResult.ANSWERED if in_flight <= most else CallResult.OVERLOADED,
        None,
    )


ADVERSARIES = [
    Adversary("none", lambda: [healthy()]),
    Adversary("40 at 2.5 s", beside(slow(40, 2.5)), held=120, first=1),
    Adversary("100 at 1 s", beside(slow(100, 1)), held=120, first=1),
    Adversary(
        "40 at 2.5 s, in step", beside(slow(40, 2.5, spread=0.0)), held=120, first=1, at_once=20
    ),
    Adversary(
        "100 at 1 s, in step", beside(slow(100, 1, spread=0.0)), held=120, first=1, at_once=40
    ),
    Adversary("100 at 0.3 s", beside(slow(100, 0.3)), held=120, first=1),
    Adversary("300 at 2.9 s", beside(slow(300, 2.9)), held=120, first=360 * 2.9 / 200),
    Adversary(
        "500 at 1 s, one each", beside(slow(500, 1, limit=1, backlog=5)), held=120, first=2.8
    ),
    Adversary(
        "20 at 2 s, a limit of 50",
        beside(slow(20, 2, limit=50, backlog=100)),
        held=120,
        first=1,
        cut_short=12,
    ),
    Adversary(
        "1 at 2 s, a limit of 200", beside(slow(1, 2, limit=200, backlog=1000)), held=120, first=1
    ),
    Adversary(
        "100 at 2.5 s of one provider", beside(slow(100, 2.5, provider="x")), held=120, first=2.5
    ),
    Adversary(
        "100 at 1 s, no others",
        lambda: [slow(100, 1)],
        held=190,
        first=1,
        seconds=36.0,
        warm_up=28.0,
    ),
    Adversary("200 at 0.2 s, no others", lambda: [slow(200, 0.2, backlog=10)], held=170),
    Adversary(
        "a rate just over what 100 at 1 s take",
        beside(Group("others", 100, about(1), rate=210, start=3.0)),
        held=120,
        first=1,
        seconds=36.0,
        warm_up=22.0,
    ),
    Adversary(
        "100 that are quick and slow in turn",
        beside(Group("others", 100, _alternating, backlog=40, start=3.0)),
        held=120,
        first=1,
        cut_short=1200,
    ),
    Adversary(
        "100 that trickle for 9.8 s",
        beside(Group("others", 100, about(9.8, 0.01), backlog=10, start=3.0)),
        held=100,
        cut_short=100,
        seconds=45.0,
        warm_up=25.0,
    ),
    Adversary(
        "300 at 1.5 s, an order each at once",
        beside(Group("others", 300, about(1.5), rate=6, burst_at=60.0)),
        cut_short=10,
        seconds=74.0,
        warm_up=59.9,
    ),
    Adversary(
        "20 at 2 s with a limit of 50 beside 100 at 0.3 s",
        beside(slow(100, 0.3), Group("rivals", 20, about(2), limit=50, backlog=100, start=3.0)),
        held=110,
        cut_short=30,
    ),
    Adversary(
        "429, Retry-After 0",
        beside(Group("others", 100, about(0.02), backlog=10, start=3.0, answer=_asks(0.0))),
        first=1,
    ),
    Adversary(
        "429, Retry-After 3600",
        beside(Group("others", 100, about(0.02), backlog=10, start=3.0, answer=_asks(3600.0))),
        first=1,
    ),
    Adversary(
        "100 of 1,000 hang",
        lambda: [Group("healthy", 900, about(0.2), rate=486), hanging(100, 54)],
        cut_short=150,
    ),
    Adversary(
        "500 of 1,000 hang",
        lambda: [Group("healthy", 500, about(0.2), rate=150), hanging(500, 150)],
        cut_short=600,
    ),
    Adversary(
        "500 of one provider hang",
        lambda: [Group("healthy", 500, about(0.2), rate=150), hanging(500, 150, provider="x")],
        cut_short=20,
    ),
    Adversary(
        "500 of 1,000 hang and recover, of 20 providers",
        lambda: [
            Group("healthy", 500, about(0.4), rate=150, providers=20),
            Group("others", 500, _flapping, rate=150, providers=20),
        ],
        held=80,
        cut_short=240,  # 139 to 203, by the seed
        seconds=54.0,
        warm_up=STRIKE,
    ),
    Adversary(
        "6 at 4 s, a limit of 6",
        lambda: [
            Group("healthy", 54, about(0.2), rate=100),
            Group("others", 6, about(4), rate=30, limit=6),
        ],
        held=35,
    ),
    Adversary(
        "100 at 2.5 s beside 540 orders/s at 0.2 s",
        lambda: [
            Group("healthy", 900, about(0.2), rate=540),
            Group("others", 100, about(2.5), backlog=3, start=10.0),
        ],
        held=50,
        cut_short=60,
        seconds=26.0,
        warm_up=9.0,
    ),
    Adversary(
        "500 hang, and the worker has just started",
        lambda: [Group("healthy", 500, about(0.2), rate=150), hanging(500, 150, at=-1.0)],
        cut_short=600,
        seconds=20.0,
        warm_up=0.0,
    ),
    Adversary(
        "a busy one beside 100 that hang",
        lambda: [
            Group("healthy", 200, about(0.2), rate=100),
            Group("others", 1, about(0.2), rate=100, limit=40),
            Group("hanging", 100, hangs_from(STRIKE, about(0.2)), rate=100),
        ],
        held=17,
        p99=1.0,
        cut_short=150,
        seconds=32.0,
        warm_up=STRIKE,
    ),
    Adversary(
        "10 that answer 500 to all",
        beside(
            Group(
                "others",
                10,
                about(0.1),
                backlog=100,
                start=3.0,
                answer=lambda _: (CallResult.FAILED, None),
            )
        ),
        failed=300,
    ),
    Adversary(
        "10 that take 3 at once, and are agreed to take 10",
        beside(Group("others", 10, about(0.2), rate=100, start=3.0, answer=_takes(3))),
        failed=1000,
    ),
    Adversary(
        "100 at 1 s on average, some at 10 s",
        beside(Group("others", 100, _erratic, backlog=40, start=3.0, timeout=30.0)),
        held=120,
        first=1,
        cut_short=60,
    ),
    Adversary(
        "40 at 2.5 s beside 100 that are dead",
        beside(
            slow(40, 2.5), Group("dead", 100, hangs_from(10.0, about(0.2)), backlog=20, start=3.0)
        ),
        held=120,
        cut_short=300,
        seconds=40.0,
        warm_up=25.0,
    ),
    Adversary(
        "2 with three times the orders that they take, and some in doubt",
        beside(
            Group(
                "others", 2, flaky(0.5, 0.1), limit=1, rate=12, lasts=20.0, timeout=4.0, start=3.0
            )
        ),
        doubt=20.0,
        answered=100,
        seconds=120.0,
    ),
    Adversary(
        "5 that time out in every fourth call, whatever the load",
        beside(Group("others", 5, flaky(1.0, 0.25), rate=15, lasts=30.0, timeout=4.0, start=3.0)),
        answered=900,
        seconds=120.0,
    ),
    Adversary(
        "2 whose look-ups hang",
        beside(
            Group(
                "others",
                2,
                flaky(0.2, 0.1),
                limit=1,
                rate=12,
                lasts=20.0,
                timeout=4.0,
                start=3.0,
                look_up=lambda _random, _now: 1e9,
            )
        ),
        answered=300,
        seconds=300.0,  # fewer strays with the seed
    ),
]
