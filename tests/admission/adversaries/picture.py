"""The picture in docs/why-admission.md: ``python -m tests.admission.adversaries.picture SVG``."""

import sys
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from tests.admission.adversaries.driver import Driver, Group, about, hangs_from

_COLOURS = {"light": "#2a9d8f", "heavy": "#e9c46a", "silent": "#e76f51"}
#: When the others arrive, or stop answering; and the seconds that are drawn.
STRIKE, END = 10.0, 30.0


def _scenes() -> list[tuple[str, list[Group]]]:
    healthy = Group("healthy", 60, about(0.02), rate=100)
    busy = Group("healthy", 500, about(0.2), rate=150)
    return [
        (
            "100 merchants at 1 s with endless backlogs, beside 100 orders/s at 20 ms",
            [healthy, Group("others", 100, about(1.0), backlog=10, start=STRIKE)],
        ),
        (
            "500 of 1,000 merchants at 0.2 s stop answering, 300 orders/s",
            [busy, Group("others", 500, hangs_from(STRIKE, about(0.2)), rate=150)],
        ),
        (
            "the same, where they are one provider's",
            [busy, Group("others", 500, hangs_from(STRIKE, about(0.2)), rate=150, provider="x")],
        ),
    ]


def draw(path: Path) -> None:
    """One panel for each scene, one above the other."""
    mpl.rcParams["svg.hashsalt"] = "slots"  # the same runs, the same file
    scenes = _scenes()
    figure = Figure(figsize=(9, 2.5 * len(scenes) + 0.4), layout="constrained")
    panels = figure.subplots(len(scenes), 1, sharex=True)
    for axes, (title, groups) in zip(panels, scenes, strict=True):
        driver = Driver(*groups, seconds=END, warm_up=STRIKE).run()
        at = [second for second, _ in driver.slots]
        names = ("light", "heavy", "silent")
        axes.stackplot(
            at,
            *([slots[name] for _, slots in driver.slots] for name in names),
            labels=[f"{name} merchants" for name in names],
            colors=[_COLOURS[name] for name in names],
            linewidth=0,
        )
        p99 = driver.seen["healthy"].p99() * 1000
        axes.set_title(
            f"{title}: healthy p99 {p99:.0f} ms, {driver.cut_short} cut short",
            loc="left",
            fontsize=9,
        )
        axes.set_ylim(0, 210)
        axes.set_xlim(0, END)
        axes.set_ylabel("slots in use")
    panels[0].legend(loc="center left", fontsize=8)
    panels[-1].set_xlabel("seconds")
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
