"""A Redis that fails, recovers, or lost its data; and pods that were paused."""

from dataclasses import replace
from typing import Any

import pytest
from redis import Redis as Client
from redis.exceptions import ResponseError
from structlog.testing import capture_logs

from pos_gateway.domain.errors import FleetUnavailable
from pos_gateway.fleet.coordinator import FleetState
from pos_gateway.fleet.permits import PREFIX
from pos_gateway.fleet.sync import Answer, Ask, Report
from testkit.servers.redis import Redis
from tests.fleet.pods import PROMPT, Pod, beats, end_settling, expire, held, start

CAUTIOUS = replace(PROMPT, settle=2.0)


def test_without_redis_each_pod_goes_on_alone_and_rejoins(redis: Redis, redis_url: str) -> None:
    pods = start(redis_url, 2, a=4)
    for pod in pods:
        pod.submit("a", 20)
    beats(pods, 2)
    assert sum(pod.running("a") for pod in pods) == 4
    redis.kill()

    beats(pods, 13)
    assert sum(pod.running("a") for pod in pods) == 4  # they rely on their leases
    with capture_logs() as logs:
        beats(pods)
    assert [entry["event"] for entry in logs] == ["fleet.lost", "fleet.lost"]
    assert [pod.running("a") for pod in pods] == [4, 4]
    pods[0].submit("new", 3)
    pods[0].step()
    assert pods[0].running("new") == 3

    redis.start()
    with capture_logs() as logs:
        beats(pods, 12)
    assert [entry["event"] for entry in logs] == ["fleet.joined", "fleet.joined"]
    assert [pod.running("a") for pod in pods] == [4, 4]  # no call is cut short
    assert sum(pod.allotted("a") for pod in pods) <= 4  # and no pod has lost its allotment
    assert held(redis_url, "a") == 8
    for _ in range(3):
        for pod in pods:
            pod.finish("a", min(2, pod.running("a")))
        beats(pods, 3)
    assert sum(pod.running("a") for pod in pods) == 4
    assert held(redis_url, "a") == 4


@pytest.mark.parametrize(
    "lost", [("pod:{pod}",), ("pods",), ("leases",), ("settling", "pod:{pod}"), ("known", "leases")]
)
def test_a_redis_that_evicts_any_key_does_not_exceed_a_limit(
    redis_url: str, lost: tuple[str, ...]
) -> None:
    pods = start(redis_url, 4, timing=CAUTIOUS, a=10)
    end_settling(redis_url)
    for pod in pods[:2]:
        pod.submit("a", 20)
    beats(pods, 1)
    end_settling(redis_url)
    beats(pods, 3)
    assert sum(pod.running("a") for pod in pods) == 10
    with Client.from_url(redis_url) as client:
        for key in lost:
            client.delete(PREFIX + key.format(pod=pods[0].permits.pod))
    for pod in (pods[3], pods[2], pods[1], pods[3], pods[0], pods[2]):
        pod.submit("a", 5)
        pod.step()
        assert sum(pod.running("a") for pod in pods) <= 10
    beats(pods, 3)
    assert sum(pod.running("a") for pod in pods) == 10


def test_a_redis_whose_clock_was_set_back_grants_again_within_a_lease(redis_url: str) -> None:
    """By an operator, or since a replica with another clock has taken over."""
    (pod,) = start(redis_url, 1, a=4)
    end_settling(redis_url)
    leases = f"{PREFIX}leases"
    with Client.from_url(redis_url) as client:
        hour, lease = 3_600_000, PROMPT.lease * 1000
        seconds, _ = client.time()
        ahead = seconds * 1000 + hour
        client.hset(leases, mapping={"": ahead, "a pod that is gone": ahead})
        pod.step()
        seconds, _ = client.time()
        latest = (seconds + 1) * 1000 + lease
        assert all(float(till) <= latest for till in client.hvals(leases))


def test_a_pod_that_starts_without_redis_goes_alone_as_well(redis: Redis, redis_url: str) -> None:
    redis.kill()
    (pod,) = start(redis_url, 1, a=4)
    pod.submit("a", 5)
    beats([pod], 14)

    assert pod.coordinator.state is FleetState.ALONE
    assert pod.running("a") == 4


def test_alone_a_merchant_without_orders_is_forgotten(redis: Redis, redis_url: str) -> None:
    redis.kill()
    (pod,) = start(redis_url, 1, a=4, b=4)
    pod.submit("a", 1)
    pod.submit("b", 1)
    beats([pod], 14)
    pod.finish("a")
    assert pod.allotted("a") is None
    for _ in range(4):
        pod.clock.sleep(pod.timing.idle)
        pod.step()

    assert pod.allotted("a") == 0
    assert pod.allotted("b") is None
    pod.submit("a", 1)
    pod.step()
    assert pod.running("a") == 1


