"""A progress bar on standard error, if that is a terminal."""

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import BinaryIO

from pos_gateway.cli.output import notice
from pos_gateway.cli.printable import printable


class Progress:
    """Shows how much of the input was read. Without a terminal it shows nothing."""

    def update(self, summary: str, done: int = 0) -> None:
        """Show the progress in words, and ``done`` of a given total."""

    def say(self, text: str) -> None:
        """Print a line on standard error, above the bar."""
        notice(text)


def progress_of(stream: BinaryIO) -> AbstractContextManager[Progress]:
    """Progress through the stream (in bytes, if it is a file) while entered."""
    size = _size(stream)
    return _progress(size, lambda _: stream.tell() if size else 0)


def progress_to(total: int) -> AbstractContextManager[Progress]:
    """Progress to ``total`` while entered."""
    return _progress(total, lambda done: done)


@contextmanager
def _progress(total: int | None, completed: Callable[[int], int]) -> Iterator[Progress]:
    if not sys.stderr.isatty():
        yield Progress()
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"))
    console = Console(stderr=True)
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total)

        def update(summary: str, done: int) -> None:
            bar.update(task, description=summary, completed=completed(done))

        yield _Drawn(update, lambda text: console.print(text, markup=False, highlight=False))


class _Drawn(Progress):
    def __init__(self, update: Callable[[str, int], None], say: Callable[[str], None]) -> None:
        self._update = update
        self._say = say

    def update(self, summary: str, done: int = 0) -> None:
        self._update(summary, done)

    def say(self, text: str) -> None:
        self._say(printable(text))


def _size(stream: BinaryIO) -> int | None:
    try:
        status = os.fstat(stream.fileno())
    except OSError:  # not a system file, in a test
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
