"""Merchants that share an app's quota, in virtual time: a POS that counts each request, and its workers.

Workers read the orders in turn, whichever merchants' they are, and the fleet's permits are shared out as by
``fleet/share.lua``: by demand, at each beat.
"""

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from math import inf
from random import Random

import pytest

from pos_gateway.admission.admission import Admission, AdmissionVerdict
from pos_gateway.admission.health import FLEET, Transition
from pos_gateway.admission.lane import Call
from pos_gateway.admission.limits import AdmissionLimits, QuotaTerms, Terms
from pos_gateway.admission.quota import TURN, Quota
from pos_gateway.admission.rate import Rate
from pos_gateway.domain.outcome import CallResult
from tests.admission.stage import START, Stage

#: Requests of an order, and seconds between them; seconds between two syncs with the fleet, and in the broker.
REQUESTS, EACH, BEAT, PARKED = 13, 0.02, 0.1, 1.0
APP = QuotaTerms("app clover A", 50.0, None, 10, REQUESTS, is_app=True)
OTHER = QuotaTerms("app clover B", 50.0, None, 10, REQUESTS, is_app=True)


def token(merchant: str) -> QuotaTerms:
    """The quota of a merchant's token."""
    return QuotaTerms(f"credential {merchant}", 16.0, None, 5, REQUESTS)


@dataclass
class Vendor:
    """Counts requests as they come, in windows that begin at any time; 429 above the limits."""

    per_second: float = 50.0
    at_once: int = 10
    asked: deque[float] = field(default_factory=deque)
    in_flight: int = 0
    refused: int = 0

    def takes(self, now: float) -> bool:
        while self.asked and self.asked[0] + 1.0 <= now + 1e-9:
            self.asked.popleft()
        if len(self.asked) >= self.per_second or self.in_flight > self.at_once:
            self.refused += 1
            return False
        self.asked.append(now)
        return True


