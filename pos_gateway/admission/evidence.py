"""Failures of one merchant's calls, for operators: no decision depends on this evidence."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from pos_gateway.admission.breaker import WINDOW
from pos_gateway.domain.outcome import CallResult


@dataclass(slots=True, eq=False)
class Evidence:
    """Kept from a merchant's first failed or late call on."""

    #: Time of the breaker's last closing.
    since: float = 0.0
    #: The last call's time, in seconds.
    latest: float | None = None
    #: The last failed call's error code, and the end of the call.
    error: tuple[str, float] | None = None
    #: When an order was last not sent, for want of something at the gateway.
    unsent_at: float = -inf
    _failures: tuple[CallResult, ...] = ()

    def failed(self, result: CallResult) -> None:
        """A call that the breaker counts has failed."""
        self._failures = (*self._failures[1 - WINDOW :], result)

    def last(self, failures: int) -> Sequence[CallResult]:
        """The results of the last failed calls."""
        return self._failures[len(self._failures) - failures :]
