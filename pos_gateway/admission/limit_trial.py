"""Whether a lowered concurrency limit helps: whether fewer of a merchant's calls fail.

Some calls of some POSes time out however few are in flight. A limit lowered for these calls falls to 1, and most of
the merchant's orders expire. Calls are therefore counted apart: calls started under at most half of the full limit,
and the rest.
"""

from dataclasses import dataclass, field
from math import inf

#: Calls compared: the last calls with the lowered limit, and with the full limit. With the full limit half as many say
#: enough: each failure is a call of an overloaded POS.
WINDOW = 20
#: Answers in a row after which earlier calls count no more.
CLEAN = 100

_ALL = (1 << WINDOW) - 1


@dataclass(slots=True, eq=False)
class Results:
    """The results of the last calls; a bit per call, the newest lowest."""

    calls: int = 0
    _failed: int = 0

    def record(self, *, failed: bool) -> None:
        """A call has ended."""
        self.calls = min(WINDOW, self.calls + 1)
        self._failed = (self._failed << 1 | failed) & _ALL

    @property
    def failed(self) -> int:
        """Calls timed out, or refused as one too many."""
        return self._failed.bit_count()


@dataclass(slots=True, eq=False)
class LimitTrial:
    """A merchant's calls since the first timeout, or the first refusal as one too many."""

    full: Results = field(default_factory=Results)
    lowered: Results = field(default_factory=Results)
    #: The lowest limit since the limit was full, and since when: earlier calls are no part of ``lowered``.
    _lowest: float = inf
    _since: float = -inf
    _is_given_up: bool = False
    _answers: int = 0

    def record(self, started: float, *, failed: bool, lowered: bool) -> None:
        """A call started then has ended, under a lowered or a full limit."""
        self._answers = 0 if failed else self._answers + 1
        if not lowered:
            self.full.record(failed=failed)
        elif started >= self._since:
            self.lowered.record(failed=failed)

    @property
    def may_help(self) -> bool:
        """Whether a lowered limit may help: not given up, or half of the calls fail without."""
        return self._fails_when_full or not self._is_given_up

    @property
    def _fails_when_full(self) -> bool:
        return 2 * self.full.failed >= self.full.calls >= WINDOW // 2

    def lower(self, limit: int, now: float) -> None:
        """The limit is lowered to this: the earlier limit helped too little."""
        self._is_given_up = False
        if limit < self._lowest:
            self._lowest, self._since, self.lowered = limit, now, Results()

    def give_up(self) -> None:
        """The full limit is back: the lowered limit does not help."""
        self._lowest, self._is_given_up = inf, True

    @property
    def is_over(self) -> bool:
        """Whether the merchant has recovered."""
        return self._answers >= CLEAN

    @property
    def is_useless(self) -> bool:
        """Whether the limit fell to 1, and no smaller share of calls fails since.

        A limit above 1 may fail for being too high still: half of 200 at a POS that takes 2 at once.
        """
        full, lowered = self.full, self.lowered
        if self._lowest > 1 or lowered.calls < WINDOW:
            return False
        if full.calls < WINDOW and not self._fails_when_full:
            return True
        return lowered.failed * full.calls >= full.failed * lowered.calls
