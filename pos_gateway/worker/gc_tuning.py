"""Tunes Python's garbage collector for a worker."""

import gc


def tune_gc() -> None:
    """Collect rarely, and exempt long-lived objects from garbage collection.

    At its defaults the collector took a sixth of a busy worker's CPU, and its pauses, two
    microseconds per live object, were the healthy merchants' 99th percentile. Orders leave next to
    no cycles, so it runs after a hundred thousand new objects. Everything loaded so far is exempt,
    and so is from then on what survives a full collection.
    """
    gc.collect()
    gc.freeze()
    gc.callbacks.append(_exempt_survivors)
    gc.set_threshold(100_000, 5, 5)


def _exempt_survivors(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == 2:
        gc.freeze()
