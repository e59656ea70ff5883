"""A flame graph as an SVG that needs nothing else: a box for each function, on the one that called it.

As wide as its share of the samples, coloured by the part it works for; pointed at, it tells its
name and share.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

from loadtests.profile.parts import PARTS, Frame, Stack, part_of

_WIDTH, _ROW, _FONT = 1600, 17, 11
#: Pixels of a letter, and of the narrowest box that is drawn.
_LETTER, _NARROWEST = 6.6, 0.4
_COLOURS = (
    *("#8ecae6", "#a8dadc", "#2a9d8f", "#b5c99a", "#e9c46a", "#f4a261"),
    *("#e76f51", "#cdb4db", "#ffafcc", "#adb5bd", "#dee2e6"),
)
_COLOUR_OF = dict(zip(PARTS, _COLOURS, strict=True))


@dataclass(slots=True)
class _Node:
    """A function as called from one place, and what it called."""

    name: str
    samples: int = 0
    #: How many of these each part has; the most of them colour the box.
    parts: dict[str, int] = field(default_factory=dict)
    called: dict[Frame, "_Node"] = field(default_factory=dict)

    def add(self, frames: tuple[Frame, ...], samples: int, part: str) -> None:
        node = self
        node._count(samples, part)
        for frame in frames:
            node = node.called.setdefault(frame, _Node(str(frame)))
            node._count(samples, part)

    def _count(self, samples: int, part: str) -> None:
        self.samples += samples
        self.parts[part] = self.parts.get(part, 0) + samples

    @property
    def depth(self) -> int:
        return 1 + max((node.depth for node in self.called.values()), default=0)


def flame_graph(stacks: Iterable[Stack], title: str, legend: Mapping[str, str]) -> str:
    """The drawing.

    Args:
        stacks: what was sampled.
        title: what it is of.
        legend: what to write of each part, beside its colour.
    """
    root = _Node("all")
    for stack in stacks:
        root.add(stack.frames, stack.samples, part_of(stack.frames))
    top = _ROW * (len(legend) + 3)
    height = top + _ROW * root.depth
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" font-family="monospace" font-size="{_FONT}">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="4" y="{_ROW}" font-size="14">{escape(title)}</text>',
        *_key(legend),
        *_boxes(root, root.samples, 0.0, height - _ROW),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _key(legend: Mapping[str, str]) -> Iterator[str]:
    for place, (part, words) in enumerate(legend.items(), 2):
        y = place * _ROW
        yield f'<rect x="4" y="{y - 11}" width="12" height="12" fill="{_COLOUR_OF[part]}"/>'
        yield f'<text x="22" y="{y}">{escape(words)}</text>'


def _boxes(node: _Node, total: int, x: float, y: float) -> Iterator[str]:
    width = _WIDTH * node.samples / max(1, total)
    if width < _NARROWEST:
        return
    colour = _COLOUR_OF[max(node.parts, key=lambda part: node.parts[part])] if node.parts else ""
    letters = int((width - 4) / _LETTER)
    name = node.name if len(node.name) <= letters else node.name[: max(0, letters - 1)] + "…"
    yield (
        f"<g><title>{escape(node.name)}: {node.samples / max(1, total):.1%}</title>"
        f'<rect x="{x:.1f}" y="{y:.0f}" width="{max(0.3, width - 0.3):.1f}" height="{_ROW - 1}" '
        f'fill="{colour}"/>'
        + (f'<text x="{x + 2:.1f}" y="{y + 12:.0f}">{escape(name)}</text>' if letters > 2 else "")
        + "</g>"
    )
    for called in sorted(node.called.values(), key=lambda each: each.name):
        yield from _boxes(called, total, x, y - _ROW)
        x += _WIDTH * called.samples / max(1, total)
