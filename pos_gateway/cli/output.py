"""Output of commands: tables and colours on a terminal, tab-separated values into a pipe.

External text is escaped (``text.py``). rich honours ``NO_COLOR``, and is imported only on a terminal.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click

from pos_gateway.cli.text import json_text, printable

Row = Sequence[object]


def is_terminal() -> bool:
    """Whether standard output is a terminal; closed by the caller, it is None."""
    return sys.stdout is not None and sys.stdout.isatty()


def table(
    columns: Sequence[str], rows: Iterable[Row], *, style: Callable[[Row], str] = lambda _: ""
) -> None:
    """Print the rows: as a table on a terminal, else as TSV with a line of headings.

    Args:
        columns: the headings.
        rows: as many cells each; None is an empty one.
        style: rich's style for a row.
    """
    if is_terminal():
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
    if not is_terminal():
        click.echo("".join(printable(text) for text, _ in parts))
        return
    from rich.console import Console
    from rich.text import Text

    pieces = [(printable(text), style) for text, style in parts]
    Console(file=sys.stdout).print(Text.assemble(*pieces), soft_wrap=True)


def notice(text: str) -> None:
    """Print a message about the command itself, on standard error."""
    click.echo(printable(text), err=True)


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
