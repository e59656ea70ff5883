"""What it costs to be watched: counting an order, and a scrape with ten thousand merchants."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from loadtests.bench.patched import figures_of
from loadtests.bench.report import table

NAME = "telemetry"
#: Milliseconds of CPU that all that is told of an order may take.
MOST = 0.05
#: The figures by name, and what they are of.
_FIGURES = {
    "metrics": "an order's metrics, CPU",
    "full": "and its attempt's line, CPU of the green thread",
    "naive": "naive: labels looked up for each, the line written at once",
    "scrape": "a scrape, CPU",
    "held": "the longest that a scrape holds the loop up",
}


@dataclass(frozen=True, slots=True)
class TelemetryCost:
    """Milliseconds, by what they are of, of each round."""

    rounds: Sequence[dict[str, float]]

    def as_json(self) -> list[dict[str, Any]]:
        """The figures by name."""
        return list(self.rounds)


def measure(*, quick: bool) -> TelemetryCost:
    """Tell of orders, and scrape, in a process that does nothing else."""
    number, rounds = (10_000, 3) if quick else (40_000, 7)
    return TelemetryCost(figures_of("loadtests.bench.counting", number, rounds))


def report(cost: TelemetryCost) -> str:
    """The table."""
    lines = []
    for name, what in _FIGURES.items():
        figures = [each[name] for each in cost.rounds]
        target = (f"<= {MOST}", "met" if median(figures) <= MOST else "MISSED")
        spread = f"{min(figures):.4f} to {max(figures):.4f}"
        lines.append(
            [
                what,
                f"{median(figures):.4f}",
                spread,
                *(target if name in ("metrics", "full") else ("", "")),
            ]
        )
    header = ("ms", "median", "rounds", "target", "")
    return f"## telemetry: what it costs to be watched\n\n{table(header, lines)}\n"
