"""How far a part has come: now and then a line on standard error."""

import sys
import time

#: Lines of a part: one after each tenth of its faults.
LINES = 10


class Steps:
    """Counts faults that are done, and says what is waited for after them."""

    def __init__(self, part: str, faults: int) -> None:
        self._part, self._faults = part, faults
        self._done, self._began = 0, time.monotonic()

    def done(self, outstanding: int) -> None:
        """One more fault has ended, with these orders in flight."""
        self._done += 1
        if self._done * LINES // self._faults > (self._done - 1) * LINES // self._faults:
            self.say(f"{self._done} of {self._faults} faults, {outstanding} orders in flight")

    def say(self, what: str) -> None:
        """What has happened, or is waited for."""
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        print(f"{self._part}, {minutes}:{seconds:02}: {what}", file=sys.stderr, flush=True)
