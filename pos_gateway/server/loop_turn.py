"""Lets threads wait for a turn of the event loop: whether it runs, and how late."""

import asyncio
import threading


class LoopTurn:
    """An asyncio loop's ``Turn``: whether the loop runs, and how late."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Call it in the loop."""
        self._loop = asyncio.get_running_loop()

    def __call__(self, timeout: float | None) -> bool:
        turned = threading.Event()
        try:
            if self._loop is None:
                return False
            self._loop.call_soon_threadsafe(turned.set)
        except RuntimeError:  # it is closed
            return False
        return turned.wait(timeout)
