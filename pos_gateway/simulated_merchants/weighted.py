"""Things with weights: each pick is by chance, not in turn."""

from bisect import bisect
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random
from typing import Generic, TypeVar

from pos_gateway.simulated_merchants.errors import ScenarioError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Weighted(Generic[T]):
    """Pairs of a weight and what is picked as often as it says."""

    choices: tuple[tuple[float, T], ...]
    _bounds: tuple[float, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        weights = [weight for weight, _ in self.choices]
        if not weights or min(weights) <= 0:
            raise ScenarioError(f"weights {weights!r}: at least one, all above 0")
        object.__setattr__(self, "_bounds", tuple(accumulate(weights)))

    def pick(self, chance: Random) -> T:
        """The next one."""
        if len(self._bounds) == 1:
            return self.choices[0][1]
        # The last bound is left out, so that rounding cannot point behind the list.
        place = bisect(self._bounds, chance.random() * self._bounds[-1], 0, len(self._bounds) - 1)
        return self.choices[place][1]
