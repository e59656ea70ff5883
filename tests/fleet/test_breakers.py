"""Breakers that open and close for all pods."""

from redis import Redis as Client

from pos_gateway.fleet.breakers import KEPT, BreakerNews
from pos_gateway.fleet.permits import PREFIX
from testkit.servers.redis import Redis
from tests.fleet.pods import Pod, beats, start


def redis_time(redis_url: str) -> float:
    seconds, microseconds = Client.from_url(redis_url).time()
    return float(seconds) + float(microseconds) / 1e6


def test_a_breaker_that_opens_opens_everywhere_and_closes_everywhere(redis_url: str) -> None:
    pods = start(redis_url, 3)
    beats(pods)
    began = redis_time(redis_url)
    pods[0].coordinator.breaker_opened("a", 50.0)
    beats(pods, 2)
    passed = redis_time(redis_url) - began
    least = 50 - pods[0].timing.beat - passed  # it is reported within a heartbeat
    for pod in pods[1:]:
        assert least <= pod.admission.breakers["a"] <= 50
    assert not pods[0].admission.breakers  # its own breaker is not reported to it

    pods[1].coordinator.breaker_closed("a")
    beats(pods, 2)
    assert not pods[2].admission.breakers
    assert "a" in pods[1].admission.breakers  # likewise


def test_a_joining_pod_gets_the_open_breakers(redis_url: str) -> None:
    (pod,) = start(redis_url, 1)
    pod.coordinator.breaker_opened("a", 600.0)
    pod.coordinator.breaker_opened("b", 600.0)
    pod.step()
    pod.coordinator.breaker_closed("b")
    pod.step()

    newcomer = Pod(redis_url)
    newcomer.step()
    assert list(newcomer.admission.breakers) == ["a"]


def test_the_longer_opening_counts(redis_url: str) -> None:
    pods = start(redis_url, 3)
    pods[0].coordinator.breaker_opened("a", 600.0)
    pods[0].step()
    pods[1].coordinator.breaker_opened("a", 5.0)
    pods[1].step()
    beats(pods)

    remaining = pods[2].admission.breakers["a"]
    assert remaining > 5


def test_an_unreported_breaker_is_reported_when_redis_is_back(redis: Redis, redis_url: str) -> None:
    pods = start(redis_url, 2)
    beats(pods)
    redis.kill()
    pods[0].coordinator.breaker_opened("a", 600.0)
    pods[0].coordinator.breaker_opened("short", 0.4)
    pods[0].coordinator.breaker_opened("b", 600.0)
    pods[0].coordinator.breaker_closed("b")
    pods[0].step()
    redis.start()
    beats(pods, 3)

    assert set(pods[1].admission.breakers) == {"a"}


def test_a_pods_own_result_overrides_a_reported_breaker(redis_url: str) -> None:
    pods = start(redis_url, 2)
    beats(pods)
    pods[0].coordinator.breaker_opened("a", 600.0)
    pods[0].step()
    sync = pods[1].permits.sync

    def closes_meanwhile(report: object) -> object:
        pods[1].coordinator.breaker_closed("a")
        pods[1].coordinator._permits.sync = sync  # type: ignore[method-assign]
        return sync(report)  # type: ignore[arg-type]

    pods[1].coordinator._permits.sync = closes_meanwhile  # type: ignore[method-assign, assignment]
    pods[1].beat()
    assert not pods[1].admission.breakers
    beats(pods, 2)
    assert not pods[0].admission.breakers


def test_many_breakers_are_reported_in_several_syncs(redis_url: str) -> None:
    pods = start(redis_url, 2)
    for number in range(450):
        pods[0].coordinator.breaker_opened(f"m{number}", 600.0)
    pods[0].step()
    beats(pods, 6)

    assert len(pods[1].admission.breakers) == 450


def test_expired_breakers_are_deleted(redis_url: str) -> None:
    (pod,) = start(redis_url, 1)
    client = Client.from_url(redis_url)
    for number in range(30):
        client.hset(f"{PREFIX}breaker", f"old{number}", "1 another")
        client.zadd(f"{PREFIX}news", {f"old{number}": number + 1})
    for number in range(3):
        pod.coordinator.breaker_opened(f"m{number}", 60.0)
        pod.step()

    assert client.zcard(f"{PREFIX}news") == 3
    assert client.hlen(f"{PREFIX}breaker") == 3
    assert len(pod.admission.breakers) == 0


def test_unreported_breakers_are_bounded() -> None:
    news = BreakerNews()
    for number in range(KEPT + 10):
        news.put(f"m{number}", 1.0)
    assert "m9" not in news
    assert "m10" in news
    taken = news.take()
    news.put("m10", None)
    news.put_back(taken)
    assert news.take()["m10"] is None
