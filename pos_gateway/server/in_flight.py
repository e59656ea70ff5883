"""Limits the requests and bytes that this process handles at once: beyond them it refuses, and queues nothing."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pos_gateway.server.problems import Problem
from pos_gateway.telemetry import metrics

#: Maximum bytes of bodies that are being read, or whose requests are being taken.
BODIES = 64 * 1024 * 1024


class InFlight:
    """Counts requests in flight, and the bytes of their bodies. For the event loop.

    A body counts as its bytes arrive, and its request once the body is complete: a client that announces
    much, or sends slowly, keeps no other request out. A token's bodies may have at most as many bytes as
    remain free: one token alone half of them.

    Args:
        requests: most at once.
    """

    def __init__(self, requests: int) -> None:
        self._requests = requests
        self._count = 0
        self._bytes = 0
        #: By token; None: requests without one.
        self._of: Counter[str | None] = Counter()

    @contextmanager
    def reading(self, token: str | None = None) -> Iterator[Callable[[int], None]]:
        """Takes the number of bytes that came, which count while entered. Raises Problem 429.

        Args:
            token: the request's, by its digest.
        """
        size = 0

        def add(count: int) -> None:
            nonlocal size
            if self._of[token] + count > BODIES - self._bytes - count:
                raise self._refusal(close=True)
            size += count
            self._count_bytes(token, count)

        try:
            yield add
        finally:
            self._count_bytes(token, -size)

    def _count_bytes(self, token: str | None, count: int) -> None:
        self._bytes += count
        self._of[token] += count
        if not self._of[token]:
            del self._of[token]

    @contextmanager
    def taking(self) -> Iterator[None]:
        """A request that has come, while entered. Raises Problem 429."""
        if self._count >= self._requests:
            raise self._refusal(close=False)
        self._count += 1
        metrics.http_in_flight.inc()
        try:
            yield
        finally:
            self._count -= 1
            metrics.http_in_flight.dec()

    def _refusal(self, *, close: bool) -> Problem:
        return Problem(
            429,
            "too_many_requests",
            f"this server is taking {self._count} requests, and has {self._bytes} bytes of bodies; "
            "send fewer at once",
            retry_after=1,
            close=close,
        )
