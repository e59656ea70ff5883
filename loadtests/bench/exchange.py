"""What an exchange with a POS costs: transport and adapter, beside plain requests and urllib3."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from loadtests.bench.patched import figures_of
from loadtests.bench.report import table
from testkit.merchants.client import SimulatedMerchants

NAME = "exchange"
#: Milliseconds of CPU that an exchange may take.
MOST = 0.20


@dataclass(frozen=True, slots=True)
class ExchangeCost:
    """Milliseconds of CPU for each exchange, by candidate, of each round."""

    rounds: Sequence[dict[str, float]]

    def as_json(self) -> list[dict[str, Any]]:
        """The figures by name."""
        return list(self.rounds)


def measure(*, quick: bool) -> ExchangeCost:
    """Make exchanges with a merchant on loopback that answers at once."""
    number, rounds = (1000, 3) if quick else (3000, 7)
    with SimulatedMerchants() as merchants:
        url = merchants.base_url("fast-0")
        return ExchangeCost(figures_of("loadtests.bench.exchanging", url, number, rounds))


def report(cost: ExchangeCost) -> str:
    """The table."""
    names = list(cost.rounds[0])
    lines = []
    for name in names:
        figures = [each[name] for each in cost.rounds]
        ratio = median(each[name] / each["requests"] for each in cost.rounds)
        target = ("<= 0.20", "met" if median(figures) <= MOST else "MISSED")
        lines.append(
            [
                name,
                f"{median(figures):.3f}",
                f"{min(figures):.3f} to {max(figures):.3f}",
                f"{ratio:.2f}",
                *(target if name == "gateway" else ("", "")),
            ]
        )
    header = ("CPU ms an exchange", "median", "rounds", "/ requests", "target", "")
    return f"## exchange: transport and adapter\n\n{table(header, lines)}\n"
