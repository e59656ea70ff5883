"""How much this process takes on at once: beyond it a request is refused, and none is queued."""

from collections.abc import Iterator
from contextlib import contextmanager

from pos_gateway.server.problems import Problem
from pos_gateway.telemetry import metrics

#: Most bytes of the bodies that are being taken.
BODIES = 64 * 1024 * 1024


class InFlight:
    """Counts the requests that are being taken, and their bytes. For the event loop.

    Args:
        requests: most at once.
    """

    def __init__(self, requests: int) -> None:
        self._requests = requests
        self._count = 0
        self._bytes = 0

    @contextmanager
    def taking(self, size: int) -> Iterator[None]:
        """A request with a body of this many bytes, while entered. Raises Problem 429."""
        if self._count >= self._requests or self._bytes + size > BODIES:
            raise Problem(
                429,
                "too_many_requests",
                f"this server is taking {self._count} requests of {self._bytes} bytes; send fewer "
                "at once",
                retry_after=1,
            )
        self._count += 1
        self._bytes += size
        metrics.http_in_flight.set(self._count)
        try:
            yield
        finally:
            self._count -= 1
            self._bytes -= size
            metrics.http_in_flight.set(self._count)
