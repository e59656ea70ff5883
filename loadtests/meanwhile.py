"""What goes on beside a run, on a thread of its own."""

import threading
from abc import ABC, abstractmethod
from typing import Self


class Meanwhile(ABC):
    """Does ``_run`` while its block lasts; the block ends when that has ended."""

    def __init__(self) -> None:
        #: The block is over.
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)

    @abstractmethod
    def _run(self) -> None:
        """Return soon after ``_over`` is set."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
