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
