"""A naive model of admission: lists, searched from end to end.

Written from the rules alone; shares no code with admission, only its numbers.
"""

from collections import Counter
from dataclasses import dataclass, field
from math import ceil, exp, inf, sqrt

from pos_gateway.admission import (
    breaker,
    lane,
    latency,
    limit_trial,
    outliers,
    pacing,
    parking,
    room,
    scheduler,
)
from pos_gateway.admission.limits import AdmissionLimits, Terms
from pos_gateway.admission.usage import WINDOW
from pos_gateway.domain.outcome import CallResult

#: A value nearer to a bound than this may be on either side of it.
NEAR = 1e-6


@dataclass
class Held:
    """Slots and since when each is held, and the decaying weight of released ones."""

    since: list[float] = field(default_factory=list)
    history: float = 0.0
    at: float = 0.0

    def end(self, start: float, now: float) -> None:
        self.since.remove(start)
        self.history = (
            self.history * exp((self.at - now) / WINDOW) + 1 - exp((start - now) / WINDOW)
        )
        self.at = now

    def raise_to(self, slots: float, now: float) -> None:
        """They count for at least this many."""
        lacking = max(0.0, slots - self.average(now))
        self.history = self.history * exp((self.at - now) / WINDOW) + lacking
        self.at = now

    def average(self, now: float) -> float:
        """Slots held of late: those of a moment ago count fully, those of ``WINDOW`` ago 1/3."""
        present = sum(1 - exp((start - now) / WINDOW) for start in self.since)
        return present + self.history * exp((self.at - now) / WINDOW)


@dataclass(eq=False)
class Sent:
    """An order in flight."""

    merchant: "Merchant"
    number: int
    #: When it took its slot.
    started: float
    provider: str | None
    probe: int | None
    is_look_up: bool
    #: It started under a lowered limit.
    lowered: bool
    #: Its merchant was light when it started, and the call is no outlier.
    is_light: bool = False
    #: When the call becomes an outlier, when that was seen, and whose limit applied.
    unusual_at: float = inf
    #: When its exchange began; its merchant is judged from then on.
    began: float = inf
    outlier_since: float = inf
    #: Its merchant's estimate was longer by then than when it began: it is passed over, perhaps for
    #: good.
    is_usual: bool = False
    was_stranger: bool = False
    silent_at: float = inf
    seen_silent: bool = False
    late_at: float = inf
    late: bool = False
    cut_short: bool = False
    #: Its merchant has answered; the slot is held until the broker has stored the outcome.
    held: bool = False


