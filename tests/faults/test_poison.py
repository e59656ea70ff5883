"""Orders that kill the worker that sends them."""

import signal

from tests.faults.lab import FaultLab


def test_a_poison_order_is_dead_lettered_and_its_neighbours_are_delivered(
    lab: FaultLab,
) -> None:
    lab.open_merchants("m", adapter="poison", request_timeout=2)
    lab.place("m", "poison-1", *[f"o{number}" for number in range(12)])
    for _ in range(3):
        with lab.worker() as worker:
            assert worker.wait() == -signal.SIGKILL
    with lab.worker():
        lab.settle()
    verdict = lab.verdict()
    assert verdict.in_doubt == [("m", "poison-1")]
    [told] = lab.backend.events("poison-1")
    assert (told["type"], told["reason"]["code"]) == ("order.in_doubt", "poison")
    assert lab.merchants.order("m", "poison-1") is None
