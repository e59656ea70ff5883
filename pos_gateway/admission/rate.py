"""Starts of orders within a POS's limits of requests, a second and in a longer time."""

from collections import deque
from math import inf

from pos_gateway.admission.limits import QuotaTerms

#: The part of a longer time's requests for bursts; the rest come evenly.
BURST = 0.1
#: The least part of a quota: dividing by 0 is undefined. Products of parts are exact to as much.
LEAST = 1e-6


class Rate:
    """Starts in a process with a part of a quota; an order counts ``terms.requests`` requests.

    ``terms.per_second`` holds in any second; an order with more requests than a second's starts once in
    the time for these requests. ``terms.sustained`` holds as a saved-up burst and an even rest.
    An added part comes without a burst: burst and rest stay within the limit, however the fleet divides
    the quota, and whatever restarts.
    """

    def __init__(self, terms: QuotaTerms, part: float, now: float) -> None:
        self._terms, self._part = terms, part
        self._starts: deque[float] = deque()
        #: Orders within a span of seconds.
        self.most, self._span = inf, 0.0
        #: Orders of a burst, seconds between two orders beside the burst (0: no limit), and when the
        #: whole burst is saved up.
        self._burst, self._pause, self._saved_at = 1.0, 0.0, now
        self._divide()
        self._saved_at += (self._burst - 1) * self._pause

    def agree(self, terms: QuotaTerms, part: float, now: float) -> None:
        """Set the limits, and this process's part.

        Earlier starts count, and an added part as used up: by the part's former process.
        """
        if (terms, part) == (self._terms, self._part):
            return
        saved = self._burst - max(0.0, self._saved_at - now) / (self._pause or inf)
        most, added = self.most, self._part < part
        self._terms, self._part = terms, part
        self._divide()
        if added and most < self.most < inf:
            self._starts.extend([now] * int(self.most - most))
        self._saved_at = now + max(0.0, self._burst - saved) * self._pause

    def started(self, now: float) -> None:
        """An order has started."""
        self._starts.append(now)
        self._saved_at = max(self._saved_at, now) + self._pause

    def ready_at(self, orders: float) -> float:
        """When ``orders`` may start at once; inf: never."""
        at, earlier = -inf, self.most - orders
        if earlier < 0 or (self._pause and orders > self._burst):
            return inf
        if len(self._starts) > earlier:
            at = self._starts[-int(earlier) - 1] + self._span
        if not self._pause:
            return at
        return max(at, self._saved_at - (self._burst - orders) * self._pause)

    @property
    def interval(self) -> float:
        """Seconds between two evenly spread starts."""
        return max(self._span / self.most, self._pause)

    def is_idle(self, now: float) -> bool:
        """Whether no start counts any more."""
        return self._saved_at <= now and (not self._starts or self._starts[-1] + self._span <= now)

    def _divide(self) -> None:
        terms, kept = self._terms, 0
        part = max(self._part, LEAST) / terms.requests
        self.most, self._span, self._burst, self._pause = inf, 0.0, 1.0, 0.0
        if terms.per_second is not None:
            orders = terms.per_second * part
            self.most, self._span = max(1, int(orders + LEAST)), max(1.0, 1 / orders)
            kept = max(1, int(terms.per_second / terms.requests + LEAST))
        if terms.sustained is not None:
            requests, seconds = terms.sustained
            self._burst = max(1.0, BURST * requests * part)
            self._pause = seconds / ((1 - BURST) * requests * part)
        self._starts = deque(self._starts, maxlen=kept)
