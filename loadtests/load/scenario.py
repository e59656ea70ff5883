"""Load scenarios: how many orders, for which merchants."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Share:
    """Merchants of one class, and the part of the orders that is theirs."""

    name: str
    merchants: int
    #: Weight beside the other classes: a percentage, say.
    weight: float

    @property
    def merchant_ids(self) -> list[str]:
        """``healthy-0``, ``healthy-1``, …"""
        return [f"{self.name}-{number}" for number in range(self.merchants)]


@dataclass(frozen=True, slots=True)
class Mix:
    """Which merchants orders are for. As text ``healthy:50:90,hang:1:10``."""

    shares: tuple[Share, ...]

    @classmethod
    def parse(cls, text: str) -> "Mix":
        """Read ``class:merchants:weight`` with commas between; ValueError says what would do."""
        shares = []
        for part in text.split(","):
            try:
                name, merchants, weight = part.strip().split(":")
                share = Share(name, int(merchants), float(weight))
            except ValueError:
                raise ValueError(f"{part!r}: write class:merchants:weight, hang:1:10 say") from None
            if not name or share.merchants < 1 or not share.weight > 0:
                raise ValueError(f"{part!r}: at least one merchant and a weight above 0")
            shares.append(share)
        return cls(tuple(shares))

    def __str__(self) -> str:
        return ",".join(f"{each.name}:{each.merchants}:{each.weight:g}" for each in self.shares)

    @property
    def merchant_ids(self) -> list[str]:
        """All merchants."""
        return [merchant_id for share in self.shares for merchant_id in share.merchant_ids]

    def picks(self, chance: Random) -> Iterator[str]:
        """Merchants by chance, each class as often as its weight says; never in a pattern."""
        weights = [share.weight for share in self.shares]
        ids = [share.merchant_ids for share in self.shares]
        while True:
            yield chance.choice(chance.choices(ids, weights)[0])


@dataclass(frozen=True, slots=True)
class LoadScenario:
    """A load that ``python -m loadtests.load`` can bring."""

    name: str
    #: Order backends, and orders a second of each.
    users: int
    rate: float
    seconds: float
    merchants: Mix
    #: Seconds after which an order is worthless; then nothing is left to wait for.
    deliver_within: float

    @property
    def profiles(self) -> Mapping[str, object]:
        """How merchants behave beside the profiles that exist by themselves."""
        return {"healthy": {"kind": "accept", "latency": {"lognormal": [0.05, 0.3]}}}


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        LoadScenario("steady", 10, 10, 30, Mix.parse("healthy:50:90,hang:1:10"), 20),
        LoadScenario("healthy", 10, 10, 30, Mix.parse("healthy:50:1"), 20),
    )
}
