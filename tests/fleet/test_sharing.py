"""Pods that share a merchant's permits."""

from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis

from pos_gateway.fleet.permits import PREFIX
from pos_gateway.fleet.sync import Answer, Report
from tests.fleet.pods import Pod, beats, expire, held, start


def test_an_order_starts_after_one_sync_and_the_next_ones_without_any(redis_url: str) -> None:
    (pod,) = start(redis_url, 1, a=10)

    pod.submit("a", 3)
    assert pod.running("a") == 0
    pod.step()
    assert pod.running("a") == 3
    pod.finish("a", 3)

    calls = count_calls(redis_url)
    pod.submit("a", 3)
    assert pod.running("a") == 3
    pod.step()
    assert count_calls(redis_url) == calls


def test_changed_demands_go_in_one_round_trip(redis_url: str) -> None:
    (pod,) = start(redis_url, 1)
    pod.step()

    calls = count_calls(redis_url)
    for number in range(100):
        pod.submit(f"merchant-{number}")
    pod.step()

    assert count_calls(redis_url) == calls + 1
    assert sum(pod.running(f"merchant-{number}") for number in range(100)) == 100


def test_pods_that_want_more_than_there_is_get_fair_shares(redis_url: str) -> None:
    pods = start(redis_url, 3, a=10)
    pods[0].submit("a", 50)
    pods[0].step()
    assert pods[0].running("a") == 10

    for pod in pods[1:]:
        pod.submit("a", 50)
    beats(pods, 2)
    assert [pod.running("a") for pod in pods] == [10, 0, 0]  # calls in flight are not cut short
    for _ in range(10):
        for pod in pods:
            if pod.running("a"):
                pod.finish("a")
        beats(pods)
        assert sum(pod.running("a") for pod in pods) <= 10

    assert sorted(pod.running("a") for pod in pods) == [3, 3, 4]


def test_calls_over_a_pods_allotment_free_permits_as_they_end(redis_url: str) -> None:
    pods = start(redis_url, 2, a=4)
    pods[0].submit("a", 4)
    pods[0].step()
    pods[1].submit("a", 4)
    beats(pods, 2)
    assert [pod.running("a") for pod in pods] == [4, 0]
    pods[0].finish("a", 2)

    pods[0].clock.sleep(pods[0].timing.pulse)  # much less than a heartbeat
    for pod in pods:
        pod.step()
    assert [pod.running("a") for pod in pods] == [2, 2]


def test_a_pods_small_demand_is_met_and_the_rest_goes_to_the_others(redis_url: str) -> None:
    pods = start(redis_url, 3, a=10)
    for pod, orders in zip(pods, (1, 50, 50), strict=True):
        pod.submit("a", orders)
    for _ in range(10):
        beats(pods)
        for pod in pods[1:]:
            if pod.running("a"):
                pod.finish("a")
    beats(pods)

    assert pods[0].running("a") == 1
    assert sorted(pod.running("a") for pod in pods[1:]) == [4, 5]


def test_idle_permits_are_returned_when_another_pod_lacks_them(
    redis_url: str,
) -> None:
    pods = start(redis_url, 2, a=10)
    pods[0].submit("a", 10)
    pods[0].step()
    pods[0].finish("a", 10)
    assert pods[0].allotted("a") == 10

    pods[1].submit("a", 6)
    pods[1].step()
    assert pods[1].running("a") == 0
    beats(pods, 2)

    assert pods[1].running("a") == 6
    assert held(redis_url, "a") <= 10


def test_unused_permits_are_returned_after_a_while_and_forgotten(
    redis_url: str,
) -> None:
    (pod,) = start(redis_url, 1, a=10)
    pod.submit("a", 10)
    pod.step()
    pod.finish("a", 10)

    for _ in range(2):
        pod.clock.sleep(pod.timing.idle / 2)
        pod.step()
        pod.clock.sleep(pod.timing.idle / 2)
        pod.step()
    beats([pod], 2)

    assert pod.allotted("a") == 0
    assert len(pod.coordinator._holdings) == 0
    with Redis.from_url(redis_url) as client:
        assert set(client.hkeys(f"{PREFIX}pod:{pod.permits.pod}")) == {b"#", b"@"}


