"""The move in one picture: who delivered the orders over time, and how long they took. SVG, drawn by hand."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import log10

_WIDTH, _HEIGHT, _LEFT, _RIGHT = 900, 430, 56, 884
#: Top and bottom of the two panels.
_LOAD, _TIMES = (86, 226), (266, 386)
#: Bars, and dots of each side.
_BINS = 90
#: The colours of the two sides, of text and of rules.
OLD, NEW, _INK, _RULE = "#9aa3af", "#2563eb", "#1f2937", "#d1d5db"


@dataclass(frozen=True, slots=True)
class Delivered:
    """One order of a healthy merchant that was accepted."""

    #: When it was placed, in the time of the steps.
    at: float
    in_canary: bool
    #: From placing it until it was accepted.
    seconds: float


def picture(orders: Sequence[Delivered], steps: Sequence[tuple[str, float]], summary: str) -> str:
    """The move as SVG.

    Args:
        orders: those of healthy merchants.
        steps: each with the time at which it began, in order.
        summary: a sentence below the picture.
    """
    begin, end = steps[0][1], max([each.at for each in orders] + [steps[-1][1] + 1.0])
    drawing = _Drawing(begin, (end - begin) / _BINS, orders)
    parts = [
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        *_legend(),
        *drawing.load(),
        *drawing.times(),
        *drawing.steps(steps),
        _text(_LEFT, _HEIGHT - 12, summary, weight="bold"),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="The move to the canary and back" font-family="sans-serif" font-size="12">'
        f"{''.join(parts)}</svg>\n"
    )


class _Drawing:
    def __init__(self, begin: float, width: float, orders: Sequence[Delivered]) -> None:
        self._begin, self._width = begin, width
        self._bins: list[tuple[list[float], list[float]]] = [([], []) for _ in range(_BINS)]
        for each in orders:
            if each.at >= begin:
                place = min(int((each.at - begin) / width), _BINS - 1)
                self._bins[place][each.in_canary].append(each.seconds)

    def load(self) -> Iterator[str]:
        """Bars: orders a second, those in the canary on the others."""
        top, bottom = _LOAD
        most = max(len(old) + len(new) for old, new in self._bins) or 1
        yield from _rule(top, f"{most / self._width:.0f}")
        yield from _rule(bottom, "0")
        yield _text(_LEFT, bottom + 16, "orders a second")
        for place, (old, new) in enumerate(self._bins):
            y = float(bottom)
            for side, colour in ((old, OLD), (new, NEW)):
                height = (bottom - top) * len(side) / most
                y -= height
                yield (
                    f'<rect x="{self._x(place):.1f}" y="{y:.1f}" width="{_step() - 1:.1f}" '
                    f'height="{height:.1f}" fill="{colour}"/>'
                )

    def times(self) -> Iterator[str]:
        """Dots: the slowest order of each side, powers of ten evenly apart."""
        for power, label in ((-1, "0.1 s"), (0, "1 s"), (1, "10 s"), (2, "100 s")):
            yield from _rule(_height_of(10.0**power), label)
        yield _text(_LEFT, _TIMES[1] + 16, "slowest order, from placing it until it was accepted")
        for place, sides in enumerate(self._bins):
            for side, colour in zip(sides, (OLD, NEW), strict=True):
                if side:
                    x = self._x(place) + _step() / 2
                    yield (
                        f'<circle cx="{x:.1f}" cy="{_height_of(max(side)):.1f}" r="3" '
                        f'fill="{colour}"/>'
                    )

    def steps(self, steps: Sequence[tuple[str, float]]) -> Iterator[str]:
        """A line where each step begins, with its name."""
        for name, at in steps:
            x = self._x((at - self._begin) / self._width)
            yield (
                f'<path d="M{x:.1f} {_LOAD[0] - 22}V{_TIMES[1]}" stroke="{_INK}" '
                'stroke-dasharray="3 3"/>'
            )
            yield _text(x + 4, _LOAD[0] - 12, name, weight="bold")

    @staticmethod
    def _x(place: float) -> float:
        return _LEFT + place * _step()


def _step() -> float:
    return (_RIGHT - _LEFT) / _BINS


def _height_of(seconds: float) -> float:
    top, bottom = _TIMES
    return bottom - (bottom - top) * (log10(min(max(seconds, 0.1), 100.0)) + 1) / 3


def _rule(y: float, label: str) -> Iterator[str]:
    yield f'<path d="M{_LEFT} {y:.1f}H{_RIGHT}" stroke="{_RULE}"/>'
    yield _text(_LEFT - 6, y + 4, label, anchor="end")


def _legend() -> Iterator[str]:
    yield _text(_LEFT, 24, "Merchants move to green workers, and back", weight="bold", size=15)
    for x, colour, name in (
        (_LEFT, OLD, "merchants outside the canary: synchronous workers"),
        (400, NEW, "merchants in the canary: one green worker (killed: the old ones take over)"),
    ):
        yield f'<rect x="{x}" y="36" width="11" height="11" fill="{colour}"/>'
        yield _text(x + 17, 46, name)


def _text(
    x: float, y: float, text: str, *, weight: str = "normal", anchor: str = "start", size: int = 12
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{_INK}" font-weight="{weight}" font-size="{size}" '
        f'text-anchor="{anchor}">{escape(text)}</text>'
    )
