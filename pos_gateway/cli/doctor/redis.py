"""Redis, if it is configured."""

from collections.abc import Iterator

from pos_gateway.cli.doctor.finding import Finding, fail, ok, warn
from pos_gateway.runtime.urls import mask_url
from pos_gateway.settings import Settings

_PATIENCE = 3.0


def check_redis(settings: Settings) -> Iterator[Finding]:
    """Redis answers."""
    if settings.redis_url is None:
        return
    shown = mask_url(settings.redis_url)
    try:
        from redis import Redis
        from redis.exceptions import RedisError
    except ModuleNotFoundError:
        yield fail("redis: its package is not installed", "pip install 'pos-gateway[redis]'")
        return
    try:
        client = Redis.from_url(
            settings.redis_url, socket_connect_timeout=_PATIENCE, socket_timeout=_PATIENCE
        )
        with client:
            client.ping()
    except (RedisError, OSError, ValueError) as error:
        yield fail(
            f"redis: {shown} cannot be used: {error}", "start it, or unset POS_GATEWAY_REDIS_URL"
        )
    else:
        yield ok(f"redis: {shown} answers")
        if settings.secret_key is None:
            yield warn(
                "redis: records, catalogs and tokens are not shared, for want of a key to seal them",
                "set POS_GATEWAY_SECRET_KEY (pos-gateway secrets key makes one)",
            )
