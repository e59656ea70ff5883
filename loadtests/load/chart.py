"""A chart over time as SVG, drawn by hand: it needs nothing but what reads it.

Colours are the page's (classes ``s0`` to ``s5``), so that they fit a light and a dark one.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

from loadtests.load.slices import Series

_WIDTH, _HEIGHT = 540, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 8, 30, 26
_INNER_WIDTH, _INNER_HEIGHT = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart, or one layer of a stacked one."""

    name: str
    values: Series
    #: Which of the page's colours.
    colour: int
    faint: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over the same seconds."""

    title: str
    #: What is to be seen in it.
    note: str
    lines: Sequence[Line]
    #: Seconds between two values.
    step: float
    #: How a value is written.
    show: Callable[[float], str] = "{:,.0f}".format
    #: Areas, one on the other.
    stacked: bool = False
    #: Up to where it reaches at least.
    reaches: float = 0.0
    #: Powers of ten are evenly apart.
    logarithmic: bool = False
    #: Stretches, in seconds, that are shaded.
    shaded: Sequence[tuple[float, float]] = ()

    def svg(self) -> str:
        """The chart; what a stretch's values are is shown where the pointer is."""
        parts = [*self._shades(), *self._grid(), *self._shapes(), *self._legend(), *self._values()]
        return (
            f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(self.title)}">'
            f"{''.join(parts)}</svg>"
        )

    @property
    def _end(self) -> float:
        return max(len(line.values) for line in self.lines) * self.step

    @property
    def _drawn(self) -> Sequence[Series]:
        """The lines' values, each on those before it if they are stacked."""
        if not self.stacked:
            return [line.values for line in self.lines]
        drawn: list[Series] = []
        below: Sequence[float] = [0.0] * len(self.lines[0].values)
        for line in self.lines:
            below = [
                under + (value or 0.0) for under, value in zip(below, line.values, strict=True)
            ]
            drawn.append(below)
        return drawn

    @property
    def _ticks(self) -> list[float]:
        known = [value for values in self._drawn for value in values if value is not None]
        if not self.logarithmic:
            return _even(max([*known, self.reaches]))
        positive = [value for value in known if value > 0] or [1.0]
        low, high = floor(log10(min(positive))), ceil(log10(max(positive)))
        return [10.0**power for power in range(low, max(high, low + 1) + 1)]

    def _x(self, second: float) -> float:
        return _LEFT + _INNER_WIDTH * second / self._end

    def _y(self, value: float, ticks: Sequence[float]) -> float:
        low, high = ticks[0], ticks[-1]
        if self.logarithmic:
            share = log10(max(value, low) / low) / log10(high / low)
        else:
            share = value / high
        return _TOP + _INNER_HEIGHT * (1 - share)

    def _shades(self) -> Iterator[str]:
        for begins, ends in self.shaded:
            x, width = self._x(begins), self._x(min(ends, self._end)) - self._x(begins)
            yield (
                f'<rect class="shade" x="{x:.1f}" y="{_TOP}" width="{max(0.0, width):.1f}" '
                f'height="{_INNER_HEIGHT}"/>'
            )

    def _grid(self) -> Iterator[str]:
        ticks = self._ticks
        for value in ticks:
            y = self._y(value, ticks)
            yield f'<path class="rule" d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"/>'
            yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" class="y">{escape(self.show(value))}</text>'
        minutes = self._end > 600
        for second in _even(self._end)[:-1]:
            label = f"{second / 60:g} min" if minutes else f"{second:g} s"
            yield f'<text x="{self._x(second):.1f}" y="{_HEIGHT - 8}" class="x">{label}</text>'

    def _shapes(self) -> Iterator[str]:
        ticks, base = self._ticks, _TOP + _INNER_HEIGHT
        layers = list(zip(self.lines, self._drawn, strict=True))
        for line, values in reversed(layers):  # of stacked ones, the lower lies on the higher
            for points in self._runs(values, ticks):
                path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
                if self.stacked:
                    path += f"L{points[-1][0]:.1f} {base}L{points[0][0]:.1f} {base}Z"
                kind = "area" if self.stacked else "line faint" if line.faint else "line"
                yield f'<path class="{kind} s{line.colour}" d="M{path}"/>'

    def _runs(self, values: Series, ticks: Sequence[float]) -> Iterator[list[tuple[float, float]]]:
        """The points of each stretch without a gap; a single one is as wide as its slice."""
        points: list[tuple[float, float]] = []
        for place, value in enumerate([*values, None]):
            if value is not None:
                points.append((self._x((place + 0.5) * self.step), self._y(value, ticks)))
            elif points:
                [(first, y), *_] = points
                yield points if len(points) > 1 else [(first - 1, y), (first + 1, y)]
                points = []

    def _legend(self) -> Iterator[str]:
        x = float(_LEFT)
        for line in self.lines:
            faint = " faint" if line.faint else ""
            yield f'<path class="line s{line.colour}{faint}" d="M{x:.0f} 14h16"/>'
            yield f'<text x="{x + 22:.0f}" y="18">{escape(line.name)}</text>'
            x += 38 + 6.4 * len(line.name)

    def _values(self) -> Iterator[str]:
        for place in range(len(self.lines[0].values)):
            start = place * self.step
            known = [
                f"{line.name} {self.show(value)}"
                for line in self.lines
                if (value := line.values[place]) is not None
            ]
            yield (
                f'<rect class="hover" x="{self._x(start):.1f}" y="{_TOP}" '
                f'width="{_INNER_WIDTH * self.step / self._end:.2f}" height="{_INNER_HEIGHT}">'
                f"<title>{start:,.0f} s: {escape(', '.join(known))}</title></rect>"
            )


def _even(highest: float) -> list[float]:
    """Four to eight round numbers from 0 to the highest, or just above it."""
    if highest <= 0:
        return [0.0, 1.0]
    magnitude = 10.0 ** floor(log10(highest / 4))
    step = next(
        magnitude * factor for factor in (1, 2, 5, 10) if highest / (magnitude * factor) <= 6
    )
    return [number * step for number in range(ceil(highest / step - 1e-9) + 1)]
