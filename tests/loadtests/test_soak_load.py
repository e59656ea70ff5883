"""The load of a soak: orders for every fault, none too many, and an end at once when it is cut short."""

from collections.abc import Mapping
from threading import Event
from typing import Any, cast

import pytest

from loadtests.soak import load
from loadtests.soak.load import Load
from testkit.faults.backend import Backend
from testkit.patience import PATIENCE

MERCHANTS = ["a", "b"]


class Placing:
    """A backend whose broker confirms at once; says when a number of orders was placed."""

    outstanding = 0

    def __init__(self, enough: int) -> None:
        self.placed: list[str] = []
        self.has_enough = Event()
        self._enough = enough

    def place(self, order: Mapping[str, Any]) -> bool:
        self.placed.append(order["order_id"])
        if len(self.placed) >= self._enough:
            self.has_enough.set()
        return True


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "RATE", 10_000.0)
    monkeypatch.setattr(load, "TRICKLE", 2_500.0)


def a_load(backend: Placing, orders: int, faults: int) -> Load:
    return Load(cast(Backend, backend), MERCHANTS, orders, faults)


def test_orders_that_the_faults_have_left_are_placed_at_the_end() -> None:
    backend = Placing(1)

    with a_load(backend, 100, 1):
        pass

    assert backend.placed == [f"o{number}" for number in range(100)]


def test_a_fault_that_never_comes_gets_twice_the_orders_at_most() -> None:
    backend = Placing(20)

    with a_load(backend, 10, 5):
        assert backend.has_enough.wait(PATIENCE)

    assert len(backend.placed) == 20


def test_a_fault_is_due_when_the_orders_of_those_before_it_are_placed() -> None:
    backend = Placing(1)
    placing = a_load(backend, 10, 2)

    assert placing.is_due()
    placing.fault_done()
    assert not placing.is_due()

    with placing:
        pass

    assert placing.is_due()


def test_a_load_that_is_cut_short_places_no_more() -> None:
    backend = Placing(5)
    placing = a_load(backend, 10**6, 1)

    with pytest.raises(KeyboardInterrupt), placing:
        assert backend.has_enough.wait(PATIENCE)
        raise KeyboardInterrupt

    placing._thread.join(PATIENCE)
    assert not placing._thread.is_alive()
    assert len(backend.placed) < 10**6
