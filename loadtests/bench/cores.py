"""Which cores the worker runs on, and which everything else.

The scheduler puts a broker's threads on the worker's core while another one idles, a sixth of
the time, and other runs differ. What is measured is the worker on a core of its own; so it gets
one, whichever worker it is, and the rest of the world keeps off it.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

#: Those that we may use, a container's say, before any was kept off.
_CORES = frozenset(os.sched_getaffinity(0))
_WORKERS = max(_CORES)


def left_cores() -> frozenset[int]:
    """What the worker leaves to everything else: all but its own, unless it is the only one."""
    return _CORES - {_WORKERS} or _CORES


def keep_off_the_workers_core() -> None:
    """Leave the worker's core to it, from here on, for this process and all it starts."""
    os.sched_setaffinity(0, left_cores())


@contextmanager
def nothing_pinned() -> Iterator[None]:
    """In the block, what this thread starts may use all cores, and so does this thread."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, _CORES)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def on_any_core(command: Sequence[str]) -> list[str]:
    """The command, to run on any of our cores."""
    return ["taskset", "--cpu-list", ",".join(map(str, sorted(_CORES))), *command]


def on_the_workers_core(command: Sequence[str]) -> list[str]:
    """The command, to run on the worker's core (on any, where there is only one)."""
    pin = ["taskset", "--cpu-list", str(_WORKERS)] if len(_CORES) > 1 else []
    return [*pin, *command]
