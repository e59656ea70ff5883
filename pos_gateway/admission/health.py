"""Judges merchants by calls: whether a merchant answers, how fast, and how much the merchant can take."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Generic

from pos_gateway.admission.agenda import Agenda
from pos_gateway.admission.breaker import LONGEST_OPEN, BreakerState
from pos_gateway.admission.lane import QUIET, Call, Lane, Provider, Ticket
from pos_gateway.admission.latency import PART, SECONDS
from pos_gateway.admission.limits import AdmissionLimits
from pos_gateway.admission.outliers import Outliers
from pos_gateway.admission.parking import ParkedCount
from pos_gateway.domain.outcome import CallResult

#: Why a breaker changed, when a different worker made the change, and when time alone did: no news for other workers.
FLEET, TIME = "fleet", "time"


@dataclass(frozen=True, slots=True)
class Transition:
    """The change of a merchant's breaker to a state; or the pause of a quota, by its key, as an opened breaker."""

    merchant_id: str
    state: BreakerState
    #: How long an opened breaker stays open.
    seconds: float
    why: str


class Health(Generic[Ticket]):
    """Judges calls in flight, and finished calls.

    Args:
        limits: this process's limits.
        agenda: runs the timers.
        parked: counts parked orders.
        announce: called with every breaker's transition.
        unusual: called with a new outlier, and the time.
        revived: called with a silent provider's answer: provider, seconds of silence, and time. Returns changed lanes.
        changed: called with a lane after each change but ``came_back``.
    """

    def __init__(
        self,
        limits: AdmissionLimits,
        agenda: Agenda,
        parked: ParkedCount,
        *,
        announce: Callable[[Transition], None],
        unusual: Callable[[Call[Ticket], float], None],
        revived: Callable[[Provider, float, float], list[Lane[Ticket]]],
        changed: Callable[[Lane[Ticket]], None],
    ) -> None:
        self._slow_after, self._budget = limits.slow_after, limits.silent_budget
        self._agenda, self._parked = agenda, parked
        self._announce = announce
        self._unusual = unusual
        self._revived = revived
        self._changed = changed
        self._outliers: Outliers[Ticket] = Outliers(limits.slow_after)

    def began(self, call: Call[Ticket], now: float) -> None:
        """A call's exchange has begun."""
        call.started = now
        self._agenda.add(now + self._outliers.unusual_after(call.lane), self._is_unusual, call)

    def came_back(
        self,
        call: Call[Ticket],
        now: float,
        contact: CallResult,
        retry_after: float | None,
        delay: float = 0.0,
    ) -> None:
        """A call has finished.

        Args:
            call: the call.
            now: the time.
            contact: the call's result.
            retry_after: the merchant's ``Retry-After`` in seconds, if the merchant sent any.
            delay: seconds for which the answer may have waited for this process.
        """
        lane = call.lane
        lane.last_call = now
        lane.late_calls -= call.late
        is_answer = contact in (CallResult.ANSWERED, CallResult.OVERLOADED)
        self._outliers.came_back(call, now, answered=is_answer)
        if is_answer:
            lane.last_answer = now
            if lane.provider is not None and (silent := lane.provider.answered(now)) is not None:
                for each in self._revived(lane.provider, silent, now):
                    self._changed(each)
        self._judge_load(call, now, contact)
        if contact is not CallResult.NONE:
            self._judge_speed(call, now, contact, delay)
            if contact is not CallResult.ANSWERED or call.late or lane.evidence is not None:
                lane.noted().latest = max(0.0, now - delay - call.started)
        self._judge_presence(call, now, contact, retry_after)

    def released(self, call: Call[Ticket]) -> None:
        """A call's slot is free."""
        self._outliers.released(call)

    def to_cut_short(
        self, light: int, strangers: int, heavy: int, now: float
    ) -> list[Call[Ticket]]:
        """Calls to end early for merchants without a slot, by class. Each is returned once.

        Outliers within the silent budget always go on.
        """
        outliers = self._outliers
        most = min(outliers.number - self._budget, light + strangers + heavy) - outliers.ending
        return outliers.cut_short(light, strangers, most, now) if most > 0 else []

    def open(self, lane: Lane[Ticket], now: float, why: str, at_least: float = 0.0) -> None:
        """Open the breaker, for ``at_least`` seconds."""
        breaker = lane.breaker
        if breaker.is_closed:
            lane.noted().since = now
        if breaker.is_open or why == FLEET:
            breaker.open_for(now, at_least)
        else:
            breaker.open(now, at_least=at_least)
        self._agenda.add(breaker.until, self._half_open, lane)
        self._announce(Transition(lane.merchant_id, BreakerState.OPEN, breaker.until - now, why))

    def close(self, lane: Lane[Ticket], why: str) -> None:
        """Close the breaker."""
        lane.breaker.close()
        self._announce(Transition(lane.merchant_id, BreakerState.CLOSED, 0.0, why))

    def forget(self, lane: Lane[Ticket]) -> None:
        """Forget trouble after a quiet spell."""
        lane.latency.silent = False
        lane.bulkhead.forget()
        lane.breaker.forget()

    def _judge_load(self, call: Call[Ticket], now: float, contact: CallResult) -> None:
        """Adapt the merchant's limit."""
        bulkhead, lowered = call.lane.bulkhead, call.lowered if call.probe is None else None
        match contact:
            case CallResult.ANSWERED if not call.late or call.probe is not None:
                bulkhead.answered(call.started, lowered=lowered)
            case CallResult.ANSWERED | CallResult.FAILED:
                bulkhead.failed_or_late()
            case CallResult.OVERLOADED | CallResult.TIMED_OUT:
                bulkhead.overloaded(call.started, now, lowered=lowered)
            case CallResult.NONE:
                pass

    def _judge_speed(
        self, call: Call[Ticket], now: float, contact: CallResult, delay: float
    ) -> None:
        """Update the merchant's latency estimate, and whether the merchant is silent.

        Of a time less exact than an outlier's excess, the value nearest to the estimate counts, if different.
        """
        latency, seconds = call.lane.latency, now - call.started
        is_first, may_be_usual = latency.mean is None, False
        if latency.mean is not None and delay > max(SECONDS, PART * seconds):
            seconds = min(seconds, max(latency.mean, seconds - delay))
            may_be_usual = seconds == latency.mean
        latency.came_back(seconds, contact, late=call.late or may_be_usual)
        if call.probe is not None and contact is CallResult.ANSWERED:
            latency.is_now(seconds)
        if is_first and latency.mean is not None:
            self._outliers.first_took(seconds)

    def _judge_presence(
        self, call: Call[Ticket], now: float, contact: CallResult, retry_after: float | None
    ) -> None:
        """Update the merchant's breaker.

        A ``Retry-After`` of an overloaded merchant opens the breaker, and no longer than failures do: a
        single reply, perhaps about a single order, must not end all orders. The order of the reply
        is not sent again before that time (``attempt/decision.py``).
        """
        lane, breaker = call.lane, call.lane.breaker
        asked = None
        if retry_after is not None and contact is CallResult.OVERLOADED:
            asked = min(retry_after, LONGEST_OPEN)
        answered = None if contact is CallResult.NONE else contact is CallResult.ANSWERED
        if call.probe is not None:
            is_present = breaker.state is BreakerState.HALF_OPEN and call.probe == breaker.spell
            if breaker.end_probe(call.probe, answered=answered):
                self.close(lane, "answered")
            elif is_present and answered is False:
                self.open(lane, now, "probe_failed", asked or 0.0)
                return
        elif breaker.is_closed and answered is not None:
            breaker.record(failed=not answered, late=call.late)
            if not answered:
                lane.noted().failed(contact)
            if breaker.is_tripped(lane.late_calls):
                self.open(lane, now, "failures" if not answered else "late", asked or 0.0)
                return
        if asked is not None:
            self.open(lane, now, "asked", asked)

    def _is_unusual(self, call: Call[Ticket], now: float) -> None:
        """A call became an outlier; should the call go on, the merchant is silent."""
        self._outliers.add(call, now)
        silent_at = call.started + self._outliers.silent_after(call.lane)
        self._agenda.add(silent_at, self._is_silent, call)
        late_at = call.started + call.lane.latency.late_after(self._slow_after)
        if late_at < inf:
            self._agenda.add(late_at, self._is_late, call)
        if call.lane.provider is not None:
            call.lane.provider.is_unusual(call.started, now)
        self._unusual(call, now)

    def _is_silent(self, call: Call[Ticket], now: float) -> None:
        """A call makes the merchant silent; a stranger's call not yet if first calls now take longer."""
        lane = call.lane
        silent_at = call.started + self._outliers.silent_after(lane)
        if silent_at > now:
            self._agenda.add(silent_at, self._is_silent, call)
            return
        self._outliers.became_silent(call)
        lane.latency.silent = True
        self._changed(lane)

    def _is_late(self, call: Call[Ticket], now: float) -> None:
        """A call is late, and counts against the merchant from now on."""
        lane = call.lane
        call.late = True
        lane.late_calls += 1
        if lane.breaker.is_closed and lane.breaker.is_tripped(lane.late_calls):
            self.open(lane, now, "late")
            self._changed(lane)

    def _half_open(self, lane: Lane[Ticket], now: float) -> None:
        if lane.breaker.is_open and lane.breaker.until <= now:
            lane.breaker.half_open()
            self._look_again(lane, now + QUIET)
            self._announce(Transition(lane.merchant_id, BreakerState.HALF_OPEN, 0.0, TIME))
            self._changed(lane)

    def _look_again(self, lane: Lane[Ticket], at: float) -> None:
        """Look then whether the half-open breaker is needed still."""
        self._agenda.add(at, partial(self._is_quiet, lane.breaker.spell), lane)

    def _is_quiet(self, spell: int, lane: Lane[Ticket], now: float) -> None:
        """Close a half-open breaker after a while without an order: nothing is known of the merchant."""
        if lane.breaker.state is not BreakerState.HALF_OPEN or lane.breaker.spell != spell:
            return
        quiet_at = lane.last_call + QUIET
        if quiet_at <= now and lane.is_idle and not self._parked.of(lane.merchant_id):
            self.close(lane, TIME)
            self._changed(lane)
        else:
            self._look_again(lane, quiet_at if quiet_at > now else now + QUIET)
