"""Time, as something that is handed in, so that tests need not wait for it."""

import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Where time comes from. Durations and deadlines use ``monotonic``, records use ``now``."""

    def monotonic(self) -> float:
        """Seconds that never jump, and go on while the machine is suspended; only differences count."""
        ...

    def now(self) -> datetime:
        """The time of day in UTC; it may be stepped by an operator or NTP."""
        ...


class SystemClock:
    """The machine's clocks.

    Linux's CLOCK_MONOTONIC stands still while the machine is suspended, and CLOCK_BOOTTIME does not.
    Where there is no such clock, ``ledger/lease.py`` notices by the time of day.
    """

    if sys.platform == "linux":

        def monotonic(self) -> float:
            return time.clock_gettime(time.CLOCK_BOOTTIME)
    else:

        def monotonic(self) -> float:
            return time.monotonic()

    def now(self) -> datetime:
        return datetime.now(UTC)


SYSTEM_CLOCK: Clock = SystemClock()


def from_unix(at: float) -> datetime:
    """This Unix time in UTC, or the calendar's end: a float has none of its last microseconds.

    The last one of the year 9999, by which some say that there is no deadline, is one of them.
    """
    try:
        return datetime.fromtimestamp(at, UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.max.replace(tzinfo=UTC)


class RunningClock:
    """Seconds during which this process ran: it stands still while the process does.

    For judging others: a process that was held up for a second, by its container's share of the
    processor or a snapshot, would else find that everybody took a second longer.

    Args:
        longest: seconds between two looks at most while the process runs; of what is longer, the
            rest does not count.
    """

    def __init__(self, longest: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._longest = longest
        self._monotonic = monotonic
        self._last = monotonic()
        self._held_up = 0.0

    def now(self) -> float:
        """Only differences mean anything."""
        now = self._monotonic()
        if now - self._last > self._longest:
            self._held_up += now - self._last - self._longest
        self._last = now
        return now - self._held_up


#: Seconds by which the time of day must have moved by itself to count as stepped; NTP slews less.
STEP = 1.0


class StepWatch:
    """Notices when the time of day is stepped, which moves every order's ``deliver_by``."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._offset = self._measure()

    def stepped(self) -> float:
        """Seconds that the time of day was stepped since the last look; 0.0 if it was not."""
        offset = self._measure()
        step = offset - self._offset
        self._offset = offset
        return step if abs(step) >= STEP else 0.0

    def _measure(self) -> float:
        return self._clock.now().timestamp() - self._clock.monotonic()
