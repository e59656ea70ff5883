"""Whether a lowered concurrency limit helps: whether fewer of a merchant's calls fail with it.

Some calls of some POSes time out however few are in flight. A limit that is lowered for those falls
to 1, and most of the merchant's orders expire. So calls are counted apart: those that started under
at most half of the full limit, and the others.
"""

from dataclasses import dataclass, field
from math import inf

#: Calls that are compared: the last ones with the lowered limit, and with the full one. With the
#: full one half of them say enough: each failed one is a call of an overloaded POS.
WINDOW = 20
#: Answers in a row after which nothing is known any more.
CLEAN = 100

_ALL = (1 << WINDOW) - 1


@dataclass(slots=True, eq=False)
class Results:
    """The results of the last calls; one bit for each, the newest lowest."""

    calls: int = 0
    _failed: int = 0

    def record(self, *, failed: bool) -> None:
        """A call has ended."""
        self.calls = min(WINDOW, self.calls + 1)
        self._failed = (self._failed << 1 | failed) & _ALL

    @property
    def failed(self) -> int:
        """Calls that timed out, or were refused as one too many."""
        return self._failed.bit_count()


@dataclass(slots=True, eq=False)
class LimitTrial:
    """A merchant's calls since the first that timed out, or was refused as one too many."""

    full: Results = field(default_factory=Results)
    lowered: Results = field(default_factory=Results)
    #: The lowest limit since it was full, and since when: calls before that are no part of ``lowered``.
    _lowest: float = inf
    _since: float = -inf
    _is_given_up: bool = False
    _answers: int = 0

    def record(self, started: float, *, failed: bool, lowered: bool) -> None:
        """A call has ended that started then, under a lowered limit or a full one."""
        self._answers = 0 if failed else self._answers + 1
        if not lowered:
            self.full.record(failed=failed)
        elif started >= self._since:
            self.lowered.record(failed=failed)

    @property
    def may_help(self) -> bool:
        """Whether a lowered limit may help: it was not given up, or half of the calls fail without."""
        return self._fails_when_full or not self._is_given_up

    @property
    def _fails_when_full(self) -> bool:
        return 2 * self.full.failed >= self.full.calls >= WINDOW // 2

    def lower(self, limit: int, now: float) -> None:
        """The limit is lowered to this: what it was before helped too little."""
        self._is_given_up = False
        if limit < self._lowest:
            self._lowest, self._since, self.lowered = limit, now, Results()

    def give_up(self) -> None:
        """The full limit is back: the lowered one does not help."""
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
