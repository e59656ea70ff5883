"""Rate limits of tokens, in one process. Pure: the caller has the clock."""

import threading

from pos_gateway.tokens.token import Token

#: Seconds of the rate that may come at once.
BURST = 1.0
#: Requests may come this much early, in seconds: floats round, and the wait that was returned has
#: to be enough.
_ROUNDING = 1e-6
#: Tokens above which the limits of idle ones are dropped.
_MAX_TOKENS = 10_000


class RateLimit:
    """A token bucket that holds one second's worth, kept as one number: when it is full again.

    For one caller at a time. In any T seconds at most ``rate * T`` pass, plus one second's worth or
    the largest cost, whichever is more.
    """

    __slots__ = ("_full_at", "_rate")

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._full_at = float("-inf")

    def take(self, now: float, cost: float = 1, *, taken: float = 0) -> float:
        """Take this much, and return 0.0; or take nothing, and return the seconds to wait.

        What costs more than the bucket holds (a batch) passes while it is full, and those after it
        wait for longer.

        Args:
            now: monotonic seconds.
            cost: requests that this one counts for.
            taken: how many of them were taken when it began, before its cost was known.
        """
        seconds, before = cost / self._rate, taken / self._rate
        wait = self._full_at - now - max(0.0, BURST - seconds)
        if wait - before > _ROUNDING:
            return wait
        self._full_at = max(self._full_at, now) + seconds - before
        return 0.0

    def is_idle(self, now: float) -> bool:
        """Whether it is full, and so like a new one."""
        return self._full_at <= now


class RateLimits:
    """A limit for each token that is in use. Safe from threads.

    Args:
        default: requests a second of a token without a rate.
    """

    def __init__(self, default: float) -> None:
        self._default = default
        self._lock = threading.Lock()
        self._limits: dict[str, RateLimit] = {}

    def take(self, token: Token, now: float, cost: float = 1, *, taken: float = 0) -> float:
        """``RateLimit.take`` of this token's limit."""
        with self._lock:
            limit = self._limits.get(token.digest)
            if limit is None:
                if len(self._limits) >= _MAX_TOKENS:
                    self._drop_idle(now)
                limit = RateLimit(token.rate or self._default)
                self._limits[token.digest] = limit
            return limit.take(now, cost, taken=taken)

    def _drop_idle(self, now: float) -> None:
        kept = {each: limit for each, limit in self._limits.items() if not limit.is_idle(now)}
        self._limits = kept
