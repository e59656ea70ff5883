"""Faults planted in admission one at a time: the state machine must find every one.

``python -m tests.admission.faults`` tries them.
"""

from tests.planting import Fault, try_all


def _fault(rule: str, file: str, right: str, wrong: str, *, examples: int | None = None) -> Fault:
    return Fault(rule, f"admission/{file}", right, wrong, "admission_machine", examples)


FAULTS = [
    _fault(
        "no more are under way than there are slots",
        "admission",
        "return self.in_flight < self.limits.slots",
        "return self.in_flight <= self.limits.slots",
    ),
    _fault(
        "a merchant keeps to its limit",
        "bulkhead",
        "return self.in_flight < self.limit",
        "return self.in_flight <= self.limit",
    ),
    _fault(
        "a limit is halved when the merchant does not answer in time",
        "admission",
        "lane.bulkhead.overloaded(call.started, now)",
        "lane.bulkhead.hesitated()",
    ),
    _fault(
        "a limit is halved once for all that were out together",
        "bulkhead",
        "if started >= self._halved and",
        "if",
    ),
    _fault("a limit never falls below one", "bulkhead", "max(1, self.here // 2)", "self.here // 2"),
    _fault(
        "a limit rises only after a full window of answers",
        "bulkhead",
        "self._answers >= self.here",
        "self._answers >= 1",
    ),
    _fault(
        "a limit rises only when it was reached",
        "bulkhead",
        "if self._reached and self",
        "if self",
    ),
    _fault(
        "no more start in a second than the POS takes",
        "rate",
        "len(self._starts) >= here",
        "len(self._starts) > here",
    ),
    _fault(
        "a start counts for a whole second",
        "rate",
        "self._starts[0] + self._span <= now",
        "self._starts[0] + self._span / 2 <= now",
    ),
    _fault(
        "a merchant goes on when its second is over",
        "admission",
        "self._agenda.add(rate.free_at, self._next_second, lane)",
        "pass",
    ),
    _fault(
        "in a fleet each worker starts its part of what the POS takes in a second",
        "rate",
        "int(self._most * part)",
        "int(self._most)",
    ),
    _fault(
        "a provider keeps to its share",
        "turns",
        "if lane.provider is not None and lane.provider.is_full:",
        "if False:",
    ),
    _fault(
        "a provider exceeds its share only while the others could not want the slots",
        "admission",
        "return self.limits.slots - self.in_flight > others",
        "return self.limits.slots - self.in_flight > 0",
    ),
    _fault(
        "idle slots are not kept from a provider at its share",
        "admission",
        "return self._start_above_share(now) if self._slot_is_free else None",
        "return None",
    ),
    _fault(
        "whoever comes back makes room for its provider's next",
        "admission",
        "            self._turns.wake(call.provider)\n",
        "            pass\n",
    ),
    _fault(
        "the slow keep to their share",
        "turns",
        "if lane.pace.slow and self.slow.is_full:",
        "if False:",
    ),
    _fault(
        "whoever comes back makes room for the next of the slow",
        "admission",
        "        self._turns.wake(self._turns.slow)\n\n    def tick",
        "\n    def tick",
    ),
    _fault(
        "a call is suspect when it is slow, if not before",
        "suspects",
        "return min(slow_after, usual.exceeded_after(slow_after))",
        "return usual.exceeded_after(slow_after)",
    ),
    _fault(
        "a suspect that goes on is slow in its time",
        "admission",
        "        self._agenda.add(slow_at, self._slow_now, call)\n",
        "",
    ),
    _fault(
        "a merchant becomes slow while its call is out",
        "admission",
        "        self._set_slow(lane, now, slow=True)\n        for share",
        "        for share",
    ),
    _fault(
        "all that a slow merchant holds counts",
        "admission",
        "self._turns.slow.in_flight += in_flight if slow else -in_flight",
        "self._turns.slow.in_flight += 1 if slow else -1",
    ),
    _fault(
        "a merchant that relapses stays slow for longer",
        "pace",
        "self._relapses = self._relapses + 1 if relapsed else 0",
        "self._relapses = 0",
    ),
    _fault(
        "the merchants have their turns one after the other",
        "turns",
        "_, lane = heapq.heappop(self._line)",
        "_, lane = self._line.pop()",
    ),
    _fault(
        "who waits behind a lane for a share has its turn too",
        "turns",
        "            self.wake(woken_by, lane.place)",
        "            pass",
    ),
    _fault(
        "a turn that is of no use to a merchant any more is the next one's",
        "turns",
        "self.wake(woken_by, lane.place)",
        "self.wake(woken_by)",
        examples=6400,
    ),
    _fault(
        "the most urgent of a merchant's orders goes first",
        "lane",
        "heapq.heappush(self._queue, (deadline, self._number, waiting))",
        "heapq.heappush(self._queue, (0.0, self._number, waiting))",
    ),
    _fault(
        "an order that waits expires when its time is over",
        "admission",
        "self._agenda.add(deadline, self._expire, waiting)",
        "pass",
    ),
    _fault(
        "an order expires once",
        "lane",
        "        waiting.done = True\n",
        "",
    ),
    _fault(
        "an order that cannot start in time expires when that is certain",
        "admission",
        "while (first := lane.first()) is not None and first.deadline <= breaker.until:",
        "while (first := lane.first()) is not None and first.deadline <= now:",
    ),
    _fault(
        "an order that waits for a slot only is not parked",
        "admission",
        "                again.append(waiting)\n",
        "                pass\n",
    ),
    _fault(
        "those that wait for a merchant in trouble are counted",
        "room",
        "        self.blocked += number * (lane.is_troubled - was_troubled)\n",
        "",
    ),
    _fault(
        "a breaker opens on failures",
        "breaker",
        "self._failed.bit_count() >= FAILURE_RATE * calls or ",
        "",
    ),
    _fault(
        "a breaker opens on late calls",
        "breaker",
        " or late >= SLOW_RATE * calls",
        "",
    ),
    _fault(
        "a late call counts while it is out",
        "admission",
        '            self._open(lane, now, "late")\n\n    def _reckon',
        "            pass\n\n    def _reckon",
    ),
    _fault("few calls say nothing", "breaker", "if calls < MINIMUM:", "if calls < 1:"),
    _fault(
        "an open breaker lets nothing through",
        "breaker",
        "        return self.state is State.CLOSED\n\n    @property\n    def patience",
        "        return True\n\n    @property\n    def patience",
    ),
    _fault(
        "a half-open breaker lets one probe through at a time",
        "breaker",
        "return self.probes < PROBES",
        "return self.probes <= PROBES",
    ),
    _fault(
        "a breaker closes after answers in a row",
        "breaker",
        "return self._answered >= PROBES_TO_CLOSE",
        "return self._answered >= 1",
    ),
    _fault(
        "a probe of an earlier spell says nothing",
        "breaker",
        "if spell != self.spell or self.state is not State.HALF_OPEN:",
        "if False:",
    ),
    _fault(
        "a probe that fails opens the breaker again",
        "admission",
        "elif is_present and answered is False:",
        "elif False:",
    ),
    _fault(
        "a merchant is left alone when it asks for it",
        "admission",
        "        if retry_after is not None:\n",
        "        if False:\n",
    ),
    _fault(
        "a breaker half-opens when its time is over",
        "admission",
        "        self._agenda.add(breaker.until, self._half_open, lane)\n",
        "",
    ),
    _fault(
        "a lane whose breaker half-opens lines up",
        "admission",
        'State.HALF_OPEN, 0.0, "time"))\n            self._line_up(lane)',
        'State.HALF_OPEN, 0.0, "time"))',
    ),
    _fault(
        "no more are cut short than are too many",
        "admission",
        " - suspects.ending, self._now)",
        ", self._now)",
    ),
    _fault(
        "nothing is cut short while slots are free",
        "admission",
        "lacking = limits.reserve - (limits.slots - self.in_flight) + in_line",
        "lacking = limits.slots",
    ),
    _fault(
        "no more are cut short than are needed",
        "admission",
        "in_line = min(len(self._turns), self.waiting - self.blocked)",
        "in_line = limits.slots",
    ),
    _fault(
        "nothing is cut short for those that have become slow",
        "admission",
        "in_line = min(len(self._turns), self.waiting - self.blocked)",
        "in_line = len(self._turns)",
    ),
    _fault(
        "only calls of merchants that are silent are cut short",
        "suspects",
        "is_silent = call.lane.last_answer < call.suspected_at",
        "is_silent = True",
    ),
    _fault(
        "what hangs is cut short",
        "suspects",
        "self._calls.append(call)",
        "pass",
    ),
    _fault(
        "where nobody answers nothing is cut short before it is slow",
        "suspects",
        "others_answer = min(settled, self._answered_at) if",
        "others_answer = settled if",
    ),
    _fault(
        "where nobody answers what is slow is cut short",
        "suspects",
        "heapq.heappush(self._slow, (call.suspected_at, next(self._count), call))",
        "pass",
    ),
    _fault(
        "calls are not cut short where the order could not be sent again",
        "suspects",
        " and call.lane.may_be_cut_short:",
        ":",
    ),
    _fault(
        "half of what the slow may hold is not cut short",
        "admission",
        "too_many = suspects.number - max(1, self._turns.slow.cap_now // 2)",
        "too_many = suspects.number",
    ),
    _fault(
        "half of what they may hold now, that is",
        "admission",
        "self._turns.slow.cap_now // 2",
        "self._turns.slow.cap // 2",
    ),
    _fault(
        "the slow may hold a part of their share while none of them answers",
        "turns",
        "Share(slow, max(1, slow // SILENT))",
        "Share(slow, slow)",
    ),
    _fault(
        "a merchant that has never answered is taken to be like others at their first call",
        "suspects",
        "usual = self._usual if lane.pace.mean is None else lane.pace",
        "usual = lane.pace",
    ),
    _fault(
        "what is usual for a first answer is their mean at first",
        "suspects",
        "max(NEWEST_FIRST, 1 / self._answers)",
        "NEWEST_FIRST",
    ),
    _fault(
        "what is usual for a first answer is learnt from first answers",
        "admission",
        "if is_first and lane.pace.mean is not None:",
        "if contact is Contact.ANSWERED and not call.late:",
    ),
    _fault(
        "answers that have come already are read before anything is cut short",
        "suspects",
        "settled = now - GRACE",
        "settled = now",
    ),
    _fault(
        "answers that are late themselves say nothing against other calls",
        "suspects",
        "        if not call.is_suspect and call",
        "        if call",
    ),
    _fault(
        "first answers tell as well whether this process is late",
        "suspects",
        "        self._late += NEWEST",
        "        if call.lane.pace.mean is None:\n            return\n        self._late += NEWEST",
    ),
    _fault(
        "where many answers are late nothing is cut short before it is slow",
        "suspects",
        " if self._late < LATE else -inf",
        "",
    ),
    _fault(
        "what has come back is no suspect",
        "suspects",
        "self.number -= call.is_suspect",
        "pass",
    ),
    _fault(
        "a merchant whose call was cut short is slow",
        "admission",
        "            self._out_too_long(call, now)\n        elif slow:",
        "            pass\n        elif slow:",
    ),
    _fault(
        "a provider whose calls are cut short is silent",
        "admission",
        "            self._out_too_long(call, now)\n        elif slow:",
        "            self._set_slow(lane, now, slow=True)\n        elif slow:",
    ),
    _fault(
        "a silent provider has no more than the slow",
        "share",
        "return self.cap_of_silent if self.silent else self.cap",
        "return self.cap",
    ),
    _fault(
        "a silent provider does not exceed its share",
        "turns",
        "if not share.silent]",
        "]",
    ),
    _fault(
        "a provider that answers is not silent",
        "share",
        "self._answered_at = now\n        self.silent = False",
        "self._answered_at = now",
    ),
    _fault(
        "a provider is silent only if nobody has answered since the call began",
        "share",
        "self.silent = self.silent or self._answered_at < started",
        "self.silent = True",
    ),
    _fault(
        "a merchant keeps to what the fleet leaves it",
        "bulkhead",
        "return limit if self.allotment is None else min(limit, self.allotment)",
        "return limit",
    ),
    _fault(
        "the fleet is asked when an order waits for an allotment only",
        "admission",
        "            self._on_short(lane.merchant_id)",
        "            pass",
    ),
    _fault(
        "what is dropped does not count for its provider any more",
        "turns",
        "            share.waiting = share.promised = 0\n",
        "            pass\n",
    ),
    _fault(
        "a merchant in trouble may have only so many orders waiting",
        "room",
        "return lane.waiting * lane.turn > limits.max_wait / 2",
        "return False",
    ),
    _fault(
        "all merchants in trouble together may have only so many waiting",
        "room",
        "if self.blocked >= limits.max_blocked:",
        "if False:",
    ),
    _fault(
        "those of a provider at its share may not fill the window",
        "room",
        "provider.is_full and provider.waiting >= most",
        "False",
    ),
]

if __name__ == "__main__":
    # Most are found in the first twenty examples.
    try_all(FAULTS, "admission", HUNT="yes", EXAMPLES="1600")
