"""Counters whose values other objects keep."""

import gc

from prometheus_client import REGISTRY, generate_latest

from pos_gateway.telemetry.metrics import Counted


class Keeper:
    def __init__(self, hits: int) -> None:
        self.hits = hits


def test_a_scrape_sums_the_counts_of_all_live_keepers() -> None:
    counted = Counted("hits_total", "Hits.", ("cache",))
    try:
        first, second, other = Keeper(1), Keeper(10), Keeper(5)
        for keeper, name in ((first, "a"), (second, "a"), (other, "b")):
            counted.keeps(keeper, lambda it, name=name: {(name,): it.hits})
        first.hits += 1
        assert REGISTRY.get_sample_value("hits_total", {"cache": "a"}) == 12
        assert REGISTRY.get_sample_value("hits_total", {"cache": "b"}) == 5
        assert b"# TYPE hits_total counter" in generate_latest(REGISTRY)
        del second, keeper
        gc.collect()
        assert REGISTRY.get_sample_value("hits_total", {"cache": "a"}) == 2
    finally:
        REGISTRY.unregister(counted)