def test_permits_are_taken_from_admission_before_they_are_returned_to_redis(
    redis_url: str,
) -> None:
    pods = start(redis_url, 2, a=4)
    pods[0].submit("a", 4)
    pods[0].step()
    pods[0].finish("a", 4)
    sync = pods[0].permits.sync

    def orders_come_meanwhile(report: Report) -> Answer:
        answer = sync(report)
        if not any(ask.permits < 4 for ask in report.asks):
            return answer
        pods[0].submit("a", 4)
        pods[1].submit("a", 4)
        pods[1].step()
        assert sum(pod.running("a") for pod in pods) <= 4
        pods[0].coordinator._permits.sync = sync  # type: ignore[method-assign]
        return answer

    pods[0].coordinator._permits.sync = orders_come_meanwhile  # type: ignore[method-assign]
    beats(pods, 45)  # twice as long as permits may be idle

    assert pods[1].running("a") == 4


def test_permits_in_use_are_kept(redis_url: str) -> None:
    (pod,) = start(redis_url, 1, a=10)
    pod.submit("a", 10)
    pod.step()
    pod.finish("a", 7)

    for _ in range(8):
        pod.clock.sleep(pod.timing.idle / 2)
        pod.step()

    assert pod.allotted("a") == 3


def test_five_pods_take_turns_with_one_permit(redis_url: str) -> None:
    pods = start(redis_url, 5, a=1)
    for pod in pods:
        pod.submit("a", 100)
    served = [0] * 5
    for _ in range(60):
        beats(pods)
        assert sum(pod.running("a") for pod in pods) <= 1
        for number, pod in enumerate(pods):
            if pod.running("a"):
                pod.finish("a")
                served[number] += 1

    assert min(served) >= 5, served
    assert sum(served) >= 30, served


def test_the_pod_that_waited_longest_is_served_first(redis_url: str) -> None:
    pods = start(redis_url, 4, a=1)
    pods[0].submit("a", 100)
    pods[0].step()
    for pod in (pods[2], pods[3], pods[1]):
        pod.submit("a", 1)
        pod.step()
        let_time_pass_in_redis(redis_url)
    order = []
    for _ in range(12):
        beats(pods)
        for number, pod in enumerate(pods):
            if pod.running("a"):
                pod.finish("a")
                if number:
                    order.append(number)

    assert order == [2, 3, 1]


def test_a_stuck_call_does_not_keep_the_others_from_taking_turns(redis_url: str) -> None:
    pods = start(redis_url, 3, a=2)
    stuck, *others = pods
    stuck.submit("a", 1)
    stuck.step()
    for pod in others:
        pod.submit("a", 100)
    beats(pods)
    stuck.submit("a", 100)
    served = {id(pod): 0 for pod in others}
    for _ in range(40):
        beats(pods)
        assert stuck.running("a") == 1
        for pod in others:
            if pod.running("a"):
                pod.finish("a")
                served[id(pod)] += 1

    assert min(served.values()) >= 5, served


def test_a_lowered_limit_holds_as_calls_finish(redis_url: str) -> None:
    pods = start(redis_url, 2, a=10)
    for pod in pods:
        pod.submit("a", 5)
        pod.step()
    for pod in pods:
        pod.finish("a", 4)
    pods[0].admission.limits["a"] = 4  # the other pod does not know it yet
    pods[0].coordinator.short("a")
    beats(pods, 3)

    for pod in pods:
        pod.submit("a", 20)
    beats(pods, 3)
    assert sum(pod.running("a") for pod in pods) == 4
    assert held(redis_url, "a") == 4


