"""Waiting orders by age and by deadline: orders that expire, and orders that have waited too long."""

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Generic

from pos_gateway.admission.agenda import Agenda
from pos_gateway.admission.lane import Lane, Ticket, Waiting
from pos_gateway.admission.limits import LONGEST_HERE


class Backlog(Generic[Ticket]):
    """The waiting orders of all lanes.

    Args:
        agenda: runs the orders' deadlines.
        changed: called with a lane that an order has left.
    """

    def __init__(self, agenda: Agenda, changed: Callable[[Lane[Ticket]], None]) -> None:
        self._agenda = agenda
        self._changed = changed
        #: Every waiting order, by arrival or the last check, whichever is later; done orders are skipped.
        self._by_age: deque[tuple[float, Waiting[Ticket]]] = deque()
        self._expired: list[Ticket] = []

    def put(
        self, lane: Lane[Ticket], ticket: Ticket, now: float, deadline: float, *, is_look_up: bool
    ) -> None:
        """Let an order wait."""
        waiting = lane.put(ticket, now, deadline, is_look_up=is_look_up)
        self._by_age.append((now, waiting))
        if deadline < inf:
            self._agenda.add(deadline, self._expire, waiting)

    def take(self, waiting: Waiting[Ticket]) -> Ticket:
        """Remove and return an order."""
        ticket = waiting.lane.take(waiting)
        self._changed(waiting.lane)
        return ticket

    def expire_before(self, lane: Lane[Ticket], time: float) -> None:
        """Expire the lane's orders with a deadline by ``time``, when the lane may next start an order."""
        self._expired += [lane.take(each) for each in lane.expiring(time)]

    @property
    def has_expired(self) -> bool:
        """Whether an order has expired and is not fetched yet."""
        return bool(self._expired)

    def expired(self) -> list[Ticket]:
        """Remove and return orders that expired while waiting, or will before a start is possible."""
        expired, self._expired = self._expired, []
        return expired

    def overdue(
        self, until: float, now: float, may_stay: Callable[[Lane[Ticket]], bool], most: int
    ) -> list[Ticket]:
        """Orders that came, or were checked, by ``until``, and that the merchant cannot start; up to ``most``.

        Orders of a merchant that takes orders stay for ``LONGEST_HERE``, for the merchant or for a slot: parking would
        only cause delay. The next check comes after the same wait, lest each check see thousands.
        """
        out: list[Ticket] = []
        again: list[tuple[float, Waiting[Ticket]]] = []
        while self._by_age and len(out) < most:
            checked, waiting = self._by_age[0]
            if not waiting.done and checked > until:
                break
            self._by_age.popleft()
            if waiting.done:
                continue
            lane = waiting.lane
            if may_stay(lane) and now - waiting.since < LONGEST_HERE:
                again.append((now, waiting))
                self._changed(lane)  # the usage has decayed
            else:
                out.append(self.take(waiting))
        self._by_age.extend(again)
        return out

    def drop(self) -> list[Ticket]:
        """Clear; returns expired orders not yet fetched."""
        self._by_age.clear()
        return self.expired()

    def _expire(self, waiting: Waiting[Ticket], _now: float) -> None:
        self._expired.append(self.take(waiting))
