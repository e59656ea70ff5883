"""An event that a signal handler may set."""

from contextlib import suppress
from queue import Empty, SimpleQueue


class Wakeup:
    """Like ``threading.Event``, whose lock the thread that a signal interrupts may hold: ``set`` then waits for ever.

    ``SimpleQueue.put`` is documented as reentrant.
    """

    def __init__(self) -> None:
        self.is_notified = False
        self._wakes: SimpleQueue[None] = SimpleQueue()

    def notify(self) -> None:
        """Wake the threads that wait, or the next one that does. For any thread, and for signal handlers."""
        if not self.is_notified:  # else they would add up until the next wait
            self.is_notified = True
            self._wakes.put(None)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for ``notify``, for these seconds at most; whether there was one."""
        if not self.is_notified:
            with suppress(Empty):
                self._wakes.get(timeout=timeout)
            if self.is_notified:
                self._wakes.put(None)  # for other threads that wait
        return self.is_notified

    def clear(self) -> None:
        """Forget what was notified."""
        self.is_notified = False
        with suppress(Empty):
            while True:
                self._wakes.get_nowait()
