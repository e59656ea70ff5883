"""What the ledger costs an order: its share of the CPU, and the wait for what is written."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from loadtests.bench.patched import figures_of
from loadtests.bench.report import table
from testkit.servers.postgresql import PostgreSQL

NAME = "ledger"
#: Orders a second.
RATE = 500
#: Milliseconds of CPU, and those until both of its commits are durable, at most; on PostgreSQL.
CPU, WAIT = 0.15, 5.0


@dataclass(frozen=True, slots=True)
class LedgerCost:
    """What an order costs with the ledger and not without, by database, of each round."""

    rounds: Mapping[str, Sequence[dict[str, float]]]

    def as_json(self) -> dict[str, Any]:
        """The figures by name."""
        return dict(self.rounds)


def measure(*, quick: bool) -> LedgerCost:
    """Write orders into databases that keep what they have said is written."""
    seconds, rounds = (5, 3) if quick else (10, 7)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        postgresql = stack.enter_context(PostgreSQL())
        urls = {"PostgreSQL": postgresql.database(), "SQLite": f"sqlite:///{folder}/ledger.db"}
        how = (RATE, seconds, rounds)
        keeping = "loadtests.bench.keeping"
        return LedgerCost({name: figures_of(keeping, url, *how) for name, url in urls.items()})


def report(cost: LedgerCost) -> str:
    """The table."""
    lines = []
    for name, rounds in cost.rounds.items():
        for what, figure, most in (("CPU", "cpu", CPU), ("wait, p50", "p50", WAIT)):
            figures = [each[figure] for each in rounds]
            target = [f"<= {most:g}", "met" if median(figures) <= most else "MISSED"]
            spread = f"{min(figures):.2f} to {max(figures):.2f}"
            wanted = target if name == "PostgreSQL" else ["", ""]
            lines.append([name, what, f"{median(figures):.2f}", spread, *wanted])
        waits = [each["p99"] for each in rounds]
        spread = f"{min(waits):.2f} to {max(waits):.2f}"
        lines.append([name, "wait, p99", f"{median(waits):.2f}", spread, "", ""])
    header = ("ms an order", "", "median", "rounds", "target", "")
    return f"## ledger: what it adds to an order, at {RATE} a second\n\n{table(header, lines)}\n"