class World:
    """Workers and their merchants.

    Args:
        workers: those that are there from the start.
        terms_of: a merchant's quotas.
        each: seconds between an order's requests.
    """

    def __init__(
        self,
        workers: int = 1,
        terms_of: Callable[[str], tuple[QuotaTerms, ...]] = lambda m: (APP, token(m)),
        *,
        each: float = EACH,
        fleet: bool | None = None,
    ) -> None:
        self.now = 0.0
        # In a second in which a part moves to another worker, an order more may start.
        most = 50.0 if workers == 1 else 50.0 + REQUESTS
        self.vendors: dict[str, Vendor] = defaultdict(lambda: Vendor(most))
        self.terms_of, self._each = terms_of, each
        self._fleet = workers > 1 if fleet is None else fleet
        self.workers: list[Admission[str]] = []
        self._permits: dict[tuple[int, str], int] = Counter()
        self._limits: dict[str, int] = {}
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._number, self._next = count(), count()
        #: Seconds that orders waited, by merchant, and when each started.
        self.waited: dict[str, list[float]] = defaultdict(list)
        self.starts: dict[str, list[float]] = defaultdict(list)
        self._came: dict[str, float] = {}
        self._gone: set[int] = set()
        self._looks_at: dict[int, float] = {}
        self._news: list[tuple[int, Transition]] = []
        for _ in range(workers):
            self.join()
        self.at(0.0, self._sync)

    def join(self) -> None:
        """A worker more."""
        place = len(self.workers)
        self.workers.append(
            Admission(
                AdmissionLimits(max_waiting=50, max_blocked=5_000, local_wait_timeout=1e6),
                lambda m: Terms(5, quotas=self.terms_of(m)),
                announce=lambda said: self._news.append((place, said)),
                on_short=lambda key: self._short(place, key),
                in_fleet=self._fleet,
            )
        )

    def leave(self, place: int) -> list[str]:
        """A worker ends; its waiting orders come again."""
        worker = self.workers[place]
        orders = worker.drop_waiting()
        self._gone.add(place)
        for _place, key in [each for each in self._permits if each[0] == place]:
            worker.allot(key, 0)
            self._permits[place, key] = 0
        return orders

    def at(self, at: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (at, next(self._number), do))

    def come(self, merchant: str, at: float, place: int | None = None) -> None:
        """An order comes, to the next worker."""
        self.at(at, lambda: self._offer(merchant, place))

    def run(self, until: float) -> "World":
        while self._agenda and self._agenda[0][0] < until:
            self.now, _, do = heapq.heappop(self._agenda)
            do()
        return self

    def most_of(self, merchants: str) -> float:
        """The longest wait of merchants with this letter."""
        return max(max(each) for m, each in self.waited.items() if m.startswith(merchants))

    def _offer(self, merchant: str, place: int | None) -> None:
        self.offer(merchant, f"{merchant}/{next(self._number)}", place)

    def offer(self, merchant: str, order: str, place: int | None = None) -> None:
        """An order is read by this worker, or by the next; one that is parked comes again."""
        to = next(self._next) % len(self.workers) if place is None else place
        while to in self._gone:
            to = (to + 1) % len(self.workers)
        self._came.setdefault(order, self.now)
        verdict = self.workers[to].offer(merchant, order, self.now)
        if isinstance(verdict, Call):
            self._start(to, verdict)
        elif verdict is AdmissionVerdict.PARK:
            self.at(self.now + PARKED, lambda: self.offer(merchant, order, place))
        self._dispatch(to)

    def _dispatch(self, place: int) -> None:
        worker = self.workers[place]
        while (call := worker.next_start(self.now)) is not None:
            self._start(place, call)
        at = max(worker.next_at, self.now + 1e-6)
        if at < inf and not self.now < self._looks_at.get(place, 0.0) <= at:
            self._looks_at[place] = at
            self.at(at, lambda: self._dispatch(place))

    def _start(self, place: int, call: Call[str]) -> None:
        merchant = call.lane.merchant_id
        self.workers[place].began(call, self.now)
        self.waited[merchant].append(self.now - self._came[call.ticket])
        self.starts[merchant].append(self.now)
        app = next(each.key for each in self.terms_of(merchant) if each.is_app)
        vendor = self.vendors[app]
        vendor.in_flight += 1
        self._ask(place, call, vendor, 0)

    def _ask(self, place: int, call: Call[str], vendor: Vendor, asked: int) -> None:
        if asked < REQUESTS and vendor.takes(self.now):
            self.at(self.now + self._each, lambda: self._ask(place, call, vendor, asked + 1))
            return
        vendor.in_flight -= 1
        contact = CallResult.ANSWERED if asked == REQUESTS else CallResult.APP_OVERLOADED
        self.workers[place].release(call, self.now, contact)
        self._dispatch(place)

    # The fleet

    def _short(self, place: int, key: str) -> None:
        self._permits.setdefault((place, key), 0)

    def _sync(self) -> None:
        """Permits by wish, in equal parts where there are too few; what is granted was released before."""
        keys = {key for _, key in self._permits}
        for key in sorted(keys) if self._fleet else ():
            demands = [
                worker.demand(key)._replace(**({"waiting": 0} if n in self._gone else {}))
                for n, worker in enumerate(self.workers)
            ]
            limit = min((each.limit for each in demands if each.limit), default=0)
            wishes = {
                n: min(limit, each.in_flight + each.waiting) for n, each in enumerate(demands)
            }
            shares, left = dict.fromkeys(wishes, 0), limit
            while left and any(shares[n] < wish for n, wish in wishes.items()):
                for n, wish in wishes.items():
                    if left and shares[n] < wish:
                        shares[n], left = shares[n] + 1, left - 1
            held = {n: max(self._permits[n, key], demands[n].in_flight) for n in wishes}
            lacking = sum(max(0, wish - held[n]) for n, wish in wishes.items())
            is_contended = lacking > limit - sum(held.values())
            for n, worker in enumerate(self.workers):
                if shares[n] < self._permits[n, key] and is_contended:
                    self._permits[n, key] = shares[n]
                    worker.allot(key, shares[n])
            for n, worker in enumerate(self.workers):
                others = sum(
                    max(self._permits[m, key], demands[m].in_flight) for m in wishes if m != n
                )
                granted = max(self._permits[n, key], min(shares[n], limit - others))
                if granted != self._permits[n, key]:
                    self._permits[n, key] = granted
                    worker.allot(key, granted)
        news, self._news = self._news, []
        for place, said in news:
            for n, worker in enumerate(self.workers):
                if n != place and said.state == "open" and said.why != FLEET:
                    worker.open_breaker(said.merchant_id, said.seconds)
        for n in range(len(self.workers)):
            self.workers[n].tick(self.now)
            self._dispatch(n)
        self.at(self.now + BEAT, self._sync)


