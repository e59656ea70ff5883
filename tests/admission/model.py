"""Admission as a person would do it with pencil and paper: lists, looked through from end to end.

Written from the rules alone; it shares no code with what it checks, only the numbers.
"""

from collections import Counter
from dataclasses import dataclass, field
from math import ceil, inf

from pos_gateway.admission import breaker, lane, pace, parking, room, suspects, turns, usual
from pos_gateway.admission.limits import Limits, Terms
from pos_gateway.outcome import Contact


@dataclass(eq=False)
class Sent:
    """An order under way."""

    merchant: "Merchant"
    number: int
    started: float
    provider: str | None
    probe: int | None
    #: When it is out for longer than is usual, and when that was seen.
    suspicious_at: float = inf
    suspected: float = inf
    slow_at: float = inf
    seen_slow: bool = False
    late_at: float = inf
    late: bool = False
    cut_short: bool = False
    #: Its merchant is done with; the slot is held until the broker has stored what came of it.
    held: bool = False


@dataclass(eq=False)
class Merchant:
    name: str
    terms: Terms | None
    adapted: float = inf
    answers: int = 0
    reached: bool = False
    halved: float = -inf
    allotment: int | None = None
    #: When its orders started.
    starts: list[float] = field(default_factory=list)
    results: list[tuple[bool, bool]] = field(default_factory=list)
    state: str = "closed"
    until: float = 0.0
    spell: int = 0
    good_probes: int = 0
    mean: float | None = None
    deviation: float = 0.0
    slow: bool = False
    #: A call was out for too long, and none has been answered since.
    silent: bool = False
    quick: int = 0
    relapses: int = 0
    healthy_since: float = -inf
    last_call: float = 0.0
    last_answer: float = -inf

    @property
    def limit(self) -> float:
        return 0 if self.terms is None else min(self.terms.limit, self.adapted)

    @property
    def here(self) -> float:
        """The same, with what the fleet leaves to this worker."""
        return self.limit if self.allotment is None else min(self.limit, self.allotment)

    @property
    def a_second(self) -> float:
        """How many may start in a second, of whole numbers and one at least."""
        if self.terms is None or self.terms.per_second is None:
            return inf
        part = 1.0
        if self.allotment is not None and self.terms.limit:
            part = min(1.0, max(0, self.allotment) / self.terms.limit)
        return max(1, int(self.terms.per_second * part))


@dataclass
class Fellows:
    """Merchants that share slots: those of one provider, or the slow ones."""

    silent: bool = False
    last_answer: float = -inf


@dataclass(eq=False)
class Kept:
    """An order that waits."""

    merchant: Merchant
    number: int
    since: float
    deadline: float


