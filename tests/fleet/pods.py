"""Pods as objects: a simple admission, a clock that the test sets, and a coordinator to step."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

from redis import Redis

from pos_gateway.admission.lane import Demand
from pos_gateway.fleet.coordinator import Coordinator
from pos_gateway.fleet.permits import PREFIX, RedisPermits
from pos_gateway.fleet.sync import SyncTiming
from pos_gateway.runtime.clock import Clock

#: No grace on an empty Redis and no turns, so that a test need not wait for Redis's clock.
PROMPT = SyncTiming(settle=0.0, turn=0.0)


class ManualClock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def monotonic(self) -> float:
        return self.seconds

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.seconds, UTC)

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


@dataclass(slots=True)
class FakeLane:
    """One merchant in one pod."""

    limit: int
    allotted: int | None = 0
    in_flight: int = 0
    waiting: int = 0
    most: int = 0


@dataclass
class FakeAdmission:
    """Starts orders within its allotment, and asks for permits, as the real admission does."""

    limits: dict[str, int] = field(default_factory=lambda: defaultdict(lambda: 10))
    lanes: dict[str, FakeLane] = field(default_factory=dict)
    short: Callable[[str], None] = lambda _merchant: None
    #: Whether allotments are valid: a worker that was paused starts nothing, as its dispatcher
    #: does.
    may_start: Callable[[], bool] = lambda: True
    #: For how many seconds each open breaker was to be open when it was reported.
    breakers: dict[str, float] = field(default_factory=dict)

    def lane(self, merchant_id: str) -> FakeLane:
        if merchant_id not in self.lanes:
            self.lanes[merchant_id] = FakeLane(self.limits[merchant_id])
        return self.lanes[merchant_id]

    def demand(self, merchant_id: str) -> Demand:
        lane = self.lane(merchant_id)
        lane.limit = self.limits[merchant_id]
        return Demand(lane.limit, lane.in_flight, lane.waiting)

    def allot(self, merchant_id: str, permits: int | None) -> None:
        self.lane(merchant_id).allotted = permits

    def open_breaker(self, merchant_id: str, seconds: float) -> None:
        self.breakers[merchant_id] = seconds

    def close_breaker(self, merchant_id: str) -> None:
        self.breakers.pop(merchant_id, None)

    def start_what_may(self) -> None:
        if not self.may_start():
            return
        for merchant_id, lane in self.lanes.items():
            lane.limit = self.limits[merchant_id]
            allotted = lane.limit if lane.allotted is None else lane.allotted
            room = max(0, min(lane.limit, allotted) - lane.in_flight)
            started = min(lane.waiting, room)
            lane.in_flight += started
            lane.waiting -= started
            lane.most = max(lane.most, lane.in_flight)
            if lane.waiting and lane.in_flight < lane.limit:
                self.short(merchant_id)


class Pod:
    """One pod of a fleet; the test steps it.

    It is patient with Redis, however busy the machine; where Redis is silent, pass a ``timeout``.
    """

    def __init__(
        self,
        url: str,
        *,
        timing: SyncTiming = PROMPT,
        clock: Clock | None = None,
        limits: dict[str, int] | None = None,
        name: str | None = None,
        timeout: float = 30.0,
    ) -> None:
        self.clock: Any = clock or ManualClock()
        self.permits = RedisPermits(url, timing=timing, pod=name, timeout=timeout)
        self.admission = FakeAdmission()
        self.admission.limits.update(limits or {})
        self.timing = timing
        self.changes = 0
        self.coordinator = Coordinator(
            self.permits,
            cast("Any", self.admission),
            on_change=self._changed,
            timing=timing,
            clock=self.clock,
        )
        self.admission.short = self.coordinator.short
        self.admission.may_start = lambda: self.coordinator.may_start(self.clock.monotonic())
        self.coordinator.begin()

    def _changed(self) -> None:
        self.changes += 1
        self.admission.start_what_may()

    def submit(self, merchant_id: str, orders: int = 1) -> None:
        lane = self.admission.lane(merchant_id)
        if lane.allotted == 0:
            self.coordinator.short(merchant_id)
        lane.waiting += orders
        self.admission.start_what_may()

    def finish(self, merchant_id: str, orders: int = 1) -> None:
        lane = self.admission.lane(merchant_id)
        assert lane.in_flight >= orders
        lane.in_flight -= orders
        self.admission.start_what_may()

    def step(self) -> None:
        self.coordinator.step()

    def beat(self) -> None:
        """Advance by a heartbeat, and do what is due."""
        self.clock.sleep(self.timing.beat)
        self.coordinator.step()

    def running(self, merchant_id: str) -> int:
        return self.admission.lane(merchant_id).in_flight

    def allotted(self, merchant_id: str) -> int | None:
        return self.admission.lane(merchant_id).allotted


def start(url: str, number: int, *, timing: SyncTiming = PROMPT, **limits: int) -> list[Pod]:
    """This many pods of one fleet, on one clock."""
    clock = ManualClock()
    return [Pod(url, timing=timing, clock=clock, limits=limits) for _ in range(number)]


def beats(pods: list[Pod], number: int = 1) -> None:
    """Let this many heartbeats pass for all of them."""
    for _ in range(number):
        pods[0].clock.sleep(pods[0].timing.beat)
        for pod in pods:
            pod.step()


def expire(url: str, pod: Pod) -> None:
    """Expire a pod's lease as Redis does."""
    with Redis.from_url(url) as client:
        assert client.delete(f"{PREFIX}pod:{pod.permits.pod}")
        client.hdel(f"{PREFIX}leases", pod.permits.pod)


def end_settling(url: str) -> None:
    """End Redis's settling time."""
    with Redis.from_url(url) as client:
        client.delete(f"{PREFIX}settling")
        client.hdel(f"{PREFIX}leases", "")


def held(url: str, merchant_id: str) -> int:
    """The permits of a merchant that live pods hold, by Redis's record."""
    with Redis.from_url(url) as client:
        total = 0
        for key in client.scan_iter(f"{PREFIX}pod:*"):
            record = client.hget(key, f"={merchant_id}")
            if record:
                permits, in_flight, *_ = map(int, record.split())
                total += max(permits, in_flight)
        return total
