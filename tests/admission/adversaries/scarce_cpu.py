"""A worker with a part of a core: ``python -m tests.admission.adversaries.scarce_cpu``.

Healthy merchants as in ``table.py``, fewer orders. Latency is from an order's arrival in the queue until its
request is sent. Without a rule at least one of the adversaries succeeds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from math import inf
from statistics import median
from typing import Any
from unittest.mock import PropertyMock, patch

from pos_gateway.admission import cpu, lane, room
from pos_gateway.admission.admission import Admission
from pos_gateway.admission.arrivals import Arrivals
from pos_gateway.admission.cpu import Cpu
from pos_gateway.admission.parking import ParkingQueue
from pos_gateway.admission.scheduler import Scheduler
from tests.admission.adversaries import core
from tests.admission.adversaries.core import END, READ, START
from tests.admission.adversaries.driver import Driver, Group, about, hangs_until
from tests.admission.adversaries.table import slow

#: Healthy orders a second, and milliseconds that others may add to their p99, by the part of a core.
CORES = {0.25: (20, 100), 0.5: (40, 50), 1.0: (100, 20)}
#: Seconds after the start at which others come, from which is measured, and of the whole run; orders that were
#: there before are parked by then.
COME, FROM, UNTIL = 8.0, 24.0, 38.0
#: When merchants that hang answer again: by then 9,000 orders are parked.
BACK = 44.0
#: The seeds of runs of which the middle one counts.
SEEDS = range(1, 8)
#: Milliseconds of their p99 while no others have orders.
UNDISTURBED = 5


@dataclass(frozen=True)
class Scene:
    """A part of a core, and others with a backlog."""

    name: str
    others: Callable[[], list[Group]]
    cores: float = 0.5
    #: The part of the CPU that healthy orders leave, which others get at least; 0: they have too few.
    share: float = 0.6
    #: Milliseconds that others may add to the p99, beyond those of ``CORES``.
    added: float = 0.0
    #: Since when events are behind.
    events_from: float = inf
    seed: int = 1
    #: Seconds from which is measured, and of the whole run.
    start: float = FROM
    end: float = UNTIL
    #: Seconds to park an order, or to unpark it.
    parked: float = core.PARKED
    #: Healthy merchants.
    healthy: int = 60
    #: Whether no healthy merchant has orders: others get all of the CPU, and none of their orders is parked.
    alone: bool = False

    @property
    def rate(self) -> float:
        """Healthy orders a second."""
        return 0 if self.alone else CORES[self.cores][0]

    @property
    def left(self) -> float:
        """Orders a second that the CPU allows beside the healthy ones."""
        return self.cores / (READ + START + END) - self.rate

    def play(self, seed: int = 0) -> Driver:
        groups = [Group("healthy", self.healthy, about(0.02), rate=self.rate), *self.others()]
        options: dict[str, Any] = {"cores": self.cores, "events_from": self.events_from}
        options |= {"warm_up": self.start, "seconds": self.end}
        with patch.object(core, "PARKED", self.parked):
            return Driver(*groups, seed=seed or self.seed, **options).run()

    def broken(self, *drivers: Driver) -> list[str]:
        """The promises that the middle one of these runs broke: a p99 strays by half from seed to seed."""
        others = median(orders(driver, "others") for driver in drivers)
        broken = []
        if others < self.share * self.left:
            broken.append(f"{others:.0f} others' orders/s of {self.left:.0f}")
        if self.alone:
            parked = median(driver.seen["others"].parked for driver in drivers)
            return [*broken, f"{parked:.0f} orders parked"] if parked else broken
        most = UNDISTURBED + CORES[self.cores][1] + self.added
        p99, healthy = median(map(latency, drivers)), median(orders(d, "healthy") for d in drivers)
        if healthy < 0.85 * self.rate:
            broken.insert(0, f"{healthy:.0f} healthy orders/s")
        return [f"p99 {p99:.0f} ms", *broken] if p99 > most else broken


def latency(driver: Driver, part: float = 0.99) -> float:
    """Milliseconds until a healthy order was sent."""
    waited = sorted(driver.seen["healthy"].queued)
    return 1000 * waited[int(len(waited) * part)] if waited else inf


def orders(driver: Driver, name: str) -> float:
    """Orders a second of a group."""
    return len(driver.seen[name].starts) / driver.measured


def _at_once() -> list[Group]:
    return [Group("others", 300, about(1.5), rate=6, burst_at=FROM + 4)]


def _expiring() -> list[Group]:
    lasts = FROM + 2
    return [Group("others", 100, about(inf), limit=0, backlog=50, over=2, lasts=lasts)]


def _before() -> list[Group]:
    """Their backlogs lie in the queue before the worker knows any merchant."""
    return [slow(100, 1, backlog=50, start=0.0)]


def _hanging() -> list[Group]:
    """The worker knows none of the merchants, and none ever answers."""
    return [Group("others", 300, about(inf), backlog=20, start=COME)]


def _returning() -> list[Group]:
    """They hang until all of their orders are parked, and answer then."""
    reply = hangs_until(BACK, about(0.02))
    return [Group("others", 300, reply, backlog=30, comes_once=True)]


def _quick() -> list[Group]:
    return [Group("others", 300, about(0.02), backlog=6, start=COME)]


def _busy() -> list[Group]:
    return [Group("others", 50, about(0.02), backlog=1, start=COME)]


def _alike() -> list[Group]:
    return [Group("others", 200, about(0.02), backlog=60, comes_once=True)]


def _beside_dead() -> list[Group]:
    return [*_alike(), Group("dead", 30, about(inf), backlog=30)]


def _flood() -> list[Group]:
    return [Group("others", 10, about(0.02), rate=200)]


def _beside_events() -> list[Group]:
    return [slow(100, 1, backlog=20, start=COME)]


def _known(merchants: int) -> Callable[[], list[Group]]:
    """Quick merchants whose orders come one by one, until each has six."""
    return lambda: [Group("others", merchants, about(0.02), backlog=6, start=COME, over=12)]


SCENES = [
    Scene("100 at 1 s", lambda: [slow(100, 1, backlog=10, start=COME)], 0.25),
    Scene("100 at 1 s", lambda: [slow(100, 1, backlog=30, start=COME)]),
    Scene("40 at 2.5 s", lambda: [slow(40, 2.5, start=COME)], share=0.55),
    Scene("300 at 20 ms, each with a backlog", _quick, share=0.45, added=50),
    Scene("100 at 20 ms, whose backlogs grow one by one", _known(100)),
    Scene("100 at 1 s, whose backlogs were there before", _before, share=0.55),
    Scene("50 at 20 ms, with an order each at any time", _busy, share=0.9, added=100),
    Scene("100 at 1 s", lambda: [slow(100, 1, backlog=20, start=COME)], 1.0),
    Scene("300 at 20 ms, each with a backlog", _quick, 1.0, share=0.45),
    Scene("100 at 20 ms, whose backlogs grow one by one", _known(100), 1.0),
    Scene("100 at 1 s, and a million events behind", _beside_events, share=0.2, events_from=20.0),
]
AT_ONCE = Scene("300 at 1.5 s, an order each at once", _at_once, share=0.0)
#: They are parked, since their merchants take none.
EXPIRING = Scene("5,000 orders that expire within 2 s", _expiring, share=0.0)
HANGING = Scene("300 that hang, of which none is known", _hanging, share=0.0)
#: Where it costs most of the CPU to look at parked orders, merchants that keep up have several orders at times.
RETURNING = Scene(
    "300 that return, each with 30 orders",
    _returning,
    share=0.3,
    added=150,
    start=BACK - 4,
    end=BACK + 32,
    parked=0.0003,
)
#: All are alike, and so none yields.
ALIKE = [
    Scene(f"200 at 20 ms, each with a backlog, {beside}", others, 1.0, share=0.95, alone=True)
    for beside, others in (("and no others", _alike), ("beside 30 that hang", _beside_dead))
]
#: The worker starts in the flood, and has known none of the merchants before.
FLOODS = [
    Scene(
        f"10 at 20 ms, 200 orders/s from the start, beside {healthy} healthy",
        _flood,
        share=0.4,
        added=250,
        start=20,
        end=80,
        healthy=healthy,
    )
    for healthy in (60, 2000)
]
_HALF, _QUICK, _BEFORE, _BUSY, _WHOLE = SCENES[1], SCENES[3], *SCENES[5:8]

Patch = Callable[[], AbstractContextManager[Any]]
_WAIT = Cpu.wait.fget  # type: ignore[attr-defined]
_UNPARK = Admission.unpark


def _many_in_a_turn(line: Any) -> float:
    line._others.has_turn = True
    return float(_WAIT(line))


def _all_at_once(queue: Any, state: Any, *, few: bool, left: float) -> float:
    return float(min(max(state.shortest, queue._turn(state, few=few)), max(0.0, left)))


def _unnoticed(admission: Any, merchant_id: str, *arguments: Any, **options: Any) -> int:
    own = admission._lane(merchant_id)
    before = own.behind_at
    number = _UNPARK(admission, merchant_id, *arguments, **options)
    own.behind_at = before
    return number


def _answers(admission: Any, merchant_id: str, now: float) -> bool:
    return bool(admission._room.state(admission._lane(merchant_id), now).answers)


#: The rules, how each is switched off, and scenes that break a promise then.
RULES: Mapping[str, tuple[Patch, Sequence[Scene]]] = {
    "others yield while the loop has no time left": (
        partial(patch.object, Cpu, "wait", PropertyMock(return_value=0.0)),
        (_HALF,),
    ),
    "slow merchants yield to the reader": (
        partial(patch.object, Cpu, "is_behind", PropertyMock(return_value=False)),
        (_BEFORE,),
    ),
    "their bundles stay open for longer": (
        partial(patch.object, Admission, "returns_soon", _answers),
        (HANGING,),
    ),
    "they leave a part of the CPU": (
        partial(patch.multiple, cpu, PART=1.0, PART_OF_LESS=1.0),
        (_HALF, _WHOLE),
    ),
    "a merchant whose bundle waits here does not keep up": (
        partial(patch.object, Admission, "unpark", _unnoticed),
        (_QUICK,),
    ),
    "strangers are taken for slow": (
        partial(patch.object, lane, "UNKNOWN_DURATION", room.QUICKEST),
        (HANGING,),
    ),
    "one in a turn": (
        partial(patch.object, Cpu, "wait", property(_many_in_a_turn)),
        (_WHOLE, _QUICK),
    ),
    "merchants that keep up start a few in a turn": (
        partial(patch.object, cpu, "AT_ONCE", inf),
        (_BUSY,),
    ),
    "what is saved up, or owed, is little": (
        partial(patch.multiple, cpu, SAVED=0.5, OWED=0.5),
        (SCENES[0], _BEFORE),
    ),
    "who was behind does not keep up": (
        partial(patch.object, Scheduler, "_was_behind", lambda *_: False),
        (_QUICK,),
    ),
    "a merchant met while messages lie unread is not known to keep up": (
        partial(patch.object, Cpu, "unread_for", PropertyMock(return_value=0.0)),
        ALIKE,
    ),
    "but beside a flood of others": (
        partial(patch.object, Arrivals, "are_few", lambda *_: None),
        FLOODS,
    ),
    "whose merchants kept up before the flood": (
        partial(
            patch.object,
            Scheduler,
            "_few_at",
            property(lambda _: -inf, lambda *_: None),
            create=True,
        ),
        FLOODS[:1],
    ),
    "orders that expired start one in a turn": (
        partial(patch.object, Cpu, "wait_without_slot", PropertyMock(return_value=0.0)),
        (EXPIRING,),
    ),
    "events are hydrated when something is left": (
        partial(patch.object, Cpu, "pause", lambda *_: 0.0),
        SCENES[-1:],
    ),
    "parked orders that expire together return one by one": (
        partial(patch.object, ParkingQueue, "delay", _all_at_once),
        (EXPIRING,),
    ),
    "parked orders that expired come back as fast as others are recorded": (
        partial(patch.object, Cpu, "takes_expired", lambda *_: True),
        (EXPIRING,),
    ),
    "orders return as fast as their merchant starts them": (
        partial(patch.object, room, "_slots_while_scarce", room._slots),
        (_HALF, _QUICK),
    ),
}


def gets_through(rule: str) -> Iterator[str]:
    """The scenes that break a promise without the rule, each with the promise."""
    switch_off, scenes = RULES[rule]
    for scene in scenes:
        with switch_off():
            drivers = [scene.play(seed) for seed in SEEDS]
        if broken := scene.broken(*drivers):
            yield f"{scene.name}, {scene.cores:g} core: {', '.join(broken)}"


def main() -> None:
    """Print both tables."""
    print("| core | beside | healthy p50 / p99, ms | others' orders/s, of what is left |")
    print("|---:|---|---:|---:|")
    alone = [Scene("no others", list, cores, share=0.0) for cores in CORES]
    for scene in sorted(
        [*alone, *SCENES, AT_ONCE, EXPIRING, HANGING, RETURNING, *ALIKE, *FLOODS],
        key=lambda each: each.cores,
    ):
        drivers = [scene.play(seed) for seed in SEEDS]
        p50, p99 = median(latency(each, 0.5) for each in drivers), median(map(latency, drivers))
        healthy = "" if scene.alone else f"{p50:.0f} / {p99:.0f}"
        others = ""
        if scene.share:
            done = median(orders(each, "others") for each in drivers)
            others = f"{done:.0f} of {scene.left:.0f}"
        print(f"| {scene.cores:g} | {scene.name} | {healthy} | {others} |", flush=True)
    print("\n| without | gets through |")
    print("|---|---|")
    for rule in RULES:
        print(f"| {rule} | {'; '.join(gets_through(rule))} |", flush=True)


if __name__ == "__main__":
    main()
