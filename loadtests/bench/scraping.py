"""Asks a worker for its metrics while it works, as Prometheus does."""

import time
from collections.abc import Callable
from urllib.error import URLError
from urllib.request import urlopen

#: Seconds between two scrapes; 15 are usual.
PERIOD = 5.0


class Scraping:
    """Asks now and then. The port 0 is not asked."""

    def __init__(self, port: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._port = port
        self._clock = clock
        self._last = clock()

    def look(self) -> None:
        """Ask, if it is time."""
        now = self._clock()
        if self._port and now - self._last >= PERIOD:
            self._last = now
            try:
                with urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=PERIOD) as page:
                    page.read()
            except (URLError, TimeoutError):
                return  # it is starting
