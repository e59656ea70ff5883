"""The memory that a worker holds, be it one process or several."""

from contextlib import suppress

import psutil


def held(pid: int) -> float:
    """MiB: what its first process holds, and what each of the others holds for itself alone.

    Processes that were forked share what neither has written to since, and it counts once.
    """
    first = psutil.Process(pid)
    total = first.memory_info().rss
    for process in first.children(recursive=True):
        with suppress(psutil.Error):  # it ended meanwhile
            total += process.memory_full_info().uss
    return float(total) / 2**20