def polls_all_the_time(world: World, merchants: list[str], until: float) -> list[float]:
    """A poll of each merchant in turn each 10 ms, by the first worker; returns when requests were sent."""
    sent: list[float] = []
    random = Random(2)

    def poll(number: int) -> None:
        worker, merchant = world.workers[0], merchants[number % len(merchants)]
        quotas = worker.poll(merchant, world.now)
        if quotas is not None:
            sent.append(world.now)
            vendor = world.vendors[next(each.key for each in world.terms_of(merchant))]
            vendor.in_flight += 1
            vendor.takes(world.now)

            def end() -> None:
                vendor.in_flight -= 1
                worker.polled(quotas, world.now)
                world._dispatch(0)

            world.at(world.now + random.choice([0.05, 10.0]), end)
        if world.now < until:
            world.at(world.now + 0.01, lambda: poll(number + 1))

    world.at(0.5, lambda: poll(0))
    return sent


def poisson(world: World, merchants: list[str], rate: float, until: float, seed: int = 1) -> None:
    """Orders of any of the merchants, at random."""
    random, at = Random(seed), 1.0
    while (at := at + random.expovariate(rate)) < until:
        world.come(random.choice(merchants), at)


LIGHT = [f"l{n}" for n in range(100)]


@pytest.mark.parametrize("workers", [1, 2])
def test_one_heavy_merchant_does_not_use_up_the_apps_rate(workers: int) -> None:
    """The heavy one has 300 orders at once; a hundred others have one a second together."""
    world = World(workers)
    for _ in range(300):
        world.come("h0", 1.0)
    poisson(world, LIGHT, 1.0, 60.0)
    world.run(60.0)
    assert world.vendors[APP.key].refused == 0
    waits = sorted(wait for m in world.waited if m[0] == "l" for wait in world.waited[m])
    assert len(waits) > 40
    # Two workers start an order a second each, so that no start is left for others.
    assert waits[len(waits) // 2] < (0.05 if workers == 1 else 1.0)
    assert waits[-1] < (1.5 if workers == 1 else 3.0)
    # The heavy one has what its own token allows, or what the others leave.
    assert len(world.starts["h0"]) > 30


def test_a_backlog_leaves_a_start_to_merchants_without_one() -> None:
    world = World(terms_of=lambda _: (APP,))
    for _ in range(200):
        world.come("h", 1.0)
    for n in range(30):
        world.come(f"l{n}", 2.0 + n * 1.37)
    world.run(45.0)
    assert world.most_of("l") < 0.01
    assert len(world.starts["h"]) > 60


def test_an_order_finds_a_start_beside_polls_that_hang_or_never_end() -> None:
    world = World(terms_of=lambda _: (APP,))
    sent = polls_all_the_time(world, LIGHT, 60.0)
    for n in range(40):
        world.come(f"l{n}", 2.0 + n * 1.37)
    world.run(60.0)
    assert world.most_of("l") < 0.01
    assert world.vendors[APP.key].refused == 0
    assert len(sent) > 8


def test_polls_have_only_what_a_backlog_of_orders_leaves() -> None:
    """As many orders start as without polls: 11 of the app's 50 requests a second are of no order."""
    starts = []
    for is_polled in (False, True):
        world = World(terms_of=lambda _: (APP,))
        sent = polls_all_the_time(world, LIGHT, 60.0) if is_polled else []
        for n in range(300):
            world.come(f"l{n % 10}", 1.0)
        world.run(60.0)
        assert world.vendors[APP.key].refused == 0
        starts.append(sum(map(len, world.starts.values())))
    assert starts[1] >= starts[0] - 3
    assert len(sent) > 8


def test_a_poll_takes_no_request_that_a_start_waits_for() -> None:
    """Toast's, of a longer time: a request more is a start later."""
    quota: Quota[str] = Quota(QuotaTerms("app x", None, (100, 10.0), None, 4), 1.0, 0.0)
    assert quota.takes_poll(1000.0)
    quota.add("a")
    for _ in range(2):
        quota.started("a", 1000.0)
    assert not quota.takes_poll(1000.0)
    quota.queue("a", 1000.0)
    assert not quota.takes_poll(1000.1)


@pytest.mark.parametrize("orders", [True, False])
def test_of_a_quota_without_a_request_beside_an_order_polls_have_the_starts_of_none(
    orders: bool,
) -> None:
    quota: Quota[str] = Quota(QuotaTerms("app x", 1.0), 1.0, 0.0)
    quota.add("a")
    assert quota.takes_poll(0.0)
    quota.poll_began(0.0)
    quota.poll_ended()
    assert not quota.takes_poll(0.9)
    if orders:
        quota.queue("a", 0.9)
    assert quota.takes_poll(1.0) is not orders
    assert quota.next(1.0) == ("a" if orders else None)


def test_a_paused_quota_has_no_poll() -> None:
    quota: Quota[str] = Quota(APP, 1.0, 0.0)
    quota.pause(5.0)
    assert [quota.takes_poll(at) for at in (4.9, 5.0)] == [False, True]


def test_polls_that_hang_have_a_quarter_of_the_requests_at_once() -> None:
    quota: Quota[str] = Quota(APP, 1.0, 0.0)
    began = 0
    while quota.takes_poll(began):
        quota.poll_began(began)
        began += 1
    assert began == 3, "a quarter of ten, rounded up"


def test_a_worker_without_a_part_has_one_poll_at_once_and_asks_for_a_part() -> None:
    short: list[str] = []
    admission: Admission[str] = Admission(
        AdmissionLimits(), lambda _: Terms(5, quotas=(APP,)), on_short=short.append, in_fleet=True
    )
    quotas = admission.poll("a", 1.0)
    assert quotas is not None
    assert admission.poll("b", 1.0) is None
    assert {*short} == {APP.key}
    assert admission.demand(APP.key).waiting == 1
    admission.polled(quotas, 1.5)
    admission.allot(APP.key, 5)
    assert admission.poll("b", 1.5) is None, "what is gained counts as used up for a second"
    assert [admission.poll("b", 2.5) is None for _ in range(3)] == [False, False, True]
    assert admission.demand(APP.key).in_flight == 2
    admission.tick(60.0)
    assert admission.demand(APP.key).waiting == 0, "the part is given back"


def test_polls_go_on_where_a_worker_has_given_its_part_back() -> None:
    """A worker without a part sends few requests, and asks for a part however many it has sent before."""
    short: list[str] = []
    admission: Admission[str] = Admission(
        AdmissionLimits(), lambda _: Terms(5, quotas=(APP,)), on_short=short.append, in_fleet=True
    )
    admission.offer("a", "a/1", 0.0)
    admission.allot("a", 5)
    admission.allot(APP.key, 10)
    call = admission.next_start(2.0)
    assert call is not None
    admission.release(call, 3.0)
    admission.allot(APP.key, 0)
    short.clear()
    assert admission.poll("a", 60.0) is None
    assert short == [APP.key]
    assert admission.demand(APP.key).waiting == 1
    admission.allot(APP.key, 1)
    assert admission.poll("a", 61.0) is not None


@pytest.mark.parametrize("contact", [CallResult.APP_OVERLOADED, CallResult.OVERLOADED])
def test_a_429_of_a_poll_pauses_the_quota_and_no_breaker(contact: CallResult) -> None:
    said: list[Transition] = []
    terms = APP if contact is CallResult.APP_OVERLOADED else token("x")
    admission: Admission[str] = Admission(
        AdmissionLimits(), lambda _: Terms(5, quotas=(terms,)), announce=said.append
    )
    for merchant in "ab":
        quotas = admission.poll(merchant, 1.0)
        assert quotas is not None
        admission.polled(quotas, 1.1)
    admission.poll_refused("a", 2.0, contact, 7.0)
    assert [(each.merchant_id, each.seconds) for each in said] == [(terms.key, 7.0)]
    assert admission.offer("b", "b/1", 2.0) is AdmissionVerdict.WAIT
    assert admission.next_start(8.9) is None
    assert admission.next_start(9.0) is not None


def test_a_turn_without_a_slot_passes_to_the_next() -> None:
    quota: Quota[str] = Quota(QuotaTerms("app x", 1.0), 1.0, 0.0)
    for merchant in "ab":
        quota.add(merchant)
    quota.give("a", 0.0)
    quota.queue("b", 0.0)
    assert quota.next(0.0) is None
    assert quota.next_at(0.0) == TURN
    assert quota.next(TURN) == "a"
    quota.queue("a", TURN)
    assert quota.next(TURN) == "b"


def test_a_rate_that_is_lowered_counts_earlier_starts() -> None:
    rate = Rate(QuotaTerms("m", 3.0), 1.0, 0.0)
    for _ in range(3):
        rate.sent(1, 0.0)
    rate.agree(QuotaTerms("m", 2.0), 1.0, 0.5)
    assert rate.ready_at(1) == 1.0


def test_a_hundred_merchants_at_the_apps_limit_have_equal_parts() -> None:
    world = World()
    for merchant in LIGHT:
        for n in range(10):
            world.come(merchant, 1.0 + n * 0.001)
    world.run(101.0)
    starts = [len(world.starts[merchant]) for merchant in LIGHT]
    assert world.vendors[APP.key].refused == 0
    assert sum(starts) > 280  # three a second: four would be 52 requests
    assert max(starts) - min(starts) <= 2


def test_two_heavy_merchants_share_equally_though_one_came_long_before() -> None:
    world = World(terms_of=lambda _: (APP,))
    for n in range(200):
        world.come("a", 1.0 + n * 0.001)
        world.come("b", 31.0 + n * 0.001)
    world.run(61.0)
    after = {m: len([at for at in world.starts[m] if at > 31.0]) for m in "ab"}
    assert abs(after["a"] - after["b"]) <= 3
    assert sum(after.values()) > 55


def test_requests_of_orders_at_a_windows_edge_are_within_the_rate() -> None:
    """Bursts just before and just after each second."""
    world = World(each=0.001)
    for second in range(1, 40):
        for n in range(4):
            world.come(f"x{n}", second - 0.001)
            world.come(f"y{n}", second + 0.001)
    world.run(60.0)
    assert world.vendors[APP.key].refused == 0
    assert sum(map(len, world.starts.values())) > 150


def test_slow_orders_keep_to_what_the_app_takes_at_once() -> None:
    world = World(2, each=1.0)
    for n in range(40):
        world.come(f"m{n}", 1.0)
    world.run(30.0)
    assert world.vendors[APP.key].refused == 0
    assert sum(map(len, world.starts.values())) >= 18


def test_workers_join_and_leave() -> None:
    world = World(2)
    for n in range(400):
        world.come(f"m{n % 20}", 1.0 + n * 0.01)
    world.at(10.0, world.join)
    world.at(20.0, world.join)

    def end() -> None:
        for order in world.leave(0):
            world.come(order.partition("/")[0], world.now + 0.01, place=1)

    world.at(30.0, end)
    world.run(60.0)
    assert world.vendors[APP.key].refused == 0
    assert sum(map(len, world.starts.values())) > 100


def test_a_lowered_limit_counts_the_starts_before_it() -> None:
    limits = [APP]
    world = World(terms_of=lambda m: (limits[0],))
    for n in range(300):
        world.come(f"m{n % 10}", 1.0)

    def lower() -> None:
        limits[0] = QuotaTerms(APP.key, 14.0, None, 2, REQUESTS, is_app=True)
        for n in range(10):
            world.workers[0].set_terms(f"m{n}", Terms(5, quotas=tuple(limits)))

    world.at(20.0, lower)
    world.run(21.5)
    world.vendors[APP.key] = Vendor(14.0, 2)
    world.run(60.0)
    later = [at for each in world.starts.values() for at in each if at > 21.5]
    assert 35 <= len(later) <= 40


def test_a_merchant_that_moves_to_another_app_is_counted_there() -> None:
    moved = False
    world = World(terms_of=lambda m: (OTHER if moved and m == "a" else APP,), each=1.0)
    for n in range(40):
        world.come("a", 1.0)
        world.come("b", 1.0 + n * 0.001)

    def move() -> None:
        nonlocal moved
        moved = True
        world.workers[0].set_terms("a", Terms(5, quotas=(OTHER,)))

    world.at(10.0, move)
    world.run(10.1)
    admission = world.workers[0]
    assert admission.demand(OTHER.key).in_flight + admission.demand(APP.key).in_flight == 10
    assert [admission._lanes.quotas[each.key].members for each in (APP, OTHER)] == [1, 1]
    before = admission.demand(APP.key).in_flight
    world.run(25.0)
    assert admission.demand(APP.key).in_flight <= 5 < before
    assert 4 <= admission.demand(OTHER.key).in_flight <= 5
    assert all(each.refused == 0 for each in world.vendors.values())


@pytest.mark.parametrize("seconds", [None, 3.0, 3600.0])
def test_a_429_of_the_app_pauses_the_app_and_no_breaker(seconds: float | None) -> None:
    world = World(2, terms_of=lambda m: (OTHER if m == "o" else APP,))
    admission = world.workers[0]
    for merchant in "abo":
        for _ in range(3):
            world.come(merchant, 1.0, place=0)
        world.come(merchant, 1.0, place=1)
    world.run(8.0)
    call = admission.offer("a", "a/1", world.now)
    assert isinstance(call, Call)
    admission.release(call, world.now, CallResult.APP_OVERLOADED, seconds)
    paused = {None: 1.0, 3.0: 3.0, 3600.0: 30.0}[seconds]
    world.run(world.now + 0.2)  # the other worker hears of it
    for merchant in "abo":
        for place in (0, 1):
            world._came[f"{merchant}/{place}"] = world.now
            world.come(merchant, world.now + 0.01, place=place)
    start = world.now - 0.2
    world.run(start + paused - 0.1)
    assert [at for m in "ab" for at in world.starts[m] if at > start] == []
    assert len([at for at in world.starts["o"] if at > start]) == 2
    world.run(start + paused + 3.0)
    assert len([at for m in "ab" for at in world.starts[m] if at > start]) == 4
    for merchant in "ab":
        status = admission.merchant(merchant)
        assert status is not None
        assert status.breaker == "closed"


def test_a_429_of_a_token_pauses_the_merchants_that_share_the_token() -> None:
    shared = QuotaTerms("credential x", 16.0, None, 5, 1)
    world = World(terms_of=lambda m: (APP,) if m == "o" else (APP, shared))
    admission = world.workers[0]
    for merchant in "abo":
        world.come(merchant, 1.0)
    world.run(3.0)
    call = admission.offer("a", "a/1", world.now)
    assert isinstance(call, Call)
    admission.release(call, world.now, CallResult.OVERLOADED, 5.0)
    for merchant in "bo":
        world.come(merchant, 3.1)
    world.run(7.9)
    assert (len(world.starts["b"]), len(world.starts["o"])) == (1, 2)
    world.run(9.0)
    assert len(world.starts["b"]) == 2


def test_hanging_merchants_of_an_app_leave_its_rate_to_the_others() -> None:
    """They lack slots, not the app: a turn that is not used goes to the next."""
    world = World(terms_of=lambda _: (QuotaTerms(APP.key, 50.0, None, None, 1, is_app=True),))
    world.vendors[APP.key] = Vendor(1e9, 1000)
    admission = world.workers[0]
    silent = [f"s{n}" for n in range(100)]
    poisson(world, ["l1", "l2"], 5.0, 30.0)
    for n, merchant in enumerate(silent):
        world.come(merchant, 1.0 + n / 40)
    for n, merchant in enumerate(silent):  # calls that never end
        world.run(5.0 + n / 40)
        world._came[merchant] = world.now
        call = admission.offer(merchant, merchant, world.now)
        if isinstance(call, Call):
            admission.began(call, world.now)
    for n in range(10):
        for merchant in silent:
            world.come(merchant, 8.0 + n)
    world.run(31.0)
    assert world.most_of("l") < 0.5
    assert len(world.waited["l1"]) > 40


class SilentApp(Stage):
    """Merchants of the provider x share an order a second. The provider is silent: a call to ``b@x`` hangs."""

    def __init__(self, *merchants: str, slots: int) -> None:
        super().__init__(limit=9, slots=slots)
        for merchant in (*merchants, "b@x"):
            self.answer(merchant, after=0.1)
            self.pass_time(1.0)
        self.pass_time(50.0)
        self.hang("b@x")
        self.pass_time(1.0)

    def terms_of(self, merchant_id: str) -> Terms | None:
        terms = super().terms_of(merchant_id)
        if terms is None or terms.provider is None:
            return terms
        return replace(terms, quotas=(QuotaTerms("app x", 1.0, is_app=True),))


def test_orders_wait_for_a_silent_providers_quota_and_not_for_a_slot() -> None:
    stage = SilentApp("a@x", slots=160)
    assert stage.offers("a@x", 3) == [START, AdmissionVerdict.WAIT, AdmissionVerdict.WAIT]
    assert stage.starts() == []
    assert stage.admission.slots["free"] == 158
    assert (stage.admission.waiting, stage.admission.blocked) == (2, 2)


def test_a_revived_providers_merchants_queue_for_the_quota_and_end_no_calls_of_others() -> None:
    """The quota has a start for one of ten, who needs one slot: a call is cut short for no other."""
    merchants = [f"a{n}@x" for n in range(10)]
    stage = SilentApp(*merchants, slots=16)
    strangers = [f"s{n}" for n in range(15)]
    for stranger in strangers:
        assert stage.offer(stranger) == START
    stage.pass_time(3.5)  # all of them are silent
    for merchant in merchants:
        assert stage.offer(merchant, merchant) == AdmissionVerdict.WAIT
    stage.reply("b@x")
    assert len(stage.starts()) == 1
    assert (stage.admission.waiting, stage.admission.blocked) == (9, 9)
    stage.pass_time(0.5)
    assert stage.cut_short() == []
    stage.pass_time(0.6)
    assert len(stage.cut_short()) == 1


def test_look_ups_and_retries_count_as_orders_do() -> None:
    world = World(each=0.001)
    admission = world.workers[0]
    admission.tick(5.0)
    calls = [
        admission.offer("m", f"m/{n}", 5.0, is_look_up=is_look_up)
        for n, is_look_up in enumerate((True, False, True, False))
    ]
    assert sum(isinstance(each, Call) for each in calls) == 1  # its token's; the app has three


def test_the_clock_jumps() -> None:
    """Admission's clock never goes back; a jump forward pays for one second of starts."""
    world = World(terms_of=lambda _: (APP,))
    for n in range(40):
        world.come(f"m{n}", 1.0)
    world.run(2.5)
    world.workers[0].tick(3600.0)
    world.now = 3600.0
    before = sum(map(len, world.starts.values()))
    world._dispatch(0)
    assert sum(map(len, world.starts.values())) - before == 3


# The longer time

LONG = QuotaTerms("m", 20.0, (10_000, 900.0), None, 4)


def starts_of(admission: Admission[str], start: float, seconds: float) -> int:
    """As many orders of one merchant as it starts."""
    number, now = 0, start
    while now < start + seconds:
        admission.tick(now)
        call = admission.offer("m", "o", now, may_wait=False)
        if isinstance(call, Call):
            admission.release(call, now)
            number += 1
        now += 0.05
    return number


def one(*, in_fleet: bool = False) -> Admission[str]:
    return Admission(AdmissionLimits(), lambda _: Terms(50, quotas=(LONG,)), in_fleet=in_fleet)


def test_a_burst_is_within_the_longer_limit_and_so_is_what_follows() -> None:
    admission = one()
    first = starts_of(admission, 0.0, 30.0)
    assert 70 <= first <= 80  # evenly: a worker that has just started may have been there before
    burst = starts_of(admission, 1000.0, 60.0)
    assert 280 <= burst <= 300  # five a second
    whole = burst + starts_of(admission, 1060.0, 840.0)
    assert 2300 <= whole <= 2500


def test_workers_that_take_turns_have_no_burst_more() -> None:
    """Permits go to and fro; in fifteen minutes all together start no more than one would."""
    workers, total = [one(in_fleet=True) for _ in range(3)], 0
    for each in workers:
        each.offer("m", "o", 0.0, may_wait=False)
    for turn in range(30):
        for n, each in enumerate(workers):
            each.tick(turn * 30.0)
            each.allot("m", 50 if n == turn % 3 else 0)
        total += starts_of(workers[turn % 3], turn * 30.0, 30.0)
    assert 2000 <= total <= 2500
