"""Ctrl-C that ends the input rather than the program, so that work in flight is finished."""

import signal
from collections.abc import Iterator
from types import FrameType
from typing import Self, TypeVar

Item = TypeVar("Item")


class CtrlC:
    """While entered, Ctrl-C only ends ``until_pressed``."""

    def __init__(self) -> None:
        self.pressed = False
        self._waiting = False

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def until_pressed(self, items: Iterator[Item]) -> Iterator[Item]:
        """The items up to Ctrl-C, which also interrupts the wait for the next one."""
        while True:
            self._waiting = True  # first: the test below sees a signal before it
            try:
                if self.pressed:
                    return
                item = next(items)
            except (StopIteration, KeyboardInterrupt):
                return
            finally:
                self._waiting = False
            yield item

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.pressed = True
        if self._waiting:
            raise KeyboardInterrupt
