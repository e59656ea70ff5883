"""Tunes Python's garbage collector for a worker."""

import gc


def tune_gc() -> None:
    """Collect rarely, and exempt objects loaded so far from garbage collection.

    At its defaults the collector took a sixth of a busy worker's CPU, and its pauses, two
    microseconds per live object, were the healthy merchants' 99th percentile. Orders leave next to
    no cycles, so the collector runs after a hundred thousand new objects. Later objects are not exempt:
    the memory of an order in flight, if ending in a cycle, would never be freed.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 5, 5)
