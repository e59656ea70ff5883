"""An event for signal handlers."""

from contextlib import suppress
from queue import Empty, SimpleQueue


class Wakeup:
    """Like ``threading.Event``, without a lock that the interrupted thread may hold.

    A handler's ``set`` would wait for such a lock for ever. ``SimpleQueue.put`` is documented as
    reentrant.
    """

    def __init__(self) -> None:
        self.is_notified = False
        self._wakes: SimpleQueue[None] = SimpleQueue()

    def notify(self) -> None:
        """Wake waiting threads, or the next to wait. For any thread, and for signal handlers."""
        if not self.is_notified:  # they would add up until the next wait
            self.is_notified = True
            self._wakes.put(None)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait up to ``timeout`` seconds for ``notify``; returns whether there was any."""
        if not self.is_notified:
            with suppress(Empty):
                self._wakes.get(timeout=timeout)
            if self.is_notified:
                self._wakes.put(None)  # for other waiting threads
        return self.is_notified

    def clear(self) -> None:
        """Forget the notification."""
        self.is_notified = False
        with suppress(Empty):
            while True:
                self._wakes.get_nowait()
