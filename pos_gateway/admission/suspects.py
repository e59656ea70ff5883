"""Calls that are out for longer than their merchants usually take: the first to go if slots lack.

Long before a call can be called slow, that dozens of them are late at once tells that merchants
have stopped answering. One of them alone means nothing, and nothing comes of it.
"""

from collections import deque
from typing import Generic

from pos_gateway.admission.lane import Call, Ticket

#: Seconds that a call is a suspect before it can be cut short: when this process was held up,
#: answers that came meanwhile are to be read first.
GRACE = 0.05


class Suspects(Generic[Ticket]):
    """Those that are out, and which of them to cut short."""

    def __init__(self) -> None:
        #: How many there are, those included that were cut short and are still out.
        self.number = 0
        #: How many calls were cut short and still hold their slots.
        self.ending = 0
        #: The oldest first; those that are done are skipped.
        self._calls: deque[Call[Ticket]] = deque()
        #: When a merchant, whichever, answered last.
        self._answered_at = 0.0

    def add(self, call: Call[Ticket], now: float) -> None:
        """It is out for longer than is usual from now."""
        while self._calls and self._calls[0].done:
            self._calls.popleft()
        call.suspected_at = now
        self.number += 1
        self._calls.append(call)

    def came_back(self, call: Call[Ticket]) -> None:
        """The call, suspect or not, is not out any more."""
        self.number -= call.is_suspect

    def released(self, call: Call[Ticket]) -> None:
        """Its slot is free."""
        self.ending -= call.cut_short

    def answered(self, now: float) -> None:
        """A merchant has answered, whichever."""
        self._answered_at = now

    def cut_short(self, most: int, now: float) -> list[Call[Ticket]]:
        """Up to so many calls, the oldest suspects first; each is named once.

        Only calls of merchants that have not answered anything since. Where nobody at all has, it
        may be no fault of theirs: then those that are slow by now, so that the next one is tried.
        """
        chosen: list[Call[Ticket]] = []
        while self._calls and len(chosen) < most:
            call = self._calls[0]
            if not call.done and not self._is_certain(call, now):
                break
            self._calls.popleft()
            is_silent = call.lane.last_answer < call.suspected_at
            if not call.done and is_silent and call.lane.may_be_cut_short:
                call.cut_short = True
                chosen.append(call)
        self.ending += len(chosen)
        return chosen

    def _is_certain(self, call: Call[Ticket], now: float) -> bool:
        others_answer = call.suspected_at <= self._answered_at
        return call.suspected_at <= now - GRACE and (others_answer or call.slow)