def test_redis_restarted_empty_grants_nothing_that_pods_may_hold(
    redis: Redis, redis_url: str
) -> None:
    pods = start(redis_url, 2, a=6)
    pods[0].submit("a", 4)
    pods[1].submit("a", 2)
    beats(pods, 2)
    redis.kill()
    redis.start()
    newcomer = Pod(redis_url, timing=CAUTIOUS, clock=pods[0].clock, limits={"a": 6})

    newcomer.submit("a", 6)  # it syncs first, before the pods that hold all permits
    for _ in range(3):
        newcomer.beat()
    assert newcomer.running("a") == 0
    with capture_logs() as logs:
        beats(pods)
    assert {entry["event"] for entry in logs} == {"fleet.forgotten"}
    assert held(redis_url, "a") == 6
    assert [pod.running("a") for pod in pods] == [4, 2]

    everybody = [*pods, newcomer]
    pods[0].finish("a")
    beats(everybody, 3)
    assert newcomer.running("a") == 0
    end_settling(redis_url)
    beats(everybody, 3)
    assert newcomer.running("a") == 1
    assert held(redis_url, "a") <= 6


def test_an_empty_redis_waits_before_it_grants_the_first_permits(redis_url: str) -> None:
    (pod,) = start(redis_url, 1, timing=CAUTIOUS, a=3)
    pod.submit("a", 3)
    beats([pod], 3)
    assert pod.running("a") == 0

    end_settling(redis_url)
    pod.clock.sleep(pod.timing.pulse)
    pod.step()
    assert pod.running("a") == 3
    other = Pod(redis_url, timing=CAUTIOUS, limits={"b": 3})
    other.submit("b", 3)
    other.step()
    assert other.running("b") == 3  # this Redis is known


def test_redis_that_lost_its_newest_writes_grants_nothing_that_pods_may_hold(
    redis_url: str,
) -> None:
    pods = start(redis_url, 2, a=6)
    pods[0].submit("a", 6)
    beats(pods)
    # A promoted replica that lacked the last syncs.
    with Client.from_url(redis_url) as client:
        key = f"{PREFIX}pod:{pods[0].permits.pod}"
        client.hdel(key, "=a")
        client.hincrby(key, "#", -1)
    beats(pods)
    pods[1].submit("a", 6)
    beats(pods, 4)

    assert [pod.running("a") for pod in pods] == [6, 0]
    assert held(redis_url, "a") == 6


def test_a_pod_that_was_paused_starts_no_order_before_a_sync(redis_url: str) -> None:
    pods = start(redis_url, 2, a=4)
    pods[0].submit("a", 4)
    pods[0].step()
    pods[0].finish("a", 2)
    paused, other = pods
    paused.clock = paused.coordinator._clock = type(paused.clock)()
    expire(redis_url, paused)
    other.submit("a", 4)
    beats([other])
    assert other.running("a") == 4

    paused.clock.sleep(paused.timing.lease * 3)
    assert not paused.coordinator.may_start(paused.clock.monotonic())
    paused.submit("a", 2)
    assert paused.running("a") == 2  # no others than before
    with capture_logs() as logs:
        paused.step()
    assert [entry["event"] for entry in logs] == ["fleet.lapsed", "fleet.joined"]
    assert paused.coordinator.may_start(paused.clock.monotonic())
    for _ in range(3):
        paused.beat()
        assert paused.running("a") == 2  # they were in flight before
    assert held(redis_url, "a") == 6
    other.finish("a", 3)
    for _ in range(3):
        other.beat()
        paused.beat()
    paused.finish("a", 2)
    for _ in range(3):
        other.beat()
        paused.beat()
    assert paused.running("a") == 2
    assert held(redis_url, "a") <= 4


def test_a_pod_that_was_paused_during_an_outage_retries_before_it_goes_alone(
    redis: Redis, redis_url: str
) -> None:
    (pod,) = start(redis_url, 1, a=4)
    pod.submit("a", 2)
    pod.step()
    redis.kill()
    beats([pod], 2)
    redis.start()
    pod.clock.sleep(pod.timing.lease)
    pod.step()
    assert pod.coordinator.state is FleetState.TOGETHER

    redis.kill()
    pod.clock.sleep(pod.timing.lease)
    beats([pod], 2)
    assert pod.coordinator.state is FleetState.ALONE


def test_an_answer_from_before_a_pause_is_not_believed(redis_url: str) -> None:
    (pod,) = start(redis_url, 1, a=4)
    pod.submit("a", 1)
    pod.step()
    sync, pauses = pod.permits.sync, [pod.timing.lease]

    def slow_sync(report: Report) -> Answer:
        answer = sync(report)
        if pauses:
            pod.clock.sleep(pauses.pop())
            expire(redis_url, pod)
        return answer

    pod.coordinator._permits.sync = slow_sync  # type: ignore[method-assign]
    pod.submit("a", 3)
    pod.step()
    assert pod.allotted("a") == 0
    assert pod.running("a") == 1
    pod.step()
    assert pod.running("a") == 4


