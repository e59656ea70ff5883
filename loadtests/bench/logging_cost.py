"""What it costs to log an attempt, beside structlog that writes its line at once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from loadtests.bench.patched import figures_of
from loadtests.bench.report import table

NAME = "logging"
#: Microseconds of CPU on the green thread that an order's logging may take.
MOST = 20.0


@dataclass(frozen=True, slots=True)
class LoggingCost:
    """Microseconds of CPU for each attempt, by candidate and thread, of each round."""

    rounds: Sequence[Mapping[str, Mapping[str, float]]]

    def as_json(self) -> list[dict[str, Any]]:
        """The figures by name."""
        return [dict(each) for each in self.rounds]


def measure(*, quick: bool) -> LoggingCost:
    """Log attempts into a pipe that another process reads."""
    number, rounds = (2000, 3) if quick else (10_000, 9)
    return LoggingCost(figures_of("loadtests.bench.logging_attempts", number, rounds))


def report(cost: LoggingCost) -> str:
    """The table."""
    lines = []
    for name in cost.rounds[0]:
        green = [each[name]["green"] for each in cost.rounds]
        native = [each[name]["native"] for each in cost.rounds]
        target = (f"<= {MOST:g}", "met" if median(green) <= MOST else "MISSED")
        lines.append(
            [
                name,
                f"{median(green):.1f}",
                f"{min(green):.1f} to {max(green):.1f}",
                f"{median(native):.1f}",
                *(target if name.startswith("gateway") else ("", "")),
            ]
        )
    header = ("CPU us an attempt", "green thread", "rounds", "native thread", "target", "")
    return f"## logging: an attempt's line\n\n{table(header, lines)}\n"
