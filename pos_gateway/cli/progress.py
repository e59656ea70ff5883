"""A progress bar on standard error, if that is a terminal."""

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, BinaryIO

from pos_gateway.cli.output import notice
from pos_gateway.cli.text import printable

if TYPE_CHECKING:
    from rich.progress import Progress as Bar


class ShownProgress:
    """Shows how much of the input was read. Without a bar it shows nothing."""

    def __init__(self, bar: "Bar | None" = None, completed: Callable[[int], int] = int) -> None:
        self._bar, self._completed = bar, completed

    def update(self, summary: str, done: int = 0) -> None:
        """Show the progress in words, and ``done`` of a given total."""
        if self._bar is not None:
            [task] = self._bar.task_ids
            self._bar.update(task, description=summary, completed=self._completed(done))

    def say(self, text: str) -> None:
        """Print a line on standard error, above the bar."""
        if self._bar is None:
            notice(text)
        else:
            self._bar.console.print(printable(text), markup=False, highlight=False)


def progress_of(stream: BinaryIO) -> AbstractContextManager[ShownProgress]:
    """Progress through the stream (in bytes, if it is a file) while entered."""
    size = _size(stream)
    return _progress(size, lambda _: stream.tell() if size else 0)


def progress_to(total: int | None) -> AbstractContextManager[ShownProgress]:
    """Progress to ``total`` while entered; None: to an unknown end."""
    return _progress(total, int)


@contextmanager
def _progress(total: int | None, completed: Callable[[int], int]) -> Iterator[ShownProgress]:
    if not sys.stderr.isatty():
        yield ShownProgress()
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"))
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        bar.add_task("", total=total)
        yield ShownProgress(bar, completed)


def _size(stream: BinaryIO) -> int | None:
    try:
        status = os.fstat(stream.fileno())
    except OSError:  # not a system file, in a test
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
