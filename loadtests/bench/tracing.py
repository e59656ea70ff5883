"""What it costs to trace an order, and what it costs not to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from loadtests.bench.patched import figures_of
from loadtests.bench.report import table

NAME = "tracing"


@dataclass(frozen=True, slots=True)
class TracingCost:
    """Microseconds of CPU for each order, by candidate, of each round."""

    rounds: Sequence[Mapping[str, float]]

    def as_json(self) -> list[dict[str, Any]]:
        """The figures by name."""
        return [dict(each) for each in self.rounds]


def measure(*, quick: bool) -> TracingCost:
    """Take orders through all that is traced of their way, with a collector that answers."""
    number, rounds = (2000, 3) if quick else (10_000, 7)
    return TracingCost(figures_of("loadtests.bench.tracing_orders", number, rounds))


def report(cost: TracingCost) -> str:
    """The table."""
    lines = []
    for name in cost.rounds[0]:
        figures = [each[name] for each in cost.rounds]
        more = [each[name] - each["off"] for each in cost.rounds]
        spread = f"{min(figures):.1f} to {max(figures):.1f}"
        lines.append([name, f"{median(figures):.1f}", spread, f"{median(more):.1f}"])
    header = ("CPU us an order", "median", "rounds", "more than off")
    return f"## tracing: what its spans cost an order\n\n{table(header, lines)}\n"
