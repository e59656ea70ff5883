"""Half of a thousand merchants stop answering in the same moment: the effect on the others.

A worker at 60 % load, with the real admission and everything else in virtual time: it detects each
dead merchant by a slot that its call holds, and has 80 slots for that.
"""

import heapq
import random
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from pos_gateway.admission.admission import Admission, AdmissionVerdict
from pos_gateway.admission.lane import Call
from pos_gateway.admission.limits import AdmissionLimits, Terms
from pos_gateway.domain.outcome import CallResult

#: Merchants; orders a second; seconds of a reply, of a call that hangs, of ending one; and between
#: two checks of the time.
MERCHANTS, RATE, REPLY, TIMEOUT, ENDING, TICK = 1000, 600, 0.2, 10.0, 0.01, 0.01
#: When half of them stop, and for how long the run goes on.
STRIKE, END = 4.0, 20.0
#: Seconds until a parked order is back.
PARKED = 5.0

Order = tuple[int, float]


class Storm:
    """Orders arrive at random, equally likely for each merchant.

    Args:
        jitter: seconds that a reply takes longer at most.
        seed: of the orders and the replies.
    """

    def __init__(self, jitter: float, seed: int) -> None:
        self._random = random.Random(seed)
        self._jitter = jitter
        self._admission: Admission[Order] = Admission(
            AdmissionLimits(), lambda _merchant: Terms(10)
        )
        self._agenda: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = count()
        self._over: set[Call[Order]] = set()
        #: Seconds that the orders of healthy merchants have waited, since the others stopped; and
        #: those of merchants that had never answered by then.
        self.waited: list[float] = []
        self.waited_as_strangers: list[float] = []
        self._known: set[int] = set()
        self._unknown: set[Order] = set()
        self.cut_short = 0

    def run(self) -> None:
        for number in range(int(RATE * END)):
            at = number / RATE
            self._at(at, self._arrive, (self._random.randrange(MERCHANTS), at))
        self._at(0.0, self._tick)
        while self._agenda[0][0] < END:
            now, _, do, arguments = heapq.heappop(self._agenda)
            do(now, *arguments)

    def _at(self, at: float, do: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self._agenda, (at, next(self._number), do, arguments))

    def _arrive(self, now: float, order: Order) -> None:
        if order[0] not in self._known:
            self._unknown.add(order)
        match self._admission.offer(str(order[0]), order, now):
            case Call() as call:
                self._start(call, now)
            case AdmissionVerdict.PARK:
                self._at(now + PARKED, self._arrive, order)
            case _:
                self._dispatch(now)

    def _start(self, call: Call[Order], now: float) -> None:
        self._admission.began(call, now)
        merchant, arrived = call.ticket
        stops = merchant < MERCHANTS // 2
        if now >= STRIKE and not stops:
            waited = self.waited_as_strangers if call.ticket in self._unknown else self.waited
            waited.append(now - arrived)
        if now >= STRIKE and stops:
            self._at(now + TIMEOUT, self._end, call, CallResult.TIMED_OUT)
        else:
            takes = REPLY + self._random.random() * self._jitter
            self._at(now + takes, self._end, call, CallResult.ANSWERED)

    def _end(self, now: float, call: Call[Order], contact: CallResult) -> None:
        if call not in self._over:
            self._over.add(call)
            if contact is CallResult.ANSWERED:
                self._known.add(call.ticket[0])
            self._admission.release(call, now, contact)
            self._dispatch(now)

    def _dispatch(self, now: float) -> None:
        while (call := self._admission.next_start(now)) is not None:
            self._start(call, now)
        for call in self._admission.to_cut_short():
            self.cut_short += 1
            self._at(now + ENDING, self._end, call, CallResult.TIMED_OUT)

    def _tick(self, now: float) -> None:
        self._admission.tick(now)
        self._dispatch(now)
        for order in self._admission.overdue(now):
            self._at(now + PARKED, self._arrive, order)
        self._at(now + TICK, self._tick)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("jitter", [0.01, 0.06])
def test_no_order_of_a_known_merchant_waits_and_no_other_for_long(jitter: float, seed: int) -> None:
    storm = Storm(jitter, seed)
    storm.run()
    assert len(storm.waited) > 4000
    late = [seconds for seconds in storm.waited if seconds > 0.01]
    assert len(late) < len(storm.waited) / 100, f"{len(late)} of {len(storm.waited)}"
    assert max(storm.waited) < 0.2
    assert max(storm.waited_as_strangers) < 1
    assert storm.cut_short < MERCHANTS  # each of the half that stopped, and some once more
