"""Charts of what ``--json`` wrote: ``python -m loadtests.bench.charts BENCH_JSON FOLDER``.

A bar is the median of the rounds, and the line on it reaches from the least to the most. A case
that was not played has no chart.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from loadtests.bench.one_hangs import ONE_HANGS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: A figure of each round, by the candidate's name.
Bars = Mapping[str, Sequence[float]]

_OURS, _OTHERS = "#2a9d8f", "#8d99ae"


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw the charts in a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("json", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args(arguments)
    draw(json.loads(options.json.read_text()), options.folder)


def draw(figures: Mapping[str, Any], folder: Path) -> None:
    """``cpu.svg``, ``slots.svg`` and ``one-hangs.svg``, of what was played."""
    folder.mkdir(parents=True, exist_ok=True)
    cases, hung = figures["cases"], figures.get(ONE_HANGS.NAME)
    if "20ms" in cases:
        rounds = cases["20ms"]
        panels = [("orders a second", "rate"), ("CPU, ms an order", "cpu_ms")]
        _draw({title: of_entries(rounds, name) for title, name in panels}, folder / "cpu.svg")
    slots = {
        f"share of what the slots allow, merchants that take {name}": of_entries(
            cases[name], "of_slots"
        )
        for name in ("200ms", "500ms")
        if name in cases
    }
    if slots:
        _draw(slots, folder / "slots.svg", at=1.0)
    if hung:
        title = "p99 from submitting to POS, healthy merchants, seconds"
        _draw({title: of_latencies(hung)}, folder / "one-hangs.svg", log=True)


def of_entries(rounds: Sequence[Sequence[Mapping[str, Any]]], figure: str) -> Bars:
    """The figure of each entry in each round."""
    bars: dict[str, list[float]] = {}
    for results in rounds:
        for result in results:
            bars.setdefault(result["entry"], []).append(result[figure])
    return bars


def of_latencies(rounds: Sequence[Mapping[str, Mapping[str, Any]]]) -> Bars:
    """The p99 of each run in each round."""
    bars: dict[str, list[float]] = {}
    for played in rounds:
        for name, latency in played.items():
            bars.setdefault(name, []).append(latency["p99"])
    return bars


def _draw(
    panels: Mapping[str, Bars], path: Path, *, at: float | None = None, log: bool = False
) -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = path.stem  # the same figures, the same file
    height = sum(0.35 * len(bars) + 0.8 for bars in panels.values())
    figure = Figure(figsize=(9, height), layout="constrained")
    axes = figure.subplots(
        len(panels), 1, squeeze=False, height_ratios=[len(bars) + 1 for bars in panels.values()]
    )
    for panel, (title, bars) in zip(axes[:, 0], panels.items(), strict=True):
        _panel(panel, title, bars, log=log)
        if at is not None:
            panel.axvline(at, color="black", linestyle=":", linewidth=1)
    figure.savefig(path, metadata={"Date": None})


def _panel(axes: "Axes", title: str, bars: Bars, *, log: bool) -> None:
    names, middles = list(bars), [median(values) for values in bars.values()]
    spread = [
        [middle - min(values) for middle, values in zip(middles, bars.values(), strict=True)],
        [max(values) - middle for middle, values in zip(middles, bars.values(), strict=True)],
    ]
    drawn = axes.barh(
        names,
        middles,
        xerr=spread,
        color=[_OURS if name.startswith(("gateway", "undisturbed")) else _OTHERS for name in names],
        error_kw={"linewidth": 1},
    )
    axes.bar_label(drawn, [_short(middle) for middle in middles], padding=6)
    axes.margins(x=0.12)
    axes.invert_yaxis()
    axes.set_title(title, loc="left", fontsize=10)
    if log:
        axes.set_xscale("log")


def _short(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"


if __name__ == "__main__":
    main()
