"""Keeps this pod's allotments in step with the fleet's, beside the orders.

The pod decides against the merchant's allotment, without a call to Redis. When an allotment is used
up, or a merchant is new here, this green thread asks for more permits: requests within a few
milliseconds share a round trip.

    JOINING   holds nothing yet, and nothing starts        ─ an answer ──────────► TOGETHER
    TOGETHER  each merchant's limit is the fleet's         ─ paused for too long ► JOINING
    (both)                                                 ─ Redis is away ──────► ALONE
    ALONE     each merchant's limit is this pod's alone    ─ Redis is back ──────► JOINING

A pod takes permits from admission before reporting to Redis, and gives admission permits only after
Redis has granted them. So Redis's record is never below the pod's calls in flight.
"""

import threading
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Any

import structlog

from pos_gateway.admission.admission import Admission
from pos_gateway.domain.errors import FleetUnavailable
from pos_gateway.fleet.breakers import BreakerNews
from pos_gateway.fleet.holdings import Holdings
from pos_gateway.fleet.permits import RedisPermits
from pos_gateway.fleet.sync import MAX_ASKS, Answer, Ask, Report, SyncTiming
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock
from pos_gateway.telemetry import metrics

log = structlog.get_logger(__name__)

#: Maximum syncs in a row, before the thread waits for a change.
_ROUNDS = 100
#: Merchants checked in each beat for unused permits: at least this many, and a quarter of all.
_LOOKS = 100
#: The share of Redis's time in which all pods together may repeat asks: where many pods lack
#: permits of many merchants, pods ask less often, and Redis answers in time.
_SHARE_OF_REDIS = 0.5
#: Answers in a row after which Redis counts as back: a Redis that answers now and then would keep
#: orders waiting most of the time.
_REJOIN_ANSWERS = 2
#: Seconds that ``stop`` waits for the thread: a sync in flight, and the last sync.
_STOP_TIMEOUT = 3.0


class FleetState(Enum):
    """See the module."""

    JOINING = "joining"
    TOGETHER = "together"
    ALONE = "alone"


