"""Retry delays: exponential backoff with full jitter, never shorter than requested."""

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays in seconds, uniform between the floor and a limit that doubles up to ``longest``.

    Full jitter (AWS Architecture Blog, "Exponential Backoff And Jitter"): a thousand orders that
    failed together must not be retried together.
    """

    first: float = 2.0
    longest: float = 60.0
    floor: float = 1.0

    def delay(self, attempts: int, *, at_least: float | None = None) -> float:
        """Seconds to wait after this many attempts; ``at_least``: the POS's ``Retry-After``."""
        limit = min(self.longest, self.first * 2 ** min(attempts - 1, 30))
        delay = random.uniform(self.floor, max(self.floor, limit))
        return delay if at_least is None else at_least + delay / 4