def test_a_pod_whose_lease_expired_before_its_sync_holds_no_permit(redis_url: str) -> None:
    """It was paused twice: each time for less than a lease, the second time in a sync."""
    pod, other = (start(redis_url, 1, a=4)[0] for _ in range(2))
    pod.submit("a", 8)
    pod.step()
    sync = pod.permits.sync

    def sync_late(report: Report) -> Answer:
        pod.coordinator._permits.sync = sync  # type: ignore[method-assign]
        pod.clock.sleep(pod.timing.lease / 2)
        expire(redis_url, pod)
        other.submit("a", 4)
        other.step()
        return sync(report)

    pod.coordinator._permits.sync = sync_late  # type: ignore[method-assign]
    pod.clock.sleep(pod.timing.lease * 0.6)
    pod.step()
    beats([pod], 2)
    assert (pod.running("a"), other.running("a")) == (4, 4)  # calls in flight are not cut short
    assert held(redis_url, "a") == 8
    pod.finish("a", 4)
    beats([pod], 2)

    assert (pod.running("a"), other.running("a")) == (0, 4)


def test_after_a_pause_in_a_sync_permits_are_requested_again_within_a_lease(redis_url: str) -> None:
    """The pause looks like a slow Redis, which is to be spared."""
    pods = start(redis_url, 2, a=1)
    pods[0].submit("a", 1)
    pods[0].step()
    sync = pods[1].permits.sync

    def sync_slowly(report: Report) -> Answer:
        pods[1].coordinator._permits.sync = sync  # type: ignore[method-assign]
        pods[1].clock.sleep(pods[1].timing.trust * 0.9)
        return sync(report)

    pods[1].coordinator._permits.sync = sync_slowly  # type: ignore[method-assign]
    pods[1].submit("a", 1)
    pods[1].step()
    pods[0].finish("a")
    beats(pods, int(pods[0].timing.lease / pods[0].timing.beat))

    assert pods[1].running("a") == 1


def test_a_late_sync_changes_nothing(redis_url: str) -> None:
    """It reaches Redis after the next one: the pod had given it up."""
    pods = start(redis_url, 2, a=4)
    pods[0].submit("a", 4)
    pods[0].step()
    pods[0].permits._sequence -= 1

    with pytest.raises(FleetUnavailable, match="OVERTAKEN"):
        pods[0].permits.sync(Report([Ask("a", 0, 0, 0, 4)]))
    assert held(redis_url, "a") == 4


def test_a_lost_reply_loses_no_permits(redis_url: str) -> None:
    pods = start(redis_url, 2, a=4)
    pods[0].step()
    sync = pods[0].permits.sync

    def lose(report: Report) -> Answer:
        sync(report)
        raise FleetUnavailable("the answer was lost")

    pods[0].coordinator._permits.sync = lose  # type: ignore[method-assign]
    pods[0].submit("a", 4)
    pods[0].step()
    assert pods[0].running("a") == 0
    assert held(redis_url, "a") == 4
    pods[0].coordinator._permits.sync = sync  # type: ignore[method-assign]
    lane = pods[0].admission.lane("a")
    lane.waiting = 0  # they went elsewhere
    beats(pods, 2)
    assert held(redis_url, "a") == 0
    pods[1].submit("a", 4)
    beats(pods, 2)

    assert pods[1].running("a") == 4


def test_a_lost_reply_after_a_data_loss_hides_no_permits(redis_url: str) -> None:
    pods = start(redis_url, 2, a=4, b=4)
    for merchant in "ab":
        pods[0].submit(merchant, 4)
    pods[0].step()
    with Client.from_url(redis_url) as client:
        client.flushall()
    share = pods[0].permits._share

    def lose(**call: Any) -> None:
        share(**call)
        raise ResponseError("the answer was lost")

    pods[0].permits._share = lose  # type: ignore[assignment]
    beats(pods[:1])
    pods[0].permits._share = share
    beats(pods[:1], 2)

    assert held(redis_url, "a") == held(redis_url, "b") == 4


def test_a_rejoining_pod_does_not_wait_for_a_redis_that_fails_again(
    redis: Redis, redis_url: str
) -> None:
    (pod,) = start(redis_url, 1, a=4)
    pod.submit("a", 2)
    redis.kill()
    beats([pod], 14)
    assert pod.coordinator.state is FleetState.ALONE
    redis.start()
    sync = pod.permits.sync

    def only_knocks(report: Report) -> Answer:
        if report.asks:
            raise FleetUnavailable("gone again")
        return sync(report)

    pod.coordinator._permits.sync = only_knocks  # type: ignore[method-assign]
    beats([pod], 12)
    assert pod.coordinator.state is FleetState.ALONE
    pod.submit("a", 2)
    assert pod.running("a") == 4


def test_pods_report_all_their_permits_to_a_restarted_redis(redis: Redis, redis_url: str) -> None:
    (pod,) = start(redis_url, 1)
    merchants = [f"m{number}" for number in range(1200)]
    for merchant in merchants:
        pod.submit(merchant)
    pod.step()
    redis.kill()
    redis.start()
    beats([pod], 2)

    with Client.from_url(redis_url) as client:
        assert client.hlen(f"{PREFIX}pod:{pod.permits.pod}") == 1202
