"""A loop that is late: it does something else for a while, and no merchant is blamed for the time that this takes."""

from collections import Counter
from math import inf
from typing import Any

import pytest

from pos_gateway.admission.lane import Call
from pos_gateway.admission.trouble import is_in_trouble
from tests.admission.adversaries.driver import Driver, Group, about
from tests.admission.adversaries.table import hanging, slow


class Watched(Driver):
    """A run in which an operator looks at the merchants ten times a second."""

    def __init__(self, *groups: Group, **options: Any) -> None:
        super().__init__(*groups, **options)
        #: Merchants that were in trouble at any time, and the limits that any had.
        self.in_trouble: set[str] = set()
        self.limits: set[int] = set()
        #: Calls that were outliers, or not, since the warm-up.
        self.outliers: Counter[bool] = Counter()

    def _end(self, call: Call[Any], *result: Any) -> None:
        if self._now >= self._warm_up:
            self.outliers[call.outlier_since < inf] += 1
        super()._end(call, *result)

    def _tick(self) -> None:
        for each in self.admission.merchants():
            if is_in_trouble(each):
                self.in_trouble.add(each.merchant_id)
            self.limits.add(each.limit)
        super()._tick()

    @property
    def usual(self) -> list[float]:
        """What merchants take for a reply in the end, as the worker believes."""
        known = (self.admission.symptoms(name, self._now) for name in self._groups)
        return [each.usual for each in known if each is not None and each.usual is not None]


class AlwaysLate(Watched):
    """From a time on each turn of the loop takes a tenth of a second."""

    FROM = 6.0

    def _stall(self) -> None:
        if self._now < self.FROM:
            self._at(self.FROM, self._stall)
        else:
            super()._stall()


def run(seconds: float, *others: Group, reply: float = 0.02) -> Watched:
    """Sixty healthy merchants of one provider, 100 orders a second, on a core whose loop is late by so long."""
    healthy = Group("healthy", 60, about(reply), rate=100, provider="one")
    driver = Watched(healthy, *others, cores=1.0, stall=seconds)
    driver.run()
    return driver


@pytest.mark.parametrize("reply", [0.02, 0.4])
@pytest.mark.parametrize("seconds", [0.1, 0.3, 1.0])
def test_no_merchant_is_blamed_for_the_time_that_the_loop_is_late(
    seconds: float, reply: float
) -> None:
    driver = run(seconds, reply=reply)
    assert driver.in_trouble == set()
    assert driver.limits == {10}
    assert len(driver.usual) == 60
    assert max(driver.usual) < 1.3 * reply + 0.02


@pytest.mark.parametrize("seconds", [0.1, 0.3, 1.0])
def test_no_call_is_cut_short_that_was_answered_while_the_loop_was_late(seconds: float) -> None:
    driver = run(seconds, slow(40, 2.5))
    assert driver.seen["healthy"].cut_short == 0


@pytest.mark.parametrize("seed", range(1, 5))
def test_a_loop_that_is_always_late_learns_that_merchants_take_longer_now(seed: int) -> None:
    """No answer's time is known to a tenth of a second, and all the same not each call is an outlier."""
    change = about(0.02), about(0.18)
    since = AlwaysLate.FROM
    slower = Group("slower", 20, lambda random, now: change[now > since](random, now), rate=20)
    driver = AlwaysLate(slower, cores=1.0, stall=0.1, every=0.0, seed=seed)
    driver.run()
    assert driver.outliers.total() > 300
    assert driver.outliers[True] < 0.1 * driver.outliers.total()
    assert 0.08 < min(driver.usual) <= max(driver.usual) < 0.3


def test_calls_that_hang_are_cut_short_all_the_same() -> None:
    driver = run(0.3, hanging(100, 60))
    assert driver.seen["others"].cut_short > 40
    assert driver.seen["healthy"].cut_short == 0
    assert driver.in_trouble <= {f"others-{number}" for number in range(100)}
