"""Requests within a POS's limits, a second and in a longer time."""

from collections import deque
from math import inf

from pos_gateway.admission.limits import QuotaTerms

#: The part of a longer time's requests for bursts; the rest come evenly.
BURST = 0.1
#: The least part of a quota: dividing by 0 is undefined. Products of parts are exact to as much.
LEAST = 1e-6


class Rate:
    """Requests of a process with a part of a quota; an order's ``terms.requests`` count at the order's start.

    ``terms.per_second`` holds in any second; an order with more requests than a second's starts once in
    the time for these requests. ``terms.sustained`` holds as a saved-up burst and an even rest.
    An added part comes without a burst: burst and rest stay within the limit, however the fleet divides
    the quota, and whatever restarts.
    """

    def __init__(self, terms: QuotaTerms, part: float, now: float) -> None:
        self._terms, self._part = terms, part
        self._sent: deque[float] = deque()
        #: Requests within a span of seconds, and orders.
        self._most, self.most, self._span = inf, inf, 0.0
        #: Requests of a burst, seconds between two requests beside the burst (0: no limit), and when the
        #: whole burst is saved up.
        self._burst, self._pause, self._saved_at = 1.0, 0.0, now
        self._divide()
        self._saved_at += (self._burst - terms.requests) * self._pause

    def agree(self, terms: QuotaTerms, part: float, now: float) -> None:
        """Set the limits, and this process's part.

        Earlier requests count, and an added part as used up: by the part's former process.
        """
        if (terms, part) == (self._terms, self._part):
            return
        saved = self._burst - max(0.0, self._saved_at - now) / (self._pause or inf)
        most, added = self._most, self._part < part
        self._terms, self._part = terms, part
        self._divide()
        if added and most < self._most < inf:
            self._sent.extend([now] * int(self._most - most))
        self._saved_at = now + max(0.0, self._burst - saved) * self._pause

    def sent(self, requests: int, now: float) -> None:
        """Count requests: an order's at the start, a poll's one by one."""
        self._sent.extend([now] * requests)
        self._saved_at = max(self._saved_at, now) + requests * self._pause

    def ready_at(self, requests: int) -> float:
        """When ``requests`` may be sent at once; inf: never."""
        at, earlier = -inf, self._most - requests
        if earlier < 0 or (self._pause and requests > self._burst):
            return inf
        if len(self._sent) > earlier:
            at = self._sent[-int(earlier) - 1] + self._span
        if not self._pause:
            return at
        return max(at, self._saved_at - (self._burst - requests) * self._pause)

    @property
    def interval(self) -> float:
        """Seconds between two evenly spread starts of orders."""
        return max(self._span / self.most, self._pause * self._terms.requests)

    def is_idle(self, now: float) -> bool:
        """Whether no request counts any more."""
        return self._saved_at <= now and (not self._sent or self._sent[-1] + self._span <= now)

    def _divide(self) -> None:
        terms, kept, part = self._terms, 0, max(self._part, LEAST)
        order = terms.requests
        self._most, self.most, self._span = inf, inf, 0.0
        self._burst, self._pause = 1.0, 0.0
        if terms.per_second is not None:
            requests = terms.per_second * part
            self._most, self._span = max(order, int(requests + LEAST)), max(1.0, order / requests)
            self.most = self._most // order
            kept = max(order, int(terms.per_second + LEAST))
        if terms.sustained is not None:
            number, seconds = terms.sustained
            self._burst = max(order, BURST * number * part)
            self._pause = seconds / ((1 - BURST) * number * part)
        self._sent = deque(self._sent, maxlen=kept)
