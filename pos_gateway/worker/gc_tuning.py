"""Python's garbage collector in a worker."""

import gc


def spare_the_collector() -> None:
    """Keep the garbage collector from walking, many times a second, over what never dies.

    At its defaults it took a sixth of a busy worker's CPU, and its pauses, two microseconds for
    each object that lives, were the healthy merchants' 99th percentile. Orders leave next to no
    cycles behind, so it comes when a hundred thousand objects are there that were not before.
    Everything loaded so far is exempt, and so is from then on what survives a full collection.
    """
    gc.collect()
    gc.freeze()
    gc.callbacks.append(_exempt_survivors)
    gc.set_threshold(100_000, 5, 5)


def _exempt_survivors(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == 2:
        gc.freeze()
