"""Injected time: tests need not wait."""

import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Protocol


class Clock(Protocol):
    """A source of time. Durations and deadlines use ``monotonic``, records use ``now``."""

    def monotonic(self) -> float:
        """Seconds that never jump, and count suspension; only differences have a meaning."""
        ...

    def now(self) -> datetime:
        """The time of day in UTC; an operator or NTP may step the clock."""
        ...


class SystemClock:
    """The machine's clocks.

    Linux's CLOCK_MONOTONIC stops while the machine is suspended, CLOCK_BOOTTIME does not. Elsewhere
    ``ledger/lease.py`` detects a suspension by the time of day.
    """

    # Without a function in Python: each order reads the clocks a dozen times.
    if sys.platform == "linux":
        monotonic = staticmethod(partial(time.clock_gettime, time.CLOCK_BOOTTIME))
    else:
        monotonic = staticmethod(time.monotonic)
    now = staticmethod(partial(datetime.now, UTC))


SYSTEM_CLOCK: Clock = SystemClock()


def from_unix(at: float) -> datetime:
    """A Unix time in UTC, capped at ``datetime.max``: a float cannot hold its last microseconds.

    Some backends use the end of the year 9999 for "no deadline".
    """
    try:
        return datetime.fromtimestamp(at, UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.max.replace(tzinfo=UTC)


def shown(at: float | None) -> str | None:
    """A Unix time in ISO 8601; None outside the calendar."""
    if at is None:
        return None
    try:
        moment = datetime.fromtimestamp(at, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


class RunningClock:
    """Seconds during which this process ran, without those while the process was stopped.

    For judging others: after a pause of a second, by the container's CPU quota or a snapshot, every
    call would otherwise seem to take a second longer.

    Args:
        longest: maximum seconds between two readings while the process runs; the rest of a longer
            interval does not count.
    """

    def __init__(self, longest: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._longest = self._allowed = longest
        self._monotonic = monotonic
        self._last = monotonic()
        self._held_up = 0.0

    def now(self) -> float:
        """Only differences count."""
        now = self._monotonic()
        if now - self._last > self._allowed:
            self._held_up += now - self._last - self._allowed
        self._last = now
        return now - self._held_up

    def rest(self, seconds: float) -> None:
        """Allow readings to be ``seconds`` further apart: the process rests; 0: works again."""
        self.now()
        self._allowed = self._longest + seconds


#: Minimum seconds of a step of the time of day; NTP slews less.
STEP = 1.0


class StepWatch:
    """Detects steps of the time of day, which move every order's ``deliver_by``."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._offset = self._measure()

    def stepped(self) -> float:
        """Seconds of steps of the time of day since the last call; 0.0 without a step."""
        offset = self._measure()
        step = offset - self._offset
        self._offset = offset
        return step if abs(step) >= STEP else 0.0

    def _measure(self) -> float:
        return self._clock.now().timestamp() - self._clock.monotonic()
