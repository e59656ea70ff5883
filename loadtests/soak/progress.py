"""How far a part has come: a bar where standard error is a terminal, now and then a line elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

#: Lines of a part, one of each so many faults.
LINES = 10


class Steps:
    """Counts faults that are done, and says what is waited for after them."""

    def __init__(self, part: str, faults: int) -> None:
        self._part, self._faults = part, faults
        self._done, self._began = 0, time.monotonic()

    def done(self, outstanding: int) -> None:
        """One more fault has come to its end, and nothing is known of so many orders."""
        self._done += 1
        if self._done * LINES // self._faults > (self._done - 1) * LINES // self._faults:
            self.say(f"{self._done} of {self._faults} faults, {outstanding} orders under way")

    def say(self, what: str) -> None:
        """What has happened, or is waited for."""
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        print(f"{self._part}, {minutes}:{seconds:02}: {what}", file=sys.stderr, flush=True)


class _Bar(Steps):
    def __init__(self, part: str, faults: int, bar: Progress) -> None:
        super().__init__(part, faults)
        self._bar, self._task = bar, bar.add_task(part, total=faults, what="faults")

    def done(self, outstanding: int) -> None:
        self._bar.update(self._task, advance=1, what=f"faults, {outstanding} orders under way")

    def say(self, what: str) -> None:
        self._bar.update(self._task, what=what)


@contextmanager
def progress(part: str, faults: int) -> Iterator[Steps]:
    """Show how far this part has come, for as long as the block lasts."""
    if not sys.stderr.isatty():
        yield Steps(part, faults)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[what]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        yield _Bar(part, faults, bar)
