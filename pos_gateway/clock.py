"""Time, as something that is handed in, so that tests need not wait for it."""

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Where time comes from. Durations and deadlines use ``monotonic``, records use ``now``."""

    def monotonic(self) -> float:
        """Seconds that never jump; only differences mean anything."""
        ...

    def now(self) -> datetime:
        """The time of day in UTC; it may be stepped by an operator or NTP."""
        ...


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        return time.monotonic()

    def now(self) -> datetime:
        return datetime.now(UTC)


SYSTEM_CLOCK: Clock = SystemClock()

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