def test_a_raised_limit_is_used_once_every_pod_knows_it(redis_url: str) -> None:
    pods = start(redis_url, 2, a=2)
    for pod in pods:
        pod.submit("a", 20)
    beats(pods, 4)
    pods[0].admission.limits["a"] = 6
    beats(pods, 4)
    assert sum(pod.running("a") for pod in pods) == 2
    pods[1].admission.limits["a"] = 6
    beats(pods, 6)

    assert [pod.running("a") for pod in pods] == [3, 3]


def test_a_paused_merchants_permits_are_returned(redis_url: str) -> None:
    (pod,) = start(redis_url, 1, a=5)
    pod.submit("a", 5)
    pod.step()
    pod.admission.limits["a"] = 0
    beats([pod], 2)
    assert pod.allotted("a") == 0
    pod.finish("a", 5)
    beats([pod], 2)

    assert held(redis_url, "a") == 0


def test_a_killed_pods_permits_return(redis_url: str) -> None:
    pods = start(redis_url, 2, a=4)
    pods[0].submit("a", 4)
    pods[0].step()
    pods[1].submit("a", 4)
    beats(pods[1:], 4)
    assert pods[1].running("a") == 0

    expire(redis_url, pods[0])
    beats(pods[1:])

    assert pods[1].running("a") == 4


def test_a_stopping_pod_returns_all_permits_but_those_in_flight(redis_url: str) -> None:
    pods = start(redis_url, 2, a=4, b=4)
    pods[0].submit("a", 4)
    pods[0].submit("b", 4)
    pods[0].step()
    pods[0].finish("a", 3)
    pods[0].finish("b", 4)
    pods[0].coordinator.leave()
    assert pods[0].allotted("a") == 0

    for merchant in "ab":
        pods[1].submit(merchant, 4)
    pods[1].step()

    assert (pods[1].running("a"), pods[1].running("b")) == (3, 4)


def test_an_idle_pod_that_stops_leaves_no_key(redis_url: str) -> None:
    (pod,) = start(redis_url, 1, a=4)
    pod.submit("a")
    pod.step()
    pod.finish("a")
    pod.coordinator.leave()

    with Redis.from_url(redis_url) as client:
        keys = [f"{PREFIX}known".encode(), f"{PREFIX}leases".encode()]
        assert sorted(client.scan_iter()) == keys


def test_every_key_expires(redis_url: str) -> None:
    pods = start(redis_url, 3, a=1)
    for pod in pods:
        pod.submit("a", 5)
    pods[0].coordinator.breaker_opened("b", 30)
    pods[0].coordinator.breaker_closed("c")
    beats(pods, 2)

    with Redis.from_url(redis_url) as client:
        keys = list(client.scan_iter())
        assert keys
        assert all(client.pttl(key) > 0 for key in keys)


@settings(max_examples=60, deadline=None)
@given(
    merchants=st.lists(
        st.text(st.characters(codec=None), max_size=20), min_size=1, max_size=5, unique=True
    )
)
def test_any_text_is_a_merchants_id(redis_server_url: str, merchants: list[str]) -> None:
    with Redis.from_url(redis_server_url) as client:
        client.flushall()
    pods: list[Pod] = start(redis_server_url, 2)
    for pod in pods:
        for merchant in merchants:
            pod.admission.limits[merchant] = 2
            pod.submit(merchant, 2)
        pod.coordinator.breaker_opened(merchants[0], 30)
    beats(pods, 3)
    for merchant in merchants:
        assert sum(pod.running(merchant) for pod in pods) == 2


def count_calls(url: str) -> int:
    with Redis.from_url(url) as client:
        stats = client.info("commandstats")
        return int(sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha",)))


def let_time_pass_in_redis(url: str) -> None:
    """A millisecond of Redis's clock, which orders waiting pods."""
    with Redis.from_url(url) as client:
        seconds, microseconds = client.time()
        while client.time() <= (seconds, microseconds + 2000):
            pass
