"""Background work beside a run, on a thread."""

import threading
from abc import ABC, abstractmethod
from typing import Self


class Background(ABC):
    """Executes ``_run`` on a thread; leaving the block stops and joins it."""

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
