"""What is shown: a live table on a terminal, a line now and then elsewhere, a summary at the end."""

from collections.abc import Iterable

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from loadtests.demo.books import PARTS, Books, Score, part_of

#: Seconds between lines where there is no terminal.
LINE_EVERY = 5.0


class Screen:
    """Shows the books and the worker's lanes."""

    def __init__(self, books: Books, *, broker: str) -> None:
        self.console = Console()
        self._books = books
        self._broker = broker
        self._live: Live | None = None
        self._next_line = 0.0

    def __enter__(self) -> "Screen":
        cast = ", ".join(f"{part.merchants} {part.name} ({part.says})" for part in PARTS)
        self.console.print(f"A green worker with 200 slots on {self._broker}.")
        self.console.print(f"Simulated merchants, by when they answer: {cast}.\n")
        if self.console.is_terminal:
            self._live = Live(console=self.console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, elapsed: float, lanes: Iterable[tuple[str, int, int]]) -> None:
        """The state of things, so many seconds after the start."""
        table = self._table(lanes)
        if self._live is not None:
            self._live.update(Group(table, Text(f"{elapsed:4.0f} s", style="dim")), refresh=True)
        elif elapsed >= self._next_line:
            self._next_line = elapsed + LINE_EVERY
            parts = [
                f"{part.name} {score.delivered}/{score.submitted}"
                for part in PARTS
                if (score := self._books.scores[part.name])
            ]
            self.console.print(f"{elapsed:4.0f} s  delivered: " + ", ".join(parts))

    def summary(self, problems: list[str]) -> None:
        """Every order's outcome, and whether they add up."""
        table = _table("orders", "accepted", "in doubt", "expired", "other", "p50", "p99")
        shown = ("order.accepted", "order.in_doubt", "order.expired")
        for part in PARTS:
            score = self._books.scores[part.name]
            counts = [score.ended[kind] for kind in shown]
            table.add_row(
                f"{part.merchants} {part.name}",
                *map(str, (score.submitted, *counts, score.ended.total() - sum(counts))),
                *_times(score),
            )
        self.console.print(table)
        if problems:
            for problem in problems:
                self.console.print(f"[red]does not add up:[/red] {problem}")
        else:
            self.console.print(
                f"All {self._books.submitted_in_all} orders are accounted for, none was made twice."
            )

    def _table(self, lanes: Iterable[tuple[str, int, int]]) -> Table:
        here = {part.name: [0, 0] for part in PARTS}
        for merchant_id, in_flight, waiting in lanes:
            if merchant_id:
                counts = here[part_of(merchant_id).name]
                counts[0] += in_flight
                counts[1] += waiting
        table = _table("orders", "delivered", "in flight", "waiting", "in broker", "p50", "p99")
        for part in PARTS:
            score = self._books.scores[part.name]
            in_flight, waiting = here[part.name]
            elsewhere = max(0, score.open - in_flight - waiting)
            shown = (score.submitted, score.delivered, in_flight, waiting, elsewhere)
            table.add_row(
                f"{part.merchants} {part.name}",
                *map(str, shown),
                *_times(score),
                style={"healthy": "green", "slow": "yellow", "hanging": "red"}[part.name],
            )
        return table


def _table(*headings: str) -> Table:
    """A table whose first column is the merchants, narrow enough for 80 columns."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("merchants", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _times(score: Score) -> list[str]:
    seconds = (score.percentile(0.5), score.percentile(0.99))
    return ["-" if each is None else _time(each) for each in seconds]


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
