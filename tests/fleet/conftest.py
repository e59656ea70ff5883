"""Redis for pods."""

import pytest

from testkit.servers.redis import Redis


@pytest.fixture(scope="session")
def redis_server_url(redis: Redis) -> str:
    """A shared Redis, for tests that run many times on it."""
    redis.start()
    return redis.url
