"""Orders that kill the worker that sends them."""

import signal

import pytest

from testkit.patience import PATIENCE
from tests.faults.lab import FaultLab
from tests.orders import an_order


@pytest.mark.parametrize("bundled", [False, True], ids=["alone", "in_a_bundle"])
def test_a_poison_order_is_dead_lettered_and_its_neighbours_are_delivered(
    lab: FaultLab, bundled: bool
) -> None:
    lab.open_merchants("m", adapter="poison", request_timeout=2)
    names = ["poison-1", *[f"o{number}" for number in range(12)]]
    if bundled:
        lab.publish_bundle("m", [an_order(name, "m") for name in names])
    else:
        lab.place("m", *names)
    for _ in range(3):
        with lab.worker() as worker:
            assert worker.wait() == -signal.SIGKILL
    with lab.worker():
        assert lab.backend.wait(lambda: all(map(lab.backend.events, names)), PATIENCE)
    for name in names[1:]:
        [accepted] = lab.backend.events(name)
        assert accepted["type"] == "order.accepted"
    [told] = lab.backend.events("poison-1")
    assert (told["type"], told["reason"]["code"]) == ("order.in_doubt", "poison")
    assert lab.merchants.order("m", "poison-1") is None