class Coordinator:
    """A pod's part in the fleet. The constructor does no I/O.

    ``short``, ``breaker_opened``, ``breaker_closed`` and ``may_start`` never block, and may be
    called from any green thread, even before the start and after the end.

    Args:
        permits: the fleet's permits.
        admission: gets the allotments. Called from the coordinator's green thread only. Must not
            block; may call ``short``.
        on_change: called there when more orders may start. Must not block.
        timing: the fleet's.
        clock: source of time.
    """

    def __init__(
        self,
        permits: RedisPermits,
        admission: Admission[Any],
        *,
        on_change: Callable[[], None],
        timing: SyncTiming | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._permits = permits
        self._admission = admission
        self._on_change = on_change
        self._timing = timing or SyncTiming()
        self._clock = clock
        self._holdings = Holdings(admission, idle=self._timing.idle)
        self._news = BreakerNews()
        self._short: set[str] = set()
        #: Merchants to check -> whether to ask even without a change. Ordered.
        self._to_look: dict[str, bool] = {}
        self.state = FleetState.JOINING
        #: Whether Redis's record of this pod may be wrong.
        self._anew = True
        self._was_alone = False
        self._answers = 0
        #: Start of the last answered sync.
        self._reached = 0.0
        self._last_beat = self._last_pulse = -self._timing.lease
        #: A sync is due even without news: each sync renews this pod's lease.
        self._beat_is_due = False
        self._retry_at = 0.0
        self._last_asked_again = -self._timing.lease
        #: Seconds that a sync with asks takes, times the number of pods.
        self._asking_takes = 0.0
        #: End of the last sync, if that failed.
        self._failed_at: float | None = None
        self._wake = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def short(self, merchant_id: str) -> None:
        """An order waits for an allotment, or the merchant or its terms are new here."""
        self._short.add(merchant_id)
        self._wake.set()

    def breaker_opened(self, merchant_id: str, seconds: float) -> None:
        """This pod's breaker for the merchant opened, for ``seconds`` from now."""
        self._news.put(merchant_id, self._clock.monotonic() + seconds)
        self._wake.set()

    def breaker_closed(self, merchant_id: str) -> None:
        """This pod's breaker for the merchant closed."""
        self._news.put(merchant_id, None)
        self._wake.set()

    def may_start(self, now: float) -> bool:
        """Whether allotments count at this moment (seconds of the monotonic clock).

        After a pause of the process for longer than ``SyncTiming.trust``, allotments do not count
        until Redis has answered. The dispatcher asks before starting orders, and else waits for
        ``on_change``.
        """
        return self.state is FleetState.ALONE or now - self._reached < self._timing.trust

    def start(self) -> None:
        """Start the thread (a green thread in a green worker). Idempotent."""
        if self._thread is None:
            self._stopping = False
            self.begin()
            self._thread = threading.Thread(target=self._run, name="fleet", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Release all permits and end; nothing starts any more. Idempotent, bounded in time.

        Calls in flight count as held for another lease, so stop after their end, if possible.
        """
        thread, self._thread = self._thread, None
        self._stopping = True
        self._wake.set()
        if thread is not None:
            thread.join(_STOP_TIMEOUT)

    def begin(self) -> None:
        """Start the clock: Redis is away if not reached within ``SyncTiming.trust``."""
        self._reached = self._clock.monotonic()

    def step(self) -> None:
        """Do everything due now. The thread repeats this; tests call it."""
        now = self._clock.monotonic()
        short, self._short = self._short, set()
        if self.state is not FleetState.ALONE and now - self._reached >= self._timing.trust:
            if self._failed_at is not None and now - self._failed_at < self._timing.trust:
                self._go_alone()
            else:
                self._lapse()  # without a tried sync, this process was paused
        if self.state is FleetState.ALONE:
            self._step_alone(short, now)
            return
        self._collect(short, now)
        if now >= self._retry_at:
            self._sync_all(now)

    def pause(self) -> float:
        """Seconds until the next step is due, without a change before."""
        now = self._clock.monotonic()
        due = self._last_beat + self._timing.beat
        if self._holdings.lacking or self._holdings.draining:
            due = min(due, self._last_pulse + self._pulse)
        return max(0.0, max(due, self._retry_at) - now)

    def leave(self) -> None:
        """Release all permits, if Redis is there. Nothing starts any more."""
        now = self._clock.monotonic()
        self._holdings.revoke()
        metrics.fleet_connected.set(0)
        asks = [ask for m in list(self._holdings.merchants) if (ask := self._holdings.look(m, now))]
        # No order starts in this pod from now on; only calls in flight count.
        asks = [replace(each, permits=0, wanted=0) for each in asks if each.in_flight]
        if self.state is not FleetState.ALONE:
            for start in range(0, max(1, len(asks)), MAX_ASKS):
                some, last = asks[start : start + MAX_ASKS], start + MAX_ASKS >= len(asks)
                if not self._exchange(Report(some, anew=start == 0, leaving=last), now):
                    break  # the lease expires by itself
        self._permits.close()
        self._to_look = dict.fromkeys(self._holdings.merchants, True)
        self.state, self._anew = FleetState.JOINING, True

    def _run(self) -> None:
        pause = threading.Event()
        while not self._stopping:
            if self._wake.wait(self.pause()):
                pause.wait(self._timing.batch)  # changes that come together share a sync
            self._wake.clear()
            try:
                self.step()
            except Exception as error:  # noqa: BLE001  (without this thread, orders would wait)
                log.error("fleet.failed", error=repr(error))
                self._go_alone()
                pause.wait(self._timing.retry)
        self.leave()

    def _collect(self, short: set[str], now: float) -> None:
        """Collect the merchants to check."""
        may_start = False
        for merchant_id in short:
            self._to_look.setdefault(merchant_id, False)
            may_start = self._holdings.affirm(merchant_id) or may_start
            self._short.discard(merchant_id)  # admission may have called ``short`` again
        if may_start:
            self._on_change()
        if now - self._last_pulse >= self._pulse:
            self._last_pulse = now
            for merchant_id in self._holdings.draining:
                self._to_look.setdefault(merchant_id, False)
            self._to_look.update(dict.fromkeys(self._holdings.lacking, True))
        if now - self._last_beat >= self._timing.beat:
            self._last_beat, self._beat_is_due = now, True
            if now - self._last_asked_again >= self._asking_takes / _SHARE_OF_REDIS:
                self._last_asked_again = now
                self._to_look.update(dict.fromkeys(self._holdings.contended, True))
            for merchant_id in self._some():
                self._to_look.setdefault(merchant_id, False)

    def _sync_all(self, now: float) -> None:
        """Sync everything due, and everything the answers cause."""
        for _ in range(_ROUNDS):
            asks = self._next_asks(now)
            if not (asks or self._news or self._beat_is_due):
                return
            if not self._sync(asks, now):
                return
            now = self._clock.monotonic()

    def _next_asks(self, now: float) -> list[Ask]:
        asks: list[Ask] = []
        while self._to_look and len(asks) < MAX_ASKS:
            merchant_id = next(iter(self._to_look))
            forced = self._to_look.pop(merchant_id)
            ask = self._holdings.look(merchant_id, now, forced=forced)
            if ask is not None:
                asks.append(ask)
        return asks

    def _sync(self, asks: list[Ask], now: float) -> bool:
        news = self._news.take()
        report = Report(
            asks=asks,
            # A breaker whose time has just passed is not reported.
            openings={m: until - now for m, until in news.items() if until and until > now},
            closings=[m for m, until in news.items() if until is None],
            anew=self._anew,
        )
        reached = self._reached
        answer = self._exchange(report, now)
        if answer is None:
            self._news.put_back(news)
            # Redis may or may not have the report: the pod reports again, with the state by then.
            self._to_look.update((ask.merchant_id, True) for ask in asks)
            self._retry_at = now + self._timing.beat
            if self._was_alone:
                self._go_alone()  # Redis was back, but not for long
            return False
        # Redis may have no record of this pod because its lease expired before this sync.
        since = reached if answer.forgotten else now
        if self._clock.monotonic() - since >= self._timing.trust:
            self._lapse()  # this process was paused: other pods may have its permits
            return False
        self._take_in(asks, answer)
        return True

    def _take_in(self, asks: list[Ask], answer: Answer) -> None:
        self._anew = self._was_alone = False
        if self.state is FleetState.JOINING:
            self.state = FleetState.TOGETHER
            metrics.fleet_connected.set(1)
            log.info("fleet.joined", merchants=len(self._holdings), settling=answer.settling)
        if answer.forgotten:
            log.warning("fleet.forgotten", merchants=len(self._holdings))
            self._holdings.forgotten()
            self._to_look.update(dict.fromkeys(self._holdings.merchants, True))
            for ask in asks:
                self._to_look.pop(ask.merchant_id, None)
        may_start, more = self._holdings.settle(asks, answer.grants)
        self._to_look.update(dict.fromkeys((*answer.contended, *more), True))
        may_start = self._apply_peer_breakers(answer) or may_start
        metrics.fleet_permits.set(self._holdings.permits)
        metrics.fleet_pods.set(answer.pods)
        if may_start:
            self._on_change()

    def _apply_peer_breakers(self, answer: Answer) -> bool:
        """Open and close breakers as other pods did; returns whether orders may start."""
        for merchant_id, seconds in answer.opened.items():
            if merchant_id not in self._news:  # this pod has newer news
                self._admission.open_breaker(merchant_id, seconds)
        for merchant_id in answer.closed:
            if merchant_id not in self._news:
                self._admission.close_breaker(merchant_id)
        return bool(answer.closed)

    def _exchange(self, report: Report, now: float) -> Answer | None:
        """A round trip; None after a failure."""
        try:
            with metrics.fleet_sync_seconds.time():
                answer = self._permits.sync(report)
        except FleetUnavailable as error:
            metrics.fleet_syncs.labels("failed").inc()
            if self._failed_at is None:
                log.warning("fleet.sync_failed", error=str(error))
            self._failed_at = self._clock.monotonic()
            return None
        metrics.fleet_syncs.labels("answered").inc()
        self._failed_at, self._beat_is_due, self._reached = None, False, now
        if report.asks:
            takes = (self._clock.monotonic() - now) * answer.pods
            # Bounded: a slow sync, or a pause in a sync, must not keep orders waiting for longer.
            self._asking_takes = min(takes, self._timing.lease * _SHARE_OF_REDIS)
        return answer

    def _step_alone(self, short: set[str], now: float) -> None:
        self._holdings.set_free(short, now)
        if short:
            self._on_change()
        if now < self._retry_at:
            return
        self._holdings.forget_idle(self._some(), now)
        self._last_beat, self._retry_at = now, now + self._timing.retry
        answer = self._exchange(Report(anew=True), now)
        if answer is None:
            self._answers = 0
            return
        self._answers += 1
        if answer.settling or self._answers < _REJOIN_ANSWERS:
            # While Redis settles, no permit is granted: staying alone is no worse.
            self._retry_at = now + self._timing.beat
            return
        self._holdings.revoke()
        self.state, self._anew, self._was_alone = FleetState.JOINING, True, True
        self._retry_at = now
        self._to_look = dict.fromkeys(self._holdings.merchants, True)
        self._sync_all(self._clock.monotonic())

    def _go_alone(self) -> None:
        """Redis is away: orders go on, with each merchant's full limit in this pod."""
        self._holdings.forgotten()
        self._holdings.set_free(self._holdings.merchants, self._clock.monotonic())
        self._to_look.clear()
        self._retry_at = self._clock.monotonic() + self._timing.retry
        self._answers = 0
        self.state, self._anew, self._was_alone = FleetState.ALONE, True, False
        metrics.fleet_connected.set(0)
        metrics.fleet_permits.set(0)
        log.error("fleet.lost", merchants=len(self._holdings))
        self._on_change()

    def _lapse(self) -> None:
        """This process was paused for so long that other pods may have the permits."""
        self._holdings.revoke()
        self._to_look = dict.fromkeys(self._holdings.merchants, True)
        self._beat_is_due, self._retry_at = True, 0.0
        self.state, self._anew = FleetState.JOINING, True
        log.warning("fleet.lapsed", merchants=len(self._holdings))

    def _some(self) -> list[str]:
        return self._holdings.some(max(_LOOKS, len(self._holdings) // 4))

    @property
    def _pulse(self) -> float:
        return max(self._timing.pulse, self._asking_takes / _SHARE_OF_REDIS)
