"""Orders, pauses, kills, lost and late syncs, edits and a Redis that loses data, in any order.

The model only counts: calls in flight, and their maximum.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import structlog
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from redis import Redis as Client
from redis.exceptions import ResponseError

from pos_gateway.fleet.coordinator import FleetState
from pos_gateway.fleet.permits import PREFIX
from pos_gateway.fleet.sync import Answer, Report
from tests.fleet.pods import PROMPT, ManualClock, Pod

MERCHANTS = {"one": 1, "few": 3}
#: Redis settles until the machine ends it.
TIMING = replace(PROMPT, settle=3600.0, lease=3600.0, beat=0.5, idle=20.0)
#: Redis's clock, for the script: every second sync is in the millisecond of the one before.
TICKS = "ticks"
REDIS_TIME = "redis.call('TIME')"
TICKING = f"{{ 1e6, redis.call('INCR', '{TICKS}') * 500 }}"
which = st.integers(0, 100)
merchants = st.sampled_from(sorted(MERCHANTS))


class Fate:
    """The fate of a pod's next sync; and the delayed ones."""

    def __init__(self, pod: Pod, answered: Callable[[Pod], None]) -> None:
        self.next = "well"
        self._answered = answered
        #: What the pod does before Redis has the sync, and again before the reply.
        self.meanwhile: Callable[[], None] = lambda: None
        self.late: list[dict[str, Any]] = []
        self._pod = pod
        self._sync = pod.permits.sync
        script = pod.permits._share.script
        assert REDIS_TIME in script
        self.share = pod.permits._client.register_script(script.replace(REDIS_TIME, TICKING))
        pod.permits._share = self.share
        pod.permits.sync = self.sync  # type: ignore[method-assign]
        pod.coordinator._permits = pod.permits

    def sync(self, report: Report) -> Answer:
        fate, self.next = self.next, "well"
        if fate == "well":
            self.meanwhile()
            answer = self._sync(report)
            self.meanwhile()
            self._answered(self._pod)
            return answer
        permits = self._pod.permits
        try:
            permits._share = self._keep if fate == "late" else self._lose  # type: ignore[assignment]
            return self._sync(report)
        finally:
            permits._share = self.share

    def _lose(self, **call: Any) -> object:
        self.share(**call)
        raise ResponseError("the answer was lost")

    def _keep(self, **call: Any) -> object:
        self.late.append(call)
        raise ResponseError("it is on its way yet")


