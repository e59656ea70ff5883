"""What is shown: a live table on a terminal, a line now and then elsewhere, a summary at the end."""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from math import ceil

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pos_gateway.demo.cast import PARTS, DemoMerchants
from pos_gateway.demo.outcomes import Outcomes, class_of
from pos_gateway.demo.record import EVENT, RunRecord

#: Seconds between lines where there is no terminal.
LINE_EVERY = 5.0
#: Load for each core above which programs wait for one another; the demo alone makes less than one.
BUSY = 1.5


class Screen:
    """Shows outcomes and the worker's lanes."""

    def __init__(self, outcomes: Outcomes) -> None:
        self.console = Console()
        self._outcomes = outcomes
        self._live: Live | None = None
        self._next_line = 0.0

    def __enter__(self) -> "Screen":
        cast = ", ".join(f"{part.merchants} {part.name} ({part.says})" for part in PARTS)
        self.console.print("A green worker with 200 slots on an in-memory broker.")
        self.console.print(f"Simulated merchants, by when they answer: {cast}.\n")
        if self.console.is_terminal:
            self._live = Live(console=self.console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, elapsed: float, lanes: Iterable[tuple[str, int, int]]) -> None:
        """The state of things, ``seconds`` after the start."""
        table = self._table(lanes)
        if self._live is not None:
            self._live.update(Group(table, Text(f"{elapsed:4.0f} s", style="dim")), refresh=True)
        elif elapsed >= self._next_line:
            self._next_line = elapsed + LINE_EVERY
            parts = [
                f"{part.name} {self._counts(part)['accepted']}/{self._outcomes.sent[part.prefix]}"
                for part in PARTS
            ]
            self.console.print(f"{elapsed:4.0f} s  delivered: " + ", ".join(parts))

    def summary(self, record: RunRecord, problems: Sequence[str]) -> None:
        """Every order's outcome, and whether they add up."""
        shown = ("accepted", "in_doubt", "expired")
        table = _table("orders", "accepted", "in doubt", "expired", "other", "p50", "p99")
        for part in PARTS:
            sent, counts = self._outcomes.sent[part.prefix], self._counts(part)
            other = counts.total() - sum(counts[kind] for kind in shown)
            table.add_row(*self._row(part, sent, *(counts[kind] for kind in shown), other))
        self.console.print(table)
        for problem in problems:
            self.console.print(f"[red]does not add up:[/red] {problem}")
        if not problems:
            self.console.print(f"All {record.sent} orders are accounted for, none was made twice.")
        if hint := busy(os.getloadavg()[0], os.cpu_count() or 1):
            self.console.print(hint)
        self.console.print("The same on the operations page, live: pos-gateway demo --serve")

    def _table(self, lanes: Iterable[tuple[str, int, int]]) -> Table:
        in_flight, waiting = Counter[str](), Counter[str]()
        for merchant_id, running, blocked in lanes:
            in_flight[class_of(merchant_id)] += running
            waiting[class_of(merchant_id)] += blocked
        table = _table("orders", "delivered", "in flight", "waiting", "in broker", "p50", "p99")
        for part in PARTS:
            sent, counts = self._outcomes.sent[part.prefix], self._counts(part)
            here = in_flight[part.prefix], waiting[part.prefix]
            elsewhere = max(0, sent - counts.total() - sum(here))
            row = self._row(part, sent, counts["accepted"], *here, elsewhere)
            table.add_row(*row, style=part.colour)
        return table

    def _counts(self, part: DemoMerchants) -> Counter[str]:
        return self._outcomes.counts[part.prefix]

    def _row(self, part: DemoMerchants, *counts: int) -> list[str]:
        """How many orders, and seconds until their outcomes."""
        seconds = sorted(self._outcomes.times[EVENT][part.prefix].seconds)
        times = [_time(_percentile(seconds, share)) if seconds else "-" for share in (0.5, 0.99)]
        return [f"{part.merchants} {part.name}", *map(str, counts), *times]


def _table(*headings: str) -> Table:
    """A table whose first column is the merchants, narrow enough for 80 columns."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("merchants", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[max(0, ceil(share * len(ordered)) - 1)]


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def busy(load: float, cores: int) -> str:
    """That other programs have made the times longer; empty if the demo had the machine to itself."""
    if load < BUSY * cores:
        return ""
    return f"This machine was busy (a load of {load:.1f} on {cores} cores): the times are longer for it."
