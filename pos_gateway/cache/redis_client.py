"""A Redis client without retries, and the client's exceptions."""

from typing import Any

from pos_gateway.domain.errors import FieldError, InvalidSettings

#: Exceptions of redis-py's parser when the peer does not speak the protocol.
_NONSENSE = (
    *(ValueError, TypeError, LookupError, AttributeError, ArithmeticError),
    *(RecursionError, MemoryError, AssertionError, EOFError),
)


def redis_client(url: str, timeout: float) -> tuple[Any, tuple[type[BaseException], ...]]:
    """A client, and its exceptions when Redis is away, refuses or answers nonsense. No I/O.

    Args:
        url: of Redis.
        timeout: seconds for connecting and for each answer.

    Raises:
        InvalidSettings: the package ``redis`` is not installed, or the URL is invalid.
    """
    try:
        from redis import Redis  # noqa: PLC0415  (an optional extra)
        from redis.backoff import NoBackoff  # noqa: PLC0415
        from redis.exceptions import RedisError  # noqa: PLC0415
        from redis.retry import Retry  # noqa: PLC0415
    except ModuleNotFoundError:
        raise _invalid("needs the package redis: pip install 'pos-gateway[redis]'") from None
    try:
        client = Redis.from_url(
            url,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            # No retries: by then the caller has a newer request.
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
    except ValueError:  # the message may repeat the password
        raise _invalid("is not a URL that can be used") from None
    return client, (RedisError, OSError, *_NONSENSE)


def _invalid(problem: str) -> InvalidSettings:
    return InvalidSettings([FieldError("POS_GATEWAY_REDIS_URL", problem)])
