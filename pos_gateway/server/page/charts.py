"""Charts as SVG, made here. Geometry alone is in it: words are HTML beside it, colours the style sheet's.

There is no inline style, which the page's policy forbids.
"""

import hashlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from markupsafe import Markup

from pos_gateway.server.page import words

#: Height of the drawing's coordinates; a value in time is one wide.
_HEIGHT = 100.0
#: A line's room above it: one along the edge would be half hidden.
_HEADROOM = 1.05
#: Labels below a chart.
_LABELS = 5

_FIGURE = Markup(
    '<figure class="chart"><figcaption><span class="name">{title}</span> {keys}</figcaption>'
    '<div class="plot"><span class="top">{top}</span>'
    '<svg viewBox="0 0 {width} {height:.0f}" preserveAspectRatio="none" role="img" '
    'aria-labelledby="{id}-t {id}-d"><title id="{id}-t">{title}</title><desc id="{id}-d">{says}</desc>'
    "{grid}{columns}{lines}{hovers}</svg></div>"
    '<div class="times" aria-hidden="true">{labels}</div></figure>'
)
_KEY = Markup('<span class="key {}">{}</span>')
_RECT = Markup('<rect class="{}" x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}"/>')
_LINE = Markup('<path class="line {}" d="{}" vector-effect="non-scaling-stroke"/>')
_GRID = Markup('<path class="grid" d="M0 {0:.1f}H{1}" vector-effect="non-scaling-stroke"/>')
HOVER = Markup(
    '<g><title>{}</title><rect class="hover" x="{}" y="0" width="1" height="{:.0f}"/></g>'
)
_LABEL = Markup("<span>{}</span>")


class Series(NamedTuple):
    """A name, its class in the style sheet (``c-accepted``), and a value for each time."""

    name: str
    kind: str
    values: Sequence[float | None]


def chart(
    title: str,
    at: Sequence[float],
    *,
    columns: Sequence[Series] = (),
    lines: Sequence[Series] = (),
    shown: Callable[[float | None], str] = words.number,
) -> Markup:
    """Columns, stacked, and lines above them, over time.

    Args:
        title: unique on its page.
        at: Unix times, ascending; the last one is now.
        shown: a value as text.
    """
    if not at:
        return Markup('<p class="none">{}: nothing was counted yet.</p>').format(title)
    top = _ceiling(_highest(columns, lines, len(at)))
    series = [*columns, *lines]
    return _FIGURE.format(
        title=title,
        id="c" + hashlib.sha256(title.encode()).hexdigest()[:8],
        keys=Markup(" ").join(_KEY.format(each.kind, each.name) for each in series),
        top=shown(top),
        width=len(at),
        height=_HEIGHT,
        says=_says(series, at, shown),
        grid=Markup("").join(_GRID.format(_HEIGHT * part, len(at)) for part in (0.02, 0.5, 0.98)),
        columns=_stacked(columns, len(at), top),
        lines=Markup("").join(_LINE.format(each.kind, _path(each.values, top)) for each in lines),
        hovers=Markup("").join(
            HOVER.format(_hover(series, number, at, shown), number, _HEIGHT)
            for number in range(len(at))
        ),
        labels=time_labels(at),
    )


def _highest(columns: Sequence[Series], lines: Sequence[Series], count: int) -> float:
    stacks = [sum(each.values[n] or 0 for each in columns) for n in range(count)]
    highest = max([0.0, *(value or 0 for each in lines for value in each.values)])
    return max([highest * _HEADROOM, *stacks])


def _ceiling(highest: float) -> float:
    """The next round number."""
    if highest <= 0:
        return 1.0
    unit = 10.0 ** len(str(int(highest))) / 10 if highest >= 1 else 0.001
    while highest > 10 * unit:
        unit *= 10
    return next(unit * step for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if highest <= unit * step)


def _stacked(columns: Sequence[Series], count: int, top: float) -> Markup:
    rects = []
    for number in range(count):
        base = _HEIGHT
        for each in columns:
            height = (each.values[number] or 0) / top * _HEIGHT
            if height > 0:
                base -= height
                rects.append(_RECT.format(each.kind, number + 0.08, base, 0.84, height))
    return Markup("").join(rects)


def _path(values: Sequence[float | None], top: float) -> str:
    steps, pen = [], "M"
    for number, value in enumerate(values):
        if value is None:
            pen = "M"
            continue
        y = _HEIGHT * (1 - value / top)
        steps.append(f"{pen}{number + 0.5:.1f} {y:.1f}")
        if pen == "M" and (number + 1 == len(values) or values[number + 1] is None):
            steps.append("h.3")  # a value by itself
        pen = "L"
    return "".join(steps)


def _says(
    series: Sequence[Series], at: Sequence[float], shown: Callable[[float | None], str]
) -> str:
    """The chart in words."""
    return f"{clock(at[0])} to {clock(at[-1])} UTC. " + " ".join(
        _summary(each, at, shown) for each in series
    )


def _summary(each: Series, at: Sequence[float], shown: Callable[[float | None], str]) -> str:
    known = [(value, number) for number, value in enumerate(each.values) if value is not None]
    if not known:
        return f"{each.name}: no value."
    highest, number = max(known)
    return (
        f"{each.name}: {shown(known[-1][0])} at last, highest {shown(highest)} at "
        f"{clock(at[number])}, lowest {shown(min(known)[0])}."
    )


def _hover(
    series: Sequence[Series], number: int, at: Sequence[float], shown: Callable[[float | None], str]
) -> str:
    values = ((each.name, each.values[number]) for each in series)
    return f"{clock(at[number])} UTC: " + ", ".join(
        f"{name} {shown(value)}" for name, value in values if value
    )


def time_labels(at: Sequence[float]) -> Markup:
    """A few times below a drawing."""
    count = min(_LABELS, len(at))
    if count == 1:
        return _LABEL.format("now")
    numbers = [each * (len(at) - 1) // (count - 1) for each in range(count - 1)]
    labels = [_LABEL.format(clock(at[number])) for number in numbers]
    return Markup("").join([*labels, _LABEL.format("now")])


def clock(at: float) -> str:
    """A Unix time as ``14:02``, in UTC."""
    return f"{datetime.fromtimestamp(at, UTC):%H:%M}"
