"""A heat map as SVG: how often a value fell into which range, over time. As in ``charts.py``, words
are HTML beside it, colours the style sheet's."""

import hashlib
from collections.abc import Sequence
from math import ceil, sqrt
from typing import NamedTuple

from markupsafe import Markup

from pos_gateway.server.page.charts import HOVER, clock, time_labels

#: Shades in the style sheet, ``h1`` to ``h5``.
_SHADES = 5

_FIGURE = Markup(
    '<figure class="chart heat"><figcaption><span class="name">{title}</span> '
    '<span class="note">a stronger colour: more {what}, at most {most:,} in a field</span></figcaption>'
    '<div class="rows"><div class="ranges" aria-hidden="true">{names}</div><div class="plot">'
    '<svg viewBox="0 0 {width} {height}" preserveAspectRatio="none" role="img" '
    'aria-labelledby="{id}-t {id}-d"><title id="{id}-t">{title}</title><desc id="{id}-d">{says}</desc>'
    "{fields}{hovers}</svg></div></div>"
    '<div class="times" aria-hidden="true">{labels}</div></figure>'
)
_FIELD = Markup('<rect class="h{}" x="{}" y="{}" width="1" height="1"/>')
_NAME = Markup("<span>{}</span>")


class Range(NamedTuple):
    """A range of values, and how many fell into it at each time."""

    name: str
    counts: Sequence[int]


def heat_map(title: str, what: str, at: Sequence[float], ranges: Sequence[Range]) -> Markup:
    """Times from left to right, ranges from the lowest at the bottom.

    Args:
        title: unique on its page.
        what: is counted: ``calls``.
        at: Unix times, ascending; the last one is now.
        ranges: the lowest values first.
    """
    most = max((count for each in ranges for count in each.counts), default=0)
    if not most:
        return Markup('<p class="none">{}: no {} were counted in the last hour.</p>').format(
            title, what
        )
    rows = list(reversed(ranges))
    return _FIGURE.format(
        title=title,
        what=what,
        most=most,
        id="h" + hashlib.sha256(title.encode()).hexdigest()[:8],
        names=Markup("").join(_NAME.format(each.name) for each in rows),
        width=len(at),
        height=len(rows),
        says=_says(what, at, ranges),
        fields=Markup("").join(
            _FIELD.format(_shade(count, most), column, row)
            for row, each in enumerate(rows)
            for column, count in enumerate(each.counts)
            if count
        ),
        hovers=Markup("").join(
            HOVER.format(_hover(what, column, at, ranges), column, len(rows))
            for column in range(len(at))
        ),
        labels=time_labels(at),
    )


def _shade(count: int, most: int) -> int:
    """By the square root: a single call among hundreds is seen."""
    return max(1, ceil(_SHADES * sqrt(count / most)))


def _says(what: str, at: Sequence[float], ranges: Sequence[Range]) -> str:
    totals = ((each.name, sum(each.counts)) for each in ranges)
    return f"{clock(at[0])} to {clock(at[-1])} UTC, {what} in all: " + ", ".join(
        f"{name} {total:,}" for name, total in totals if total
    )


def _hover(what: str, column: int, at: Sequence[float], ranges: Sequence[Range]) -> str:
    counts = [f"{each.name} {each.counts[column]:,}" for each in ranges if each.counts[column]]
    return f"{clock(at[column])} UTC: " + (", ".join(counts) or f"no {what}")