class Model:
    """Merchants, orders under way and orders that wait, each in a list."""

    def __init__(self, limits: Limits, terms: dict[str, Terms | None]) -> None:
        self.limits = limits
        self.merchants = {name: Merchant(name, each) for name, each in terms.items()}
        self.now = 0.0
        self.sent: list[Sent] = []
        self.kept: list[Kept] = []
        #: How many of them each merchant has: there may be hundreds.
        self.waiting: Counter[Merchant] = Counter()
        self.provider_cap = max(1, int(limits.slots * limits.provider_share))
        self.slow_cap = max(1, int(limits.slots * limits.slow_share))
        self.providers: dict[str, Fellows] = {}
        self.slow_ones = Fellows()
        #: When a merchant, whichever, answered last in its usual time.
        self.last_answer = 0.0
        #: The part of the last answers that were not.
        self.late = 0.0
        #: How long they take to answer, all together: the mean, how far from it, and of how many.
        self.mean, self.deviation, self.answers = 0.0, 0.0, 0
        #: Those whose terms became known, or others, since it was looked who waits for too long.
        #: What must be announced, in any order: merchant and state.
        self.transitions: list[tuple[str, str]] = []

    def of(self, merchant: Merchant) -> list[Sent]:
        return [each for each in self.sent if each.merchant is merchant]

    def out(self) -> list[Sent]:
        return [each for each in self.sent if not each.held]

    def slots_free(self) -> int:
        return self.limits.slots - len(self.sent)

    @property
    def slow_cap_now(self) -> int:
        silent = self.slow_ones.silent
        return max(1, self.slow_cap // turns.SILENT) if silent else self.slow_cap

    def slow_in_flight(self) -> int:
        return sum(each.merchant.slow for each in self.sent)

    def may_start(self, merchant: Merchant) -> bool:
        """Whether only a slot is missing, shares included."""
        if merchant.terms is None or len(self.of(merchant)) >= merchant.limit:
            return False
        if merchant.allotment is not None and len(self.of(merchant)) >= merchant.allotment:
            return False
        if merchant.state == "open" or self.is_spent(merchant):
            return False
        if merchant.state == "half_open" and self.probes(merchant):
            return False
        if merchant.slow and self.slow_in_flight() >= self.slow_cap_now:
            return False
        if self.is_within_share(merchant):
            return True
        provider = merchant.terms.provider
        others = sum(each.provider != provider for each in self.sent)
        return not self.provider(provider).silent and self.slots_free() > others

    def is_spent(self, merchant: Merchant) -> bool:
        """As many have started in this second as may."""
        recent = [at for at in merchant.starts if at + 1.0 > self.now]
        return len(recent) >= merchant.a_second

    def is_within_share(self, merchant: Merchant) -> bool:
        provider = merchant.terms.provider if merchant.terms else None
        return provider is None or self.room(provider) > 0

    def most_at_once(self, names: set[str]) -> int:
        """How many of these merchants, one order each, their providers' shares have room for."""
        agreed = [self.merchants[name].terms for name in names]
        providers = Counter(terms.provider if terms else None for terms in agreed)
        alone = providers.pop(None, 0)
        return alone + sum(min(self.room(name or ""), n) for name, n in providers.items())

    def room(self, provider: str) -> int:
        """How many more the provider's share has room for."""
        held = sum(each.provider == provider for each in self.sent)
        cap = self.provider_cap
        if self.provider(provider).silent:
            cap = min(cap, self.slow_cap)
        return max(0, cap - held)

    def provider(self, name: str | None) -> Fellows:
        return self.providers.setdefault(name, Fellows()) if name else Fellows()

    def out_too_long(self, sent: Sent) -> None:
        """Its merchant is slow; who shares slots with it is silent, unless one has answered since."""
        sent.merchant.silent = True
        for fellows in (self.provider(sent.provider), self.slow_ones):
            fellows.silent = fellows.silent or fellows.last_answer < sent.started

    def probes(self, merchant: Merchant) -> list[Sent]:
        own = [each for each in self.out() if each.merchant is merchant]
        return [each for each in own if each.probe == merchant.spell]

    def startable(self) -> set[str]:
        return {each.name for each in self.waiting if self.may_start(each)}

    def is_troubled(self, merchant: Merchant) -> bool:
        in_flight = len(self.of(merchant))
        full = merchant.terms is not None and (
            in_flight >= merchant.limit
            or (merchant.allotment is not None and 0 <= merchant.allotment <= in_flight)
        )
        return merchant.slow or merchant.state != "closed" or full or self.is_spent(merchant)

    def keep(self, order: Kept) -> None:
        """It waits."""
        self.kept.append(order)
        self.waiting[order.merchant] += 1

    def let_go(self, order: Kept) -> None:
        """It waits no more."""
        self.kept.remove(order)
        self.waiting -= Counter([order.merchant])

    def let_all_go(self) -> None:
        """None waits any more."""
        self.kept.clear()
        self.waiting.clear()

    def kept_in_trouble(self) -> int:
        """How many orders wait whose merchants are in trouble."""
        return sum(n for each, n in self.waiting.items() if self.is_troubled(each))

    def is_too_much(self, merchant: Merchant, now: float) -> bool:
        """Whether no more of its orders may wait."""
        if merchant.state == "open" and merchant.until - now > self.limits.max_wait:
            return True
        return self.waiting[merchant] >= self.room_to_wait(merchant)

    def room_to_wait(self, merchant: Merchant) -> float:
        """How many of its orders may wait."""
        left = max(0, self.limits.max_blocked - len(self.kept))
        if not self.answers_now(merchant):
            return min(left, self.limits.max_waiting)
        reply = 0.0 if merchant.mean is None else merchant.mean - merchant.deviation
        unasked = merchant.allotment == -1
        limit = merchant.limit if unasked else merchant.here
        turn = max(room.QUICKEST, reply) / max(1, limit)
        if not unasked:
            turn = max(turn, 1 / merchant.a_second)
        mine = min(left, limit + ceil(parking.AHEAD / turn))
        is_light = self.is_within_share(merchant) and not self.is_troubled(merchant)
        return max(mine, self.limits.max_waiting) if is_light else mine

    def answers_now(self, merchant: Merchant) -> bool:
        """Whether it answers, as far as is known; not while it is paused."""
        is_paused = merchant.terms is not None and not merchant.terms.limit
        return merchant.state == "closed" and not merchant.silent and not is_paused

    def may_stay(self, merchant: Merchant) -> bool:
        """Whether its orders may go on waiting: for a slot, or for a merchant that answers."""
        has_turns = self.answers_now(merchant) and merchant.here > 0
        return has_turns or self.may_start_within_share(merchant)

    def may_start_within_share(self, merchant: Merchant) -> bool:
        return self.may_start(merchant) and self.is_within_share(merchant)

    def start(self, name: str, number: int, now: float) -> Sent:
        merchant = self.merchants[name]
        assert merchant.terms is not None
        suspicious = inf
        if merchant.mean is not None:
            suspicious = self.unusual(merchant.mean, merchant.deviation)
        elif self.answers:
            suspicious = self.unusual(self.mean, self.deviation)
        probe = merchant.spell if merchant.state == "half_open" else None
        sent = Sent(merchant, number, now, merchant.terms.provider, probe)
        sent.suspicious_at = now + min(suspicious, self.slow_after(merchant))
        self.sent.append(sent)
        merchant.starts.append(now)
        if len(self.of(merchant)) >= merchant.limit:
            merchant.reached = True
        return sent

    def slow_after(self, merchant: Merchant) -> float:
        """When a call has been out for too long."""
        if merchant.mean is None:
            return self.limits.slow_after
        return min(self.limits.slow_after, max(pace.NEVER_SLOW, pace.UNUSUAL * merchant.mean))

    def unusual(self, mean: float, deviation: float) -> float:
        """When a call has been out for longer than usual."""
        return mean + max(usual.DEVIATIONS * deviation, usual.PART * mean, usual.SECONDS)

    def learn(self, seconds: float) -> None:
        """A merchant, whichever, has answered for the first time, in so long."""
        self.answers += 1
        if self.answers == 1:
            self.mean, self.deviation = seconds, usual.FIRST_DEVIATION * seconds
            return
        weight = max(suspects.NEWEST_FIRST, 1 / self.answers)
        self.deviation += weight * (abs(seconds - self.mean) - self.deviation)
        self.mean += weight * (seconds - self.mean)

    def pass_time(self, now: float) -> list[int]:
        """What time does; the orders that are too late now."""
        self.now = now
        for each in self.out():
            if each.suspected == inf and each.suspicious_at <= now:
                each.suspected = now
                each.slow_at = each.started + self.slow_after(each.merchant)
        for each in [each for each in self.out() if not each.seen_slow and each.slow_at <= now]:
            each.seen_slow = True
            each.merchant.quick = 0
            self.turn_slow(each.merchant, now)
            self.out_too_long(each)
            if each.merchant.mean is not None:
                late = pace.LATE * each.merchant.mean
                each.late_at = each.started + max(self.limits.slow_after, late)
        for each in sorted(self.out(), key=lambda each: each.late_at):
            if each.late_at <= now and not each.late:
                each.late = True
                self.trip(each.merchant, now)
        for merchant in self.merchants.values():
            if merchant.state == "open" and merchant.until <= now:
                merchant.state, merchant.good_probes = "half_open", 0
                merchant.spell += 1
                self.transitions.append((merchant.name, "half_open"))
        return self.too_late(now)

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
        self, sent: Sent, now: float, contact: Contact, retry_after: float | None
    ) -> None:
        """Its slot is held: that is the caller's to end."""
        merchant, seconds = sent.merchant, now - sent.started
        before = merchant.mean
        sent.held = True
        merchant.last_call = now
        answered = contact is Contact.ANSWERED
        if answered and (not sent.late or sent.probe is not None):
            merchant.answers += 1
            if merchant.reached and merchant.answers >= merchant.limit:
                assert merchant.terms is not None
                below = merchant.limit < merchant.terms.limit
                merchant.adapted = merchant.limit + 1 if below else inf
                merchant.answers, merchant.reached = 0, False
        elif contact in (Contact.ANSWERED, Contact.FAILED):
            merchant.answers = 0
        elif contact is not Contact.NONE:
            merchant.answers, merchant.reached = 0, False
            if sent.started >= merchant.halved and merchant.terms and merchant.terms.limit:
                merchant.adapted = max(1, merchant.limit // 2)
                merchant.halved = now
        if contact is Contact.NONE:
            self.judge(sent, now, contact, retry_after)
            return
        after = self.slow_after(merchant)
        if contact in (Contact.ANSWERED, Contact.OVERLOADED):
            merchant.last_answer = now
            merchant.silent = False
            self.late += suspects.NEWEST * ((sent.suspected < inf) - self.late)
            if before is not None and sent.suspected == inf:
                self.last_answer = now
            if sent.provider:
                self.providers[sent.provider] = Fellows(silent=False, last_answer=now)
            if merchant.slow:
                self.slow_ones = Fellows(silent=False, last_answer=now)
        if answered and before is None:
            self.learn(seconds)
        if answered and (sent.probe is not None or (before is None and not sent.late)):
            merchant.mean, merchant.deviation = seconds, usual.FIRST_DEVIATION * seconds
        elif answered and before is not None and not sent.late:
            merchant.mean = before + pace.NEWEST * (seconds - before)
            merchant.deviation += pace.NEWEST * (abs(seconds - before) - merchant.deviation)
        cut_short = sent.cut_short and contact is Contact.TIMED_OUT
        if cut_short:
            self.out_too_long(sent)
        if seconds >= after or cut_short:
            merchant.quick = 0
            self.turn_slow(merchant, now)
        else:
            merchant.quick += answered
            wanted = min(
                pace.MOST_REPLIES, pace.QUICK_REPLIES * pace.RELAPSED ** min(10, merchant.relapses)
            )
            if merchant.slow and merchant.quick >= wanted:
                self.turn_healthy(merchant, now)
        self.judge(sent, now, contact, retry_after)

    def judge(self, sent: Sent, now: float, contact: Contact, retry_after: float | None) -> None:
        merchant = sent.merchant
        good = contact is Contact.ANSWERED
        if sent.probe is not None:
            if merchant.state == "half_open" and sent.probe == merchant.spell:
                if contact is not Contact.NONE and not good:
                    self.open(merchant)
                    return
                merchant.good_probes += good
                if merchant.good_probes >= breaker.PROBES_TO_CLOSE:
                    self.close(merchant)
        elif merchant.state == "closed" and contact is not Contact.NONE:
            merchant.results = [*merchant.results, (not good, sent.late)][-breaker.WINDOW :]
            if self.trip(merchant, now):
                return
        if retry_after is not None:
            self.open(merchant)

    def trip(self, merchant: Merchant, now: float) -> bool:
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
        """``until`` is what is announced: it has jitter."""
        merchant.state = "open"
        self.transitions.append((merchant.name, "open"))

    def close(self, merchant: Merchant) -> None:
        merchant.state, merchant.results = "closed", []
        self.transitions.append((merchant.name, "closed"))

    def turn_slow(self, merchant: Merchant, now: float) -> None:
        if not merchant.slow:
            relapse = now - merchant.healthy_since < pace.RELAPSE
            merchant.relapses = merchant.relapses + 1 if relapse else 0
        merchant.slow = True

    def turn_healthy(self, merchant: Merchant, now: float) -> None:
        if merchant.slow:
            merchant.healthy_since = now
            merchant.slow = merchant.silent = False

    def on_arrival(self, merchant: Merchant, now: float) -> None:
        """After a quiet spell the merchant gets the benefit of the doubt."""
        idle = not self.of(merchant) and not self.waiting[merchant]
        if idle and now - merchant.last_call > lane.QUIET:
            self.turn_healthy(merchant, merchant.last_call)
            merchant.adapted, merchant.results = inf, []