class FleetMachine(RuleBasedStateMachine):
    """Up to four pods, one Redis."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.client = Client.from_url(self.url)
        self.client.flushall()
        self.client.set(f"{PREFIX}known", "1")
        self.limits = dict(MERCHANTS)
        self.number = 0
        self.pods: list[Pod] = []
        self.fates: dict[Pod, Fate] = {}
        self.dead: list[Pod] = []
        #: Pods that have reported their permits since Redis lost its data.
        self.reported: set[Pod] = set()
        #: Calls in flight when their pod's lease expired: other pods may have their permits.
        self.floors: dict[tuple[Pod, str], int] = {}
        #: The highest limit that permits may have been granted under.
        self.granted_under = dict(MERCHANTS)
        for _ in range(2):
            self.start_a_pod()

    @precondition(lambda self: len(self.pods) < 4)
    @rule()
    def start_a_pod(self) -> None:
        self.number += 1
        pod = Pod(
            self.url,
            timing=TIMING,
            clock=ManualClock(),
            limits=dict(self.limits),
            name=f"pod-{self.number}",
        )
        self.pods.append(pod)
        self.fates[pod] = Fate(pod, self._answered)

    @rule(who=which, merchant=merchants, orders=st.integers(1, 4))
    def submit(self, who: int, merchant: str, orders: int) -> None:
        self._pod(who).submit(merchant, orders)

    @rule(who=which, merchant=merchants)
    def finish(self, who: int, merchant: str) -> None:
        pod = self._pod(who)
        if pod.running(merchant):
            pod.finish(merchant)

    @rule(who=which, seconds=st.sampled_from([0.0, 0.1, 0.5, 10.0, 20.0]))
    def step(self, who: int, seconds: float) -> None:
        pod = self._pod(who)
        pod.clock.sleep(seconds)
        pod.step()

    @rule(who=which, fate=st.sampled_from(["lost", "late"]))
    def step_in_trouble(self, who: int, fate: str) -> None:
        pod = self._pod(who)
        self.fates[pod].next = fate
        pod.beat()
        self.fates[pod].next = "well"

    @rule(who=which, merchant=merchants, orders=st.integers(0, 3), ended=st.integers(0, 3))
    def step_while_orders_come_and_go(
        self, who: int, merchant: str, orders: int, ended: int
    ) -> None:
        pod = self._pod(who)

        def meanwhile() -> None:
            pod.submit(merchant, orders)
            pod.finish(merchant, min(ended, pod.running(merchant)))

        self.fates[pod].meanwhile = meanwhile
        pod.clock.sleep(20)
        pod.step()
        self.fates[pod].meanwhile = lambda: None

    @rule(who=which)
    def deliver_late(self, who: int) -> None:
        fates = [self.fates[pod] for pod in (*self.pods, *self.dead) if self.fates[pod].late]
        if fates:
            fate = fates[who % len(fates)]
            try:
                fate.share(**fate.late.pop(0))
            except ResponseError as error:
                assert "OVERTAKEN" in str(error)

    @rule(who=which)
    def pause_beyond_the_lease(self, who: int) -> None:
        pod = self._pod(who)
        self._pause(pod, TIMING.lease)

    @rule(who=which)
    def pause_twice_and_lose_the_lease_in_a_sync(self, who: int) -> None:
        """Neither pause is long enough to be noticed by itself."""
        pod = self._pod(who)
        pauses = [TIMING.lease / 2]

        def meanwhile() -> None:
            if pauses:
                self._pause(pod, pauses.pop())

        self.fates[pod].meanwhile = meanwhile
        pod.clock.sleep(TIMING.lease * 0.6)
        pod.step()
        self.fates[pod].meanwhile = lambda: None

    @precondition(lambda self: len(self.pods) > 1)
    @rule(who=which)
    def kill(self, who: int) -> None:
        self.dead.append(self.pods.pop(who % len(self.pods)))

    @rule()
    def leases_of_the_dead_end(self) -> None:
        for pod in self.dead:
            self._end_lease(pod)

    @rule(merchant=merchants, limit=st.integers(0, 4))
    def edit(self, merchant: str, limit: int) -> None:
        self.limits[merchant] = limit
        self.granted_under[merchant] = max(self.granted_under[merchant], limit)

    @rule(who=which)
    def hear_of_edits(self, who: int) -> None:
        pod = self._pod(who)
        pod.admission.limits.update(self.limits)
        for merchant in MERCHANTS:
            pod.coordinator.short(merchant)

    @rule()
    def redis_forgets(self) -> None:
        ticks = self.client.get(TICKS) or 0
        self.client.flushall()
        self.client.set(TICKS, ticks)
        self.reported.clear()

    @rule()
    def redis_has_settled(self) -> None:
        if all(pod in self.reported for pod in self.pods):
            self.client.delete(f"{PREFIX}settling")
            self.client.hdel(f"{PREFIX}leases", "")

    @rule()
    def all_is_served_in_the_end(self) -> None:
        """From any state, once nothing more fails."""
        self.limits = {merchant: max(1, limit) for merchant, limit in self.limits.items()}
        for pod in self.pods:
            pod.admission.limits.update(self.limits)
        self._beat_all(3)
        for _ in range(2):  # after a slow sync a pod spares Redis, for a lease at most
            for pod in self.pods:
                pod.clock.sleep(TIMING.lease / 2)
                pod.step()
        self.leases_of_the_dead_end()
        self.dead.clear()
        self.client.delete(f"{PREFIX}settling")
        self.client.hdel(f"{PREFIX}leases", "")
        self._beat_all(3)
        self._check_counts()
        for _ in range(200):
            if not any(pod.admission.lane(m).waiting for pod in self.pods for m in MERCHANTS):
                break
            for pod in self.pods:
                for merchant in MERCHANTS:
                    pod.finish(merchant, pod.running(merchant))
            self._beat_all(1)
            self._check_counts()
        else:
            raise AssertionError("orders wait for ever")
        self._beat_all(3)
        for merchant, limit in self.limits.items():
            # No older permits are left: from here on the current limit counts.
            self.granted_under[merchant] = max(limit, self._running(merchant))
            assert self._held(merchant) <= max(limit, self._running(merchant))

    @invariant()
    def never_more_than_the_limit(self) -> None:
        self._check_counts()

    def teardown(self) -> None:
        for pod in (*self.pods, *self.dead):
            pod.permits.close()
        self.client.close()

    def _check_counts(self) -> None:
        self._note_who_is_alone()
        for merchant in MERCHANTS:
            floors = 0
            for (pod, of), floor in self.floors.items():
                if of == merchant and pod in self.pods:
                    self.floors[pod, of] = min(floor, pod.running(merchant))
                    floors += self.floors[pod, of]
            may_run = sum(self._may_run(pod, merchant) for pod in self.pods)
            assert may_run <= self.granted_under[merchant] + floors

    def _answered(self, pod: Pod) -> None:
        self.reported.add(pod)
        # Orders that started alone, before the pod joins in the same step.
        self._note_who_is_alone()

    def _note_who_is_alone(self) -> None:
        for pod in self.pods:
            if pod.coordinator.state is FleetState.ALONE:
                for merchant in MERCHANTS:
                    self.floors[pod, merchant] = pod.running(merchant)

    def _may_run(self, pod: Pod, merchant: str) -> int:
        """The calls in flight, and those that would be if there were orders."""
        allotted = pod.allotted(merchant)
        if allotted is None or not pod.admission.may_start():
            return pod.running(merchant)
        return max(pod.running(merchant), min(allotted, pod.admission.limits[merchant]))

    def _running(self, merchant: str) -> int:
        return sum(pod.running(merchant) for pod in self.pods)

    def _held(self, merchant: str) -> int:
        total = 0
        for pod in self.pods:
            record = self.client.hget(f"{PREFIX}pod:{pod.permits.pod}", f"={merchant}")
            if record:
                permits, in_flight, *_ = map(int, record.split())
                total += max(permits, in_flight)
        return total

    def _beat_all(self, number: int) -> None:
        for _ in range(number):
            self._note_who_is_alone()
            for pod in self.pods:
                pod.beat()

    def _pause(self, pod: Pod, seconds: float) -> None:
        self._end_lease(pod)
        pod.clock.sleep(seconds)
        for merchant in MERCHANTS:
            self.floors[pod, merchant] = pod.running(merchant)
        for other in self.pods:
            if other is not pod:
                for merchant, limit in MERCHANTS.items():
                    other.submit(merchant, limit)  # so that other pods have its permits by now
                other.beat()

    def _end_lease(self, pod: Pod) -> None:
        self.client.delete(f"{PREFIX}pod:{pod.permits.pod}")
        self.client.hdel(f"{PREFIX}leases", pod.permits.pod)

    def _pod(self, who: int) -> Pod:
        return self.pods[who % len(self.pods)]


FleetMachine.TestCase.settings = hypothesis_settings(
    max_examples=int(os.environ.get("EXAMPLES", "40")), stateful_step_count=60, deadline=None
)


class TestTheFleetAsAWhole(FleetMachine.TestCase):  # type: ignore[name-defined, misc]
    @pytest.fixture(autouse=True)
    def _redis(self, redis_server_url: str) -> Any:
        FleetMachine.url = redis_server_url
        config = structlog.get_config()
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
        yield
        structlog.configure(**config)