@dataclass(eq=False)
class Merchant:
    name: str
    terms: Terms | None
    adapted: float = inf
    answers: int = 0
    reached: bool = False
    halved: float = -inf
    #: Since the first call that timed out or was refused: whether each call failed that started under
    #: the full limit, and under the lowest since that was full; since when; and whether it is full again.
    trial: bool = False
    full: list[bool] = field(default_factory=list)
    lowered: list[bool] = field(default_factory=list)
    lowest: float = inf
    lowest_since: float = -inf
    given_up: bool = False
    good: int = 0
    allotment: int | None = None
    #: When its orders started.
    starts: list[float] = field(default_factory=list)
    results: list[tuple[bool, bool]] = field(default_factory=list)
    state: str = "closed"
    until: float = 0.0
    spell: int = 0
    good_probes: int = 0
    #: When a half-open breaker may close without an answer.
    look_at: float = inf
    mean: float | None = None
    deviation: float = 0.0
    silent: bool = False
    held: Held = field(default_factory=Held)
    #: The same, of its look-ups alone.
    look_ups_held: Held = field(default_factory=Held)
    last_call: float = 0.0
    last_answer: float = -inf

    @property
    def limit(self) -> float:
        return 0 if self.terms is None else min(self.terms.limit, self.adapted)

    def limits_silence(self, unknown: float) -> float:
        """When a call has been in flight for too long, by the merchant's own record."""
        return unknown if self.mean is None else max(latency.LEAST, latency.UNUSUAL * self.mean)

    @property
    def here(self) -> float:
        """The same, within the worker's allotment."""
        return self.limit if self.allotment is None else min(self.limit, self.allotment)

    @property
    def is_lowered(self) -> bool:
        full = self.terms.limit if self.terms else 0
        if self.allotment is not None and 0 < self.allotment < full:
            full = self.allotment
        return 2 * self.adapted <= full

    def try_limit(self, sent: "Sent", *, failed: bool) -> None:
        """A call that is no probe shows whether a lowered limit helps."""
        if not self.trial or sent.probe is not None:
            return
        self.good = 0 if failed else self.good + 1
        if not sent.lowered:
            self.full.append(failed)
        elif sent.began >= self.lowest_since:
            self.lowered.append(failed)
        if self.good >= limit_trial.CLEAN:
            self.forget_trial()

    def forget_trial(self) -> None:
        self.trial, self.given_up, self.good = False, False, 0
        self.full, self.lowered = [], []
        self.lowest, self.lowest_since = inf, -inf

    def overload(self, sent: "Sent", now: float) -> None:
        """Halve the limit, unless that did not help."""
        self.trial = True
        self.try_limit(sent, failed=True)
        full, lowered = self.full[-limit_trial.WINDOW :], self.lowered[-limit_trial.WINDOW :]
        is_overload = len(full) >= limit_trial.WINDOW / 2 and 2 * sum(full) >= len(full)
        is_known = is_overload or len(full) == limit_trial.WINDOW
        is_tried = self.adapted < inf and self.lowest <= 1 and len(lowered) == limit_trial.WINDOW
        helps = sum(lowered) * len(full) < sum(full) * len(lowered)
        if is_tried and not (is_known and helps):
            self.adapted, self.lowest, self.given_up = inf, inf, True
            return
        if sent.began >= self.halved and (self.adapted < inf or is_overload or not self.given_up):
            lower = max(1, (self.here if self.here > 0 else self.limit) // 2)
            if lower < self.lowest:
                self.lowest, self.lowest_since, self.lowered = lower, now, []
            self.adapted, self.halved, self.given_up = lower, now, False

    @property
    def part(self) -> float:
        """This worker's part of the limits."""
        if self.allotment is None or self.terms is None or not self.terms.limit:
            return 1.0
        return min(1.0, max(0, self.allotment) / self.terms.limit)

    def agree(self, terms: Terms | None, allotment: int | None, now: float) -> None:
        """Other terms, or another part: what is added was another worker's until now."""
        part, (most, _) = self.part, self.pace
        self.terms, self.allotment = terms, allotment
        if part < self.part and most < inf:
            self.starts += [now] * max(0, int(self.pace[0] - most))

    @property
    def pace(self) -> tuple[float, float]:
        """Starts allowed in these seconds: a second, or the time for one start."""
        if self.terms is None or not self.terms.quotas:
            return inf, 1.0
        a_second = (self.terms.quotas[0].per_second or inf) * self.part
        if not a_second:
            return 1, inf
        return max(1, int(a_second + NEAR)), max(1.0, 1 / a_second)


@dataclass
class Provider:
    """What merchants of one vendor share."""

    #: Since when no merchant of it has answered; None: it is not silent.
    silent_since: float | None = None
    last_answer: float = -inf

    @property
    def silent(self) -> bool:
        return self.silent_since is not None


@dataclass(eq=False)
class Kept:
    """An order that waits."""

    merchant: Merchant
    number: int
    since: float
    deadline: float
    is_look_up: bool = False
    #: The earliest goes first.
    urgency: float = field(init=False)
    came_at: float = field(init=False)

    def __post_init__(self) -> None:
        self.came_at = self.since
        self.urgency = self.deadline if self.deadline < inf else self.since


class Model:
    """Merchants, orders in flight and waiting orders, each in a list."""

    def __init__(self, limits: AdmissionLimits, terms: dict[str, Terms | None]) -> None:
        self.limits = limits
        self.merchants = {name: Merchant(name, each) for name, each in terms.items()}
        self.now = 0.0
        self.sent: list[Sent] = []
        self.kept: list[Kept] = []
        #: Orders in flight by merchant: there may be hundreds.
        self.waiting: Counter[Merchant] = Counter()
        self.providers: dict[str, Provider] = {}
        #: Slots held by light calls.
        self.light = Held()
        #: When heavy merchants' next call may start.
        self.paced_until = 0.0
        #: When any merchant answered last in its usual time.
        self.last_answer = 0.0
        #: The share of late answers among the last ones.
        self.late = 0.0
        #: Reply times of all merchants: mean, deviation, and count.
        self.mean, self.deviation, self.answers = 0.0, 0.0, 0
        #: Transitions that must be announced, in any order: merchant and state.
        self.transitions: list[tuple[str, str]] = []

    def of(self, merchant: Merchant) -> list[Sent]:
        return [each for each in self.sent if each.merchant is merchant]

    def is_idle(self, merchant: Merchant) -> bool:
        return not self.of(merchant) and not self.waiting[merchant]

    def out(self) -> list[Sent]:
        return [each for each in self.sent if not each.held]

    def slots_free(self) -> int:
        return self.limits.slots - len(self.sent)

    def may_start(self, merchant: Merchant) -> bool:
        """Whether only a slot is missing."""
        if merchant.terms is None or len(self.of(merchant)) >= merchant.limit:
            return False
        if merchant.allotment is not None and len(self.of(merchant)) >= merchant.allotment:
            return False
        if merchant.state == "open" or self.is_spent(merchant):
            return False
        return not (merchant.state == "half_open" and self.probes(merchant))

    def is_silent(self, merchant: Merchant) -> bool:
        provider = self.provider(merchant.terms.provider if merchant.terms else None)
        return merchant.silent or merchant.state == "half_open" or provider.silent

    @staticmethod
    def has_provider(sent: Sent) -> bool:
        terms = sent.merchant.terms
        return terms is not None and terms.provider is not None

    def working(self) -> int:
        able = {each for each in +self.waiting if each.terms is not None and each.here > 0}
        busy = {each.merchant for each in self.sent} | able
        return sum(each.state == "closed" and not each.silent for each in busy)

    def is_light(self, merchant: Merchant) -> bool | None:
        """Whether it uses less than its fair share, or half of it; None if that is undecidable."""
        if merchant.mean is None or self.is_silent(merchant):
            return False
        calls = len(self.of(merchant)) + 1
        used = merchant.held.average(self.now) + calls * merchant.mean / WINDOW
        fair = self.limits.slots / max(1, self.working())
        part = scheduler.LIGHT if self.waiting[merchant] <= 1 else scheduler.LIGHT_WITH_BACKLOG
        half = scheduler.LIGHT_WITH_BACKLOG * fair
        # Waiting strangers are checked again when it is their turn.
        if half < used < part * fair and any(each.mean is None for each in +self.waiting):
            return None
        return None if min(abs(used - part * fair), abs(used - half)) < NEAR else used < part * fair

    def has_slot(self, merchant: Merchant) -> bool | None:
        """Whether there is a slot for it; None if that is too close to call."""
        free, silent = self.slots_free(), self.is_silent(merchant)
        is_light = self.is_light(merchant)
        if free <= 0:
            return False
        if is_light is not False:
            return is_light
        if silent:
            budget = self.limits.silent_budget
            if (
                sum(
                    each.merchant.silent or each.merchant.state == "half_open" for each in self.sent
                )
                >= budget
            ):
                return False
            # Merchants that are silent with their provider are counted when they are checked.
            if (
                sum(self.is_silent(each.merchant) or self.has_provider(each) for each in self.sent)
                >= budget
            ):
                return None
        if self.has_pace(merchant) and self.is_paced() is not False:
            return None if self.is_paced() is None else False
        more = 0
        if merchant.mean is None and not silent:
            if not self.of(merchant):
                more = self.limits.reserve // 2
            elif 2 * free <= self.limits.slots:
                return False
        return self.has_heavy_slot(more, of=merchant)

    def has_pace(self, merchant: Merchant) -> bool:
        """Whether its starts are paced where it is heavy."""
        return (merchant.mean or 0.0) >= pacing.SHORTEST and not self.is_silent(merchant)

    def is_paced(self) -> bool | None:
        """Whether heavy merchants' starts must wait; None if that is too close to call."""
        left = self.paced_until - self.now
        return None if abs(left) < NEAR else left > 0

    def is_heavy(self, merchant: Merchant) -> None:
        """It is not light any more, nor are its calls."""
        for each in self.of(merchant):
            if each.is_light:
                each.is_light = False
                self.light.end(each.started, self.now)

    def has_heavy_slot(self, more: int = 0, *, of: Merchant) -> bool | None:
        """Whether heavy merchants, with one more start of this one, leave enough to light ones."""
        slots, reserve = self.limits.slots, self.limits.reserve
        light = sum(each.is_light and each.merchant is not of for each in self.sent)
        heavy = len(self.sent) - light
        if self.slots_free() > reserve and heavy == 0:
            return True
        # Light merchants without a slot do not count: there are none where another merchant waits.
        mean = max(self.light.average(self.now), light)
        left = slots - reserve - mean - scheduler.DEVIATIONS * sqrt(mean) + more - heavy
        return None if abs(left) < NEAR else left > 0

    def is_spent(self, merchant: Merchant) -> bool:
        """As many have started of late as may. What the fleet allots is known once it has answered."""
        most, seconds = merchant.pace
        return (
            merchant.allotment != -1
            and len([at for at in merchant.starts if at + seconds > self.now]) >= most
        )

    def provider(self, name: str | None) -> Provider:
        return self.providers.setdefault(name, Provider()) if name else Provider()

    def probes(self, merchant: Merchant) -> list[Sent]:
        own = [each for each in self.out() if each.merchant is merchant]
        return [each for each in own if each.probe == merchant.spell]

    def is_troubled(self, merchant: Merchant) -> bool | None:
        """Whether orders wait for the merchant; None: for a slot first, perhaps.

        While a provider is silent, its merchants queue for a start once they have a slot.
        """
        in_flight = len(self.of(merchant))
        full = merchant.terms is not None and (
            in_flight >= merchant.limit
            or (merchant.allotment is not None and 0 <= merchant.allotment <= in_flight)
        )
        if merchant.silent or merchant.state != "closed" or full:
            return True
        return self.is_spent(merchant) and (None if self.is_silent(merchant) else True)

    def keep(self, order: Kept) -> None:
        """It waits."""
        self.kept.append(order)
        self.waiting[order.merchant] += 1

    def let_go(self, order: Kept) -> None:
        """It does not wait any more."""
        self.kept.remove(order)
        self.waiting -= Counter([order.merchant])

    def let_all_go(self) -> None:
        """None waits any more."""
        self.kept.clear()
        self.waiting.clear()

    def kept_in_trouble(self) -> list[int]:
        """Waiting orders of merchants in trouble: at least, and at most."""
        return [
            sum(n for each, n in self.waiting.items() if self.is_troubled(each) in answers)
            for answers in ((True,), (True, None))
        ]

    def look_up_goes_first(self, merchant: Merchant) -> bool | None:
        """Whether look-ups had less than half of its slot-time; None if that is too close to call."""
        own, whole = (
            each.average(self.now) + len(each.since)
            for each in (merchant.look_ups_held, merchant.held)
        )
        return None if abs(2 * own - whole) < NEAR else 2 * own < whole

    def next_of(self, merchant: Merchant) -> list[Kept]:
        """The merchant's orders of which one is next: two if it is undecidable which."""
        own = [each for each in self.kept if each.merchant is merchant]
        look_ups = [each for each in own if each.is_look_up][:1]
        rest = [each for each in own if not each.is_look_up]
        is_urgent = merchant.state == "closed"  # else a probe is the order that has waited longest
        orders = sorted(rest, key=lambda each: (each.urgency * is_urgent, each.number))[:1]
        first = self.look_up_goes_first(merchant)
        if not look_ups or not orders or first is None:
            return look_ups + orders
        return look_ups if first else orders

    def is_too_much(
        self, merchant: Merchant, now: float, *, is_light: bool, is_look_up: bool
    ) -> bool:
        """Whether no more of its orders, or no more of its look-ups, may wait."""
        if merchant.state == "open" and merchant.until - now > self.limits.local_wait_timeout:
            return True
        own = [e for e in self.kept if e.merchant is merchant and e.is_look_up is is_look_up]
        room_to_wait = self.room_to_wait(merchant, is_light=is_light)
        return len(own) >= (ceil(room_to_wait / 2) if is_look_up else room_to_wait)

    def room_to_wait(self, merchant: Merchant, *, is_light: bool) -> float:
        """How many of its orders may wait: one at least that nothing but others keep from a start."""
        mine = self.part_of_room(merchant, is_light=is_light)
        is_well = (
            merchant.terms is not None
            and merchant.state == "closed"
            and not merchant.silent
            and merchant.limit > 0
        )
        too_many = len(self.kept) >= room.EXCEEDED * self.limits.max_blocked
        may_ask = is_well and not self.of(merchant) and not too_many
        return max(mine, 1) if may_ask else mine

    def part_of_room(self, merchant: Merchant, *, is_light: bool) -> float:
        """Its part of the budget."""
        left = max(0, self.limits.max_blocked - len(self.kept))
        if not self.answers_now(merchant):
            part = room.STUCK if merchant.terms else room.STUCK_OR_UNKNOWN
            stuck = sum(n for each, n in self.waiting.items() if not self.answers_now(each))
            rest = max(0, int(part * self.limits.max_blocked) - stuck)
            mine = min(left, self.waiting[merchant] + rest)
            return min(mine, self.limits.max_waiting) if merchant.terms else mine
        unasked = merchant.allotment == -1
        limit = merchant.limit if unasked else merchant.here
        mean = merchant.mean or 0.0
        reply = max(room.QUICKEST, mean - merchant.deviation, room.QUICKEST_PART * mean)
        turn = reply / max(1, limit)
        most, pause = merchant.pace
        if not unasked and pause < inf:
            turn = max(turn, pause / most)
        seconds = parking.AHEAD * min(1.0, left / (room.AMPLE * self.limits.max_blocked))
        mine = min(left, limit + ceil(seconds / turn))
        if self.is_troubled(merchant) is not False:
            return mine
        if is_light:
            return max(mine, self.limits.max_waiting)
        too_many = len(self.kept) >= room.EXCEEDED * self.limits.max_blocked
        return mine if too_many else max(mine, 1)

    def answers_now(self, merchant: Merchant) -> bool:
        """Whether it takes orders, as far as is known."""
        limit = merchant.limit if merchant.allotment == -1 else merchant.here
        return (
            merchant.terms is not None
            and merchant.state == "closed"
            and not merchant.silent
            and limit > 0
        )

    def may_stay(self, merchant: Merchant) -> bool:
        """Whether its orders may go on waiting: for a slot, or for a merchant that answers."""
        has_turns = self.answers_now(merchant) and merchant.here > 0
        return has_turns or (self.may_start(merchant) and not self.is_silent(merchant))

    def start(
        self,
        name: str,
        number: int,
        now: float,
        *,
        is_light: bool,
        was_light: bool,
        is_look_up: bool,
    ) -> Sent:
        """Its merchant was light; its call is not light if the merchant becomes heavy by it."""
        merchant = self.merchants[name]
        assert merchant.terms is not None
        probe = merchant.spell if merchant.state == "half_open" else None
        provider = merchant.terms.provider
        lowered = merchant.is_lowered
        sent = Sent(merchant, number, now, provider, probe, is_look_up, lowered, is_light)
        if is_look_up:
            merchant.look_ups_held.since.append(now)
        self.sent.append(sent)
        merchant.starts.append(now)
        merchant.held.since.append(now)
        if is_light:
            self.light.since.append(now)
        if not was_light and self.has_pace(merchant):
            assert merchant.mean is not None
            pause = pacing.PART * min(merchant.mean, pacing.LONGEST) / self.limits.slots
            self.paced_until = max(self.paced_until, now - (pacing.BURST - 1) * pause) + pause
        if len(self.of(merchant)) >= merchant.limit:
            merchant.reached = True
        return sent

    def begin(self, sent: Sent, now: float) -> None:
        """Its claim is durable."""
        sent.began, sent.unusual_at = now, now + self.unusual_after(sent.merchant)

    def release(self, sent: Sent) -> None:
        """Its slot is free."""
        self.sent.remove(sent)
        sent.merchant.held.end(sent.started, self.now)
        if sent.is_look_up:
            sent.merchant.look_ups_held.end(sent.started, self.now)
        if sent.is_light:
            self.light.end(sent.started, self.now)

    def unusual_after(self, merchant: Merchant) -> float:
        """When a call has been in flight for longer than usual, or for too long."""
        own = self.silent_after(merchant)
        if merchant.mean is not None:
            return min(own, self.unusual(merchant.mean, merchant.deviation))
        return self.unusual(self.mean, self.deviation) if self.answers else own

    def silent_after(self, merchant: Merchant) -> float:
        """When a call has been in flight for too long."""
        own = merchant.limits_silence(self.limits.slow_after)
        if merchant.mean is not None or not self.answers:
            return own
        return max(own, self.unusual(self.mean, self.deviation))

    def unusual(self, mean: float, deviation: float) -> float:
        """When a call has been in flight for longer than the estimate allows."""
        return mean + max(latency.DEVIATIONS * deviation, latency.PART * mean, latency.SECONDS)

    def learn(self, seconds: float) -> None:
        """A merchant has answered for the first time, after this long."""
        self.answers += 1
        if self.answers == 1:
            self.mean, self.deviation = seconds, latency.FIRST_DEVIATION * seconds
            return
        weight = max(outliers.NEWEST_FIRST, 1 / self.answers)
        self.deviation += weight * (abs(seconds - self.mean) - self.deviation)
        self.mean += weight * (seconds - self.mean)

    def pass_time(self, now: float) -> list[int]:
        """Advance the time; returns the orders that expire."""
        self.now = now
        for each in self.out():
            if each.outlier_since == inf and each.unusual_at <= now:
                each.outlier_since = now
                each.is_usual = now - each.began < self.unusual_after(each.merchant)
                each.was_stranger = each.merchant.mean is None
                each.silent_at = each.began + self.silent_after(each.merchant)
                if each.merchant.mean is not None:
                    late = latency.LATE * each.merchant.mean
                    each.late_at = each.began + max(self.limits.slow_after, late)
                provider = self.provider(each.merchant.terms and each.merchant.terms.provider)
                if not provider.silent and provider.last_answer < each.began:
                    provider.silent_since = now
                if each.is_light:
                    each.is_light = False
                    self.light.end(each.started, now)
        for each in [each for each in self.out() if not each.seen_silent and each.silent_at <= now]:
            each.silent_at = each.began + self.silent_after(each.merchant)
            if each.silent_at <= now:
                each.seen_silent = each.merchant.silent = True
        for each in sorted(self.out(), key=lambda each: each.late_at):
            if each.late_at <= now and not each.late:
                each.late = True
                self.trip(each.merchant)
        for merchant in self.merchants.values():
            if merchant.state == "open" and merchant.until <= now:
                merchant.state, merchant.good_probes = "half_open", 0
                merchant.spell += 1
                merchant.look_at = now + lane.QUIET
                self.transitions.append((merchant.name, "half_open"))
        gone = self.too_late(now)
        for merchant in self.merchants.values():
            if merchant.state == "half_open" and merchant.look_at <= now:
                quiet_at = merchant.last_call + lane.QUIET
                if quiet_at <= now and self.is_idle(merchant):
                    self.close(merchant)
                merchant.look_at = quiet_at if quiet_at > now else now + lane.QUIET
        return gone

    def too_late(self, now: float) -> list[int]:
        gone = [
            each
            for each in self.kept
            if each.deadline <= now
            or (each.merchant.state == "open" and each.deadline <= each.merchant.until)
        ]
        for each in gone:
            self.let_go(each)
        return [each.number for each in gone]

    def come_back(
        self, sent: Sent, now: float, contact: CallResult, retry_after: float | None
    ) -> None:
        """Its slot stays held: the caller releases it."""
        merchant, seconds = sent.merchant, now - sent.began
        if contact is CallResult.APP_OVERLOADED:  # no merchant here shares an app
            contact = CallResult.OVERLOADED
        before = merchant.mean
        if contact in (CallResult.ANSWERED, CallResult.OVERLOADED):
            self.revive(merchant.terms.provider if merchant.terms else None)
        sent.held = True
        merchant.last_call = now
        answered = contact is CallResult.ANSWERED
        if answered and (not sent.late or sent.probe is not None):
            merchant.try_limit(sent, failed=False)
            merchant.answers += 1
            if merchant.reached and merchant.answers >= merchant.limit:
                assert merchant.terms is not None
                below = merchant.limit < merchant.terms.limit
                merchant.adapted = merchant.limit + 1 if below else inf
                merchant.answers, merchant.reached = 0, False
        elif contact in (CallResult.ANSWERED, CallResult.FAILED):
            merchant.answers = 0
        elif contact is not CallResult.NONE:
            merchant.answers, merchant.reached = 0, False
            if merchant.terms and merchant.terms.limit:
                merchant.overload(sent, now)
        if contact is CallResult.NONE:
            self.judge(sent, now, contact, retry_after)
            return
        if contact in (CallResult.ANSWERED, CallResult.OVERLOADED):
            merchant.last_answer = now
            merchant.silent = False
            self.late += outliers.NEWEST * ((sent.outlier_since < inf) - self.late)
            if before is not None and sent.outlier_since == inf:
                self.last_answer = now
        elif contact is CallResult.TIMED_OUT:
            merchant.silent = True
        if answered and before is None:
            self.learn(seconds)
        if answered and (sent.probe is not None or (before is None and not sent.late)):
            merchant.mean, merchant.deviation = seconds, latency.FIRST_DEVIATION * seconds
        elif answered and before is not None and not sent.late:
            merchant.mean = before + latency.NEWEST * (seconds - before)
            merchant.deviation += latency.NEWEST * (abs(seconds - before) - merchant.deviation)
        self.judge(sent, now, contact, retry_after)

    def revive(self, name: str | None) -> None:
        """The provider answers: merchants that waited meanwhile gain nothing by it."""
        since = self.provider(name).silent_since
        if since is not None:
            fair = self.limits.slots / max(1, self.working())
            for merchant in +self.waiting:
                own = merchant.terms and merchant.terms.provider
                if own == name and self.may_start(merchant):
                    charge = fair * (1 - exp((since - self.now) / WINDOW))
                    merchant.held.raise_to(charge, self.now)
        if name is not None:
            self.providers[name] = Provider(last_answer=self.now)

    def judge(self, sent: Sent, now: float, contact: CallResult, retry_after: float | None) -> None:
        merchant = sent.merchant
        good = contact is CallResult.ANSWERED
        if sent.probe is not None:
            if merchant.state == "half_open" and sent.probe == merchant.spell:
                if contact is not CallResult.NONE and not good:
                    self.open(merchant)
                    return
                merchant.good_probes += good
                if merchant.good_probes >= breaker.PROBES_TO_CLOSE:
                    self.close(merchant)
        elif merchant.state == "closed" and contact is not CallResult.NONE:
            merchant.results = [*merchant.results, (not good, sent.late)][-breaker.WINDOW :]
            if self.trip(merchant):
                return
        if retry_after is not None and contact is CallResult.OVERLOADED:
            self.open(merchant)

    def trip(self, merchant: Merchant) -> bool:
        overdue = sum(each.late for each in self.out() if each.merchant is merchant)
        calls = len(merchant.results) + overdue
        failed = sum(bad for bad, _ in merchant.results)
        late = sum(late for _, late in merchant.results) + overdue
        bad = failed >= breaker.FAILURE_RATE * calls or late >= breaker.SLOW_RATE * calls
        if merchant.state != "closed" or calls < breaker.MINIMUM or not bad:
            return False
        self.open(merchant)
        return True

    def open(self, merchant: Merchant) -> None:
        """``until`` is the announced end, with its jitter."""
        merchant.state = "open"
        self.transitions.append((merchant.name, "open"))

    def close(self, merchant: Merchant) -> None:
        merchant.state, merchant.results = "closed", []
        self.transitions.append((merchant.name, "closed"))

    def on_arrival(self, merchant: Merchant, now: float) -> None:
        """After a quiet spell the merchant's silence and failures are forgotten."""
        if self.is_idle(merchant) and now - merchant.last_call > lane.QUIET:
            merchant.silent = False
            merchant.adapted, merchant.results = inf, []
            merchant.forget_trial()
