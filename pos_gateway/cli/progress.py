"""A progress bar on standard error, where that is a terminal."""

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

from pos_gateway.cli.output import notice
from pos_gateway.cli.printable import printable


class Progress:
    """Shows how much of the input was read. Without a terminal it shows nothing."""

    def update(self, summary: str) -> None:
        """So far, in words."""

    def say(self, text: str) -> None:
        """Print a line on standard error, above the bar."""
        notice(text)


@contextmanager
def progress_of(stream: BinaryIO) -> Iterator[Progress]:
    """Progress through the stream (in bytes, where it is a file) while entered."""
    if not sys.stderr.isatty():
        yield Progress()
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn
    from rich.progress import Progress as Bar

    size = _size(stream)
    columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"))
    console = Console(stderr=True)
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=size)

        def update(summary: str) -> None:
            bar.update(task, description=summary, completed=stream.tell() if size else 0)

        yield _Drawn(update, lambda text: console.print(text, markup=False, highlight=False))


class _Drawn(Progress):
    def __init__(self, update: Callable[[str], None], say: Callable[[str], None]) -> None:
        self._update = update
        self._say = say

    def update(self, summary: str) -> None:
        self._update(summary)

    def say(self, text: str) -> None:
        self._say(printable(text))


def _size(stream: BinaryIO) -> int | None:
    try:
        status = os.fstat(stream.fileno())
    except OSError:  # not a file of the system's, in a test
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
