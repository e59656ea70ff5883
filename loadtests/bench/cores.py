"""Which cores the worker runs on, and which everything else.

The scheduler puts a broker's threads on the worker's core while another one idles, a sixth of
the time, and other runs differ. What is measured is the worker on a core of its own; so it gets
one, whichever worker it is, and the rest of the world keeps off it.
"""

import os
from collections.abc import Sequence


def keep_off_the_workers_core() -> None:
    """Leave the worker's core to it, from here on, for this process and all it starts."""
    cores = os.sched_getaffinity(0)
    if len(cores) > 1:
        os.sched_setaffinity(0, cores - {max(cores)})


def on_the_workers_core(command: Sequence[str]) -> list[str]:
    """The command, to run on the worker's core (on any, where there is only one)."""
    count = os.cpu_count() or 1
    pin = ["taskset", "--cpu-list", str(count - 1)] if count > 1 else []
    return [*pin, *command]
