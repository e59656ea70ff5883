"""Garbage collection in a worker."""

import gc
from weakref import ref

from pos_gateway.worker.gc_tuning import tune_gc


class InFlight:
    """An order in flight, which ends in a cycle of references."""

    def __init__(self) -> None:
        self.itself = self


def test_a_cycle_that_was_alive_during_a_full_collection_is_collected_by_the_next() -> None:
    before, callbacks = gc.get_threshold(), list(gc.callbacks)
    try:
        tune_gc()
        order = InFlight()
        alive = ref(order)
        gc.collect()
        del order
        gc.collect()
        assert alive() is None
    finally:
        gc.callbacks[:] = callbacks
        gc.set_threshold(*before)
