"""The Redis that tests start."""

import pytest
import redis as client

from testkit.servers.redis import Redis


def test_killed_and_started_again_it_has_forgotten_all(redis: Redis, redis_url: str) -> None:
    connect(redis_url).set("key", "value")

    redis.kill()
    with pytest.raises(client.ConnectionError):
        connect(redis_url).ping()
    redis.start()

    assert connect(redis_url).get("key") is None


def test_paused_it_is_silent_and_resumed_it_goes_on(redis: Redis, redis_url: str) -> None:
    connection, impatient = connect(redis_url), connect(redis_url, socket_timeout=0.2)
    connection.set("key", "value")

    redis.pause()
    with pytest.raises(client.TimeoutError):
        impatient.get("key")
    redis.resume()

    assert connection.get("key") == b"value"


def test_each_test_finds_it_empty(redis_url: str) -> None:
    assert connect(redis_url).dbsize() == 0


def connect(url: str, *, socket_timeout: float | None = None) -> client.Redis:
    return client.Redis.from_url(url, socket_timeout=socket_timeout)
