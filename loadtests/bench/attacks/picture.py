"""A picture of slots over time: ``python -m loadtests.bench.attacks.picture SERIES SVG``.

SERIES is what ``python -m loadtests.bench --series`` wrote; of each attack the run at a steady rate
is drawn, one panel for each candidate that has one, in the order in which they played.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

#: Slots of a worker.
SLOTS = 200
_COLOURS = {"healthy": "#2a9d8f", "troubled": "#e76f51"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw the runs in a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("series", type=Path)
    parser.add_argument("svg", type=Path)
    parser.add_argument("--attack", help="only this attack's runs; its name")
    options = parser.parse_args(arguments)
    runs = json.loads(options.series.read_text())
    wanted = [run for run in runs if options.attack in (None, run["attack"])]
    draw(wanted, options.svg)


def draw(runs: Sequence[Mapping[str, Any]], path: Path) -> None:
    """One panel for each run, one above the other."""
    mpl.rcParams["svg.hashsalt"] = "slots"  # the same runs, the same file
    figure = Figure(figsize=(9, 2.6 * len(runs) + 0.6), layout="constrained")
    panels = figure.subplots(len(runs), 1, squeeze=False)
    for axes, run in zip(panels[:, 0], runs, strict=True):
        _panel(axes, run)
    panels[0, 0].legend(loc="upper right", ncols=3, fontsize=8, framealpha=0.9)
    panels[-1, 0].set_xlabel("seconds")
    figure.savefig(path, metadata={"Date": None})


def _panel(axes: Axes, run: Mapping[str, Any]) -> None:
    slots, step = run["slots"], run["step"]
    seconds = [place * step for place in range(len(slots["healthy"]))]
    axes.stackplot(
        seconds,
        slots["troubled"],
        slots["healthy"],
        labels=["merchants in trouble", "healthy merchants"],
        colors=[_COLOURS["troubled"], _COLOURS["healthy"]],
        linewidth=0,
    )
    for start, end in _bad_spells(run, seconds[-1]):
        axes.axvspan(start, end, color="black", alpha=0.07, linewidth=0)
    axes.set_ylim(0, SLOTS * 1.05)
    axes.set_xlim(0, seconds[-1])
    axes.set_ylabel("slots in use")
    axes.set_title(f"{run['candidate']}, {run['run']}: {run['attack']}", loc="left", fontsize=10)


def _bad_spells(run: Mapping[str, Any], end: float) -> list[tuple[float, float]]:
    """When the merchants do not answer."""
    struck, every = run["struck_after"], run["flaps_every"]
    if every is None:
        return [(struck, end)]
    turns = [struck]
    while turns[-1] < end:
        turns.append(turns[-1] + every)
    return [(start, min(stop, end)) for start, stop in list(pairwise(turns))[::2]]


if __name__ == "__main__":
    main()
