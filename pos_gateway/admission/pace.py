"""How quickly one merchant answers, and whether that makes it slow."""

from dataclasses import dataclass
from math import inf

from pos_gateway.admission.usual import Usual
from pos_gateway.outcome import Contact

#: Weight of the newest answer in what is usual for the merchant.
NEWEST = 0.2
#: A call is slow for a merchant that answers, as a rule, so many times quicker.
UNUSUAL = 5.0
#: A call is late, which counts against its merchant, after so many times the usual.
LATE = 3.0
#: Seconds under which no call is slow, however quick its merchant is as a rule.
NEVER_SLOW = 0.5
#: Quick replies in a row after which a slow merchant counts as healthy again.
QUICK_REPLIES = 10
#: That number grows so many times with each relapse within so many seconds of being healthy, up
#: to the last: a merchant that comes and goes stays among the slow while it does.
RELAPSED, RELAPSE, MOST_REPLIES = 4, 300.0, 160


@dataclass(slots=True, eq=False)
class Pace(Usual):
    """One merchant's. Times are seconds."""

    slow: bool = False
    #: A call has been out for too long, and none has been answered since.
    silent: bool = False
    _quick_replies: int = 0
    _relapses: int = 0
    _healthy_since: float = -inf

    def slow_after(self, longest: float) -> float:
        """When a call is slow: long by any measure, or very unlike this merchant.

        The second matters when a hundred merchants stop answering together: until their calls
        are known to be slow they take slots like everybody else's.
        """
        if self.mean is None:
            return longest
        return min(longest, max(NEVER_SLOW, UNUSUAL * self.mean))

    def late_after(self, longest: float) -> float:
        """When a call counts against its merchant: long by any measure, and unusual.

        A merchant that always takes its time is no worse than it was: it is kept to the slow
        ones' share, and that is all.
        """
        return inf if self.mean is None else max(longest, LATE * self.mean)

    def out_too_long(self) -> None:
        """A call is slow, and has not come back."""
        self._quick_replies = 0
        self.silent = True

    def came_back(self, seconds: float, contact: Contact, *, slow: bool, late: bool) -> None:
        """A call has come back after so long."""
        self._quick_replies = 0 if slow else self._quick_replies + (contact is Contact.ANSWERED)
        if contact in (Contact.ANSWERED, Contact.OVERLOADED):
            self.silent = False
        if contact is Contact.ANSWERED and not late:
            self.learn(seconds, NEWEST)

    @property
    def has_recovered(self) -> bool:
        """It has been quick often enough to count as healthy again."""
        wanted = QUICK_REPLIES * int(RELAPSED ** min(self._relapses, 10))
        return self._quick_replies >= min(MOST_REPLIES, wanted)

    def became_slow(self, now: float) -> None:
        self.slow = True
        relapsed = now - self._healthy_since < RELAPSE
        self._relapses = self._relapses + 1 if relapsed else 0

    def became_healthy(self, now: float) -> None:
        self.slow = self.silent = False
        self._healthy_since = now
