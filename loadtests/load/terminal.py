"""The story of a run for a terminal."""

from collections.abc import Iterator, Sequence
from itertools import islice

from loadtests.bench.report import table
from loadtests.load.histogram import histogram
from loadtests.load.story import Section


def summary(sections: Sequence[Section]) -> str:
    """The sections, one below the other."""
    return "\n\n".join(part for section in sections for part in _parts(section)) + "\n"


def _parts(section: Section) -> Iterator[str]:
    yield f"## {section.title}"
    if section.says:
        yield "\n".join(section.says)
    if section.table is not None:
        yield table(section.table.columns, section.table.rows)
    # Of the first class; the page has the others.
    for name, seconds in islice(section.histograms.items(), 2):
        yield f"{name}\n{histogram(seconds)}"
