"""What each step of the move did to the orders: a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table

from loadtests.canary.orders import Where


@dataclass(frozen=True, slots=True)
class Step:
    """One share of the merchants in the canary, for a while."""

    name: str
    #: Milliseconds of CPU an order, of each kind of workers; None if they had none.
    old_cpu: float | None
    new_cpu: float | None
    #: What ``pos-gateway canary status`` makes of it, and why; empty if there is nothing to compare.
    verdict: str


def table(steps: Sequence[Step], seconds: Mapping[Where, Sequence[float]]) -> Table:
    """A row for each step: the orders of merchants outside the canary, then of those in it."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    made.caption = (
        "old, new: orders of healthy merchants outside and inside the canary. p50, p99: seconds from "
        "placing one until it was accepted. CPU: milliseconds an order."
    )
    made.add_column("canary")
    for heading in ("old", "p50", "p99", "CPU", "new", "p50", "p99", "CPU"):
        made.add_column(heading, justify="right")
    made.add_column("verdict")
    for step in steps:
        old = _side(seconds.get((step.name, False), ()), step.old_cpu)
        new = _side(seconds.get((step.name, True), ()), step.new_cpu)
        made.add_row(step.name, *old, *new, step.verdict)
    return made


def _side(seconds: Sequence[float], cpu: float | None) -> list[str]:
    ranked = sorted(seconds)
    times = [f"{_quantile(ranked, share):.2f}" if ranked else "-" for share in (0.5, 0.99)]
    return [str(len(ranked)), *times, "-" if cpu is None else f"{cpu:.1f}"]


def _quantile(ranked: Sequence[float], share: float) -> float:
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]
