"""What a run looks at while the worker works: its memory, and its metrics as Prometheus reads them."""

import time
from collections.abc import Callable
from contextlib import suppress
from urllib.error import URLError
from urllib.request import urlopen

import psutil

#: Seconds between two scrapes; 15 are usual.
PERIOD = 5.0


class Scraping:
    """Scrapes now and then; port 0 is not scraped."""

    def __init__(self, port: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._port, self._clock = port, clock
        self._last = clock()

    def look(self) -> None:
        """Scrape, if it is time."""
        now = self._clock()
        if self._port and now - self._last >= PERIOD:
            self._last = now
            with (
                suppress(URLError, TimeoutError),  # the worker is starting
                urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=PERIOD) as page,
            ):
                page.read()


def held(pid: int) -> float:
    """MiB of a worker's first process, and of what each other process holds for itself alone.

    Forked processes share what neither has written to since, and it counts once.
    """
    first = psutil.Process(pid)
    total = first.memory_info().rss
    for process in first.children(recursive=True):
        with suppress(psutil.Error):  # it ended meanwhile
            total += process.memory_full_info().uss
    return float(total) / 2**20
