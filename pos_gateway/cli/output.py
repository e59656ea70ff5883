"""Output of commands: tables and colours on a terminal, tab-separated values into a pipe.

External text is escaped here, and nowhere else. rich honours ``NO_COLOR``, and is imported only on a terminal.
"""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click

Row = Sequence[object]


def table(
    columns: Sequence[str], rows: Iterable[Row], *, style: Callable[[Row], str] = lambda _: ""
) -> None:
    """Print the rows: as a table on a terminal, else as TSV with a line of headings.

    Args:
        columns: the headings.
        rows: as many cells each; None is an empty one.
        style: rich's style for a row.
    """
    if sys.stdout.isatty():
        _terminal_table(columns, rows, style)
        return
    click.echo("\t".join(columns))
    for row in rows:
        click.echo("\t".join(map(_cell, row)))


def json_line(value: Any) -> None:
    """Print the value as one line of JSON."""
    click.echo(json_text(value, separators=(",", ":")))


def json_document(value: Any) -> None:
    """Print the value as indented JSON."""
    click.echo(json_text(value, indent=2))


def line(*parts: tuple[str, str]) -> None:
    """Print one line of (text, rich style) pairs; unstyled into a pipe."""
    if not sys.stdout.isatty():
        click.echo("".join(printable(text) for text, _ in parts))
        return
    from rich.console import Console
    from rich.text import Text

    pieces = [(printable(text), style) for text, style in parts]
    Console(file=sys.stdout).print(Text.assemble(*pieces), soft_wrap=True)


def notice(text: str) -> None:
    """Print a message about the command itself, on standard error."""
    click.echo(printable(text), err=True)


def printable(text: object) -> str:
    """The text in one line, with control characters (escape sequences) escaped."""
    text = str(text)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def json_text(value: Any, **layout: Any) -> str:
    """The value as JSON with unprintable characters escaped: C1, DEL, text direction, surrogates.

    A JSON parser reads the same value.
    """
    text = json.dumps(value, ensure_ascii=False, **layout)
    if text.replace("\n", "").isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def _terminal_table(
    columns: Sequence[str], rows: Iterable[Row], style: Callable[[Row], str]
) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(*columns, box=SIMPLE_HEAD, pad_edge=False)
    for column in drawn.columns:
        column.overflow = "fold"  # a truncated id cannot be copied
    for row in rows:
        drawn.add_row(*[Text(_cell(cell)) for cell in row], style=style(row))
    Console(file=sys.stdout).print(drawn)


def _cell(cell: object) -> str:
    match cell:
        case None:
            return ""
        case bool():
            return "yes" if cell else "no"
        case _:
            return printable(cell)
