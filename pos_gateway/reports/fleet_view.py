"""All workers together, from their reports and the latest outcomes: two queries for now, one for the last hour."""

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import add
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, case, func, select

from pos_gateway.database.clock import Now, ThisMinute
from pos_gateway.database.schema import COUNTED, worker_minutes, worker_reports
from pos_gateway.reports.counters import Counters
from pos_gateway.reports.recent_outcomes import Failing, failing
from pos_gateway.reports.report import (
    EVENTS,
    GREEN,
    MAX_TROUBLES,
    Trouble,
    WorkerReport,
    decoded,
)
from pos_gateway.reports.store import AHEAD

#: Seconds for which a worker is listed as lost that neither reports nor has said that it stops.
LOST = 600.0
#: Minutes of history, the present one included.
MINUTES = 60
#: Seconds for which the latest outcomes are read once, for all who look.
_FRESH = 5.0
#: The worst first.
_BREAKERS = ("open", "half_open", "closed")


@dataclass(frozen=True, slots=True)
class FleetTrouble:
    """A merchant in trouble, as all workers see it that report it. Times are seconds until now."""

    merchant_id: str
    #: How many workers report it (0: only its outcomes do), and how many see which state of its breaker.
    workers: int
    breakers: Mapping[str, int]
    #: The worst of these.
    breaker: str
    breaker_for: float
    #: When the first worker calls it again.
    half_opens_in: float
    #: How many workers get no answer.
    silent: int
    since: float
    #: Sums over the workers.
    calls: int
    timed_out: int
    failed: int
    overloaded: int
    late: int
    in_flight: int
    limit: int
    waiting: int
    parked: int
    #: The longest last call, and the median of what workers take for usual.
    latest: float | None
    usual: float | None
    #: The last error code of any worker.
    error: str | None
    error_ago: float
    #: The merchant's own limit; 0: it is paused, or no worker has its record.
    agreed: int
    #: The quota that its orders wait for in a worker.
    quota: str | None = None
    #: Its latest outcomes, if most of its orders fail.
    failing: Failing | None = None


@dataclass(frozen=True, slots=True)
class LiveWorker:
    """A worker that reports."""

    worker: str
    #: Seconds since its report.
    age: float
    report: WorkerReport


@dataclass(frozen=True)
class Fleet:
    """The workers at one moment."""

    workers: Sequence[LiveWorker]
    #: Seconds since the last report of workers that did not say that they stop.
    lost: Mapping[str, float]
    #: Merchants most of whose orders fail.
    failing: Mapping[str, Failing] = field(default_factory=dict)

    @property
    def delivering(self) -> int:
        """Workers that deliver orders: a process that publishes events alone is none."""
        return sum(each.report.kind != EVENTS for each in self.workers)

    @property
    def watching(self) -> int:
        """Workers that see merchants' trouble and waiting orders: a synchronous one sees neither."""
        return sum(each.report.kind == GREEN for each in self.workers)

    @property
    def kinds(self) -> Counter[tuple[str, bool]]:
        """Workers by kind, and whether they are the canary's."""
        return Counter((each.report.kind, each.report.canary) for each in self.workers)

    @property
    def releases(self) -> Counter[str]:
        """Workers by release."""
        return Counter(each.report.release for each in self.workers)

    @property
    def slots(self) -> Counter[str]:
        """Slots by state."""
        return _sum(each.report.slots for each in self.workers)

    @property
    def waiting(self) -> Counter[str]:
        """Orders that wait in workers, by what they wait for."""
        return _sum(each.report.waiting for each in self.workers)

    @property
    def parked(self) -> int:
        """Parked orders of workers that live: those of others are in the broker all the same."""
        return sum(each.report.parked for each in self.workers)

    @property
    def uncommitted(self) -> int:
        """Orders whose slot is released and whose outcome is not durable yet."""
        return sum(each.report.uncommitted for each in self.workers)

    @property
    def events_age(self) -> float | None:
        """How old the oldest unpublished event is; None: no process says that it publishes."""
        ages = [each.report.events_age for each in self.workers]
        return max((age for age in ages if age is not None), default=None)

    @property
    def without_cpu(self) -> Sequence[WorkerReport]:
        """Reports of workers that have no CPU left."""
        return [each.report for each in self.workers if each.report.lacks_cpu]

    @property
    def queues(self) -> Mapping[str, int]:
        """Ready messages by queue, as the worker said that reported last."""
        asked = (each for each in self.workers if each.report.queues)
        last = min(asked, key=lambda each: each.age, default=None)
        return {} if last is None else last.report.queues

    @property
    def unknown_queues(self) -> Sequence[str]:
        """Of the queues of orders and of dead letters those about which no worker knows."""
        return [name for name in ("orders", "orders.dead") if name not in self.queues]

    @property
    def consumers(self) -> int | None:
        """Consumers of ``orders``, as the worker said that reported last; None: no worker knows."""
        asked = (each for each in self.workers if each.report.consumers is not None)
        last = min(asked, key=lambda each: each.age, default=None)
        return None if last is None else last.report.consumers

    @property
    def reported(self) -> int:
        """Merchants in trouble as workers see it, at least: a worker names its worst only."""
        most = max((each.report.in_trouble for each in self.workers), default=0)
        return max(most, len(self._seen))

    @property
    def in_trouble(self) -> int:
        """Merchants in trouble, at least, with those that only their outcomes show."""
        return self.reported + len(self.unreported)

    @property
    def unreported(self) -> Mapping[str, Failing]:
        """Merchants whose orders fail, and whose calls are well as workers see them."""
        return {name: each for name, each in self.failing.items() if name not in self._seen}

    def troubles(self, most: int = MAX_TROUBLES) -> list[FleetTrouble]:
        """The merchants in most trouble, all workers together, the worst first."""
        names = {**self._seen, **self.failing}
        return [
            self._trouble(name) for name in sorted(names, key=self._severity, reverse=True)[:most]
        ]

    def trouble(self, merchant_id: str) -> FleetTrouble | None:
        """One merchant; None: no worker reports it, and its orders do not fail."""
        is_known = merchant_id in self._seen or merchant_id in self.failing
        return self._trouble(merchant_id) if is_known else None

    def _trouble(self, merchant_id: str) -> FleetTrouble:
        seen = self._seen.get(merchant_id) or _MerchantReports([0.0], [Trouble(merchant_id)])
        merged = _merged(seen, self.failing.get(merchant_id))
        return merged if merchant_id in self._seen else replace(merged, workers=0, breakers={})

    def _severity(self, merchant_id: str) -> tuple[int, bool, bool, bool]:
        """As ``admission/trouble.py`` has it, over all workers; an order that failed counts as one held up."""
        seen, outcomes = self._seen.get(merchant_id), self.failing.get(merchant_id)
        held_up, states, silent = outcomes.bad if outcomes else 0, set(), False
        for each in seen.troubles if seen else ():
            held_up += each.waiting + each.parked
            states.add(each.breaker)
            silent = silent or each.silent
        return held_up, "open" in states, "half_open" in states, silent

    @cached_property
    def _seen(self) -> "dict[str, _MerchantReports]":
        seen: dict[str, _MerchantReports] = {}
        for live in self.workers:
            for trouble in live.report.troubles:
                of_it = seen.get(trouble.merchant_id)
                if of_it is None:
                    of_it = seen[trouble.merchant_id] = _MerchantReports([], [])
                of_it.ages.append(live.age)
                of_it.troubles.append(trouble)
        return seen


@dataclass(frozen=True, slots=True)
class Minute:
    """What all workers have counted in a minute."""

    #: Unix time of its beginning, by the database's clock, and how much of it is over: seconds.
    at: float
    seconds: float
    counts: Counters


class FleetView:
    """Reads the reports. Safe from threads. Every call raises SQLAlchemyError."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._failing: Mapping[str, Failing] = {}
        self._failing_until = float("-inf")

    def now(self) -> Fleet:
        """The workers that report, those that were lost of late, and merchants whose orders fail."""
        age = (Now() - worker_reports.c.at).label("age")
        counts = age < worker_reports.c.lasts
        report = case((counts, worker_reports.c.report))
        query = select(worker_reports.c.worker, age, report).where(
            age < worker_reports.c.lasts + LOST, age > -AHEAD
        )
        with self._engine.connect() as connection:
            rows = connection.execute(query).all()
            failing_now = self._latest(connection)
        live, lost = [], {}
        for worker, since, text in rows:
            if text is None:
                lost[worker] = since
            elif (said := decoded(text)) is not None:
                live.append(LiveWorker(worker, max(0.0, since), said))
        return Fleet(live, lost, failing_now)

    def _latest(self, connection: Connection) -> Mapping[str, Failing]:
        with self._lock:
            if time.monotonic() >= self._failing_until:
                self._failing = failing(connection)
                self._failing_until = time.monotonic() + _FRESH
            return self._failing

    def history(self, minutes: int = MINUTES) -> list[Minute]:
        """The last minutes, oldest first, the present one last; empty if none was counted in."""
        table = worker_minutes.c
        sums = (func.sum(table[name]).label(name) for name in COUNTED)
        query = (
            select(table.minute, Now().label("now"), *sums)
            .where(table.minute > ThisMinute() - minutes)
            .group_by(table.minute)
        )
        with self._engine.connect() as connection:
            rows = {row["minute"]: row for row in connection.execute(query).mappings()}
        if not rows:
            return []
        now = next(iter(rows.values()))["now"]
        last = int(now // 60)
        return [
            Minute(minute * 60.0, min(60.0, now - minute * 60), _counts(rows.get(minute)))
            for minute in range(last - minutes + 1, last + 1)
        ]


def a_minute(history: Sequence[Minute]) -> Counters:
    """What was counted in the last sixty seconds: the present minute, and its part of the one before."""
    if not history:
        return dict.fromkeys(COUNTED, 0)
    present = history[-1]
    before = history[-2].counts if len(history) > 1 else dict.fromkeys(COUNTED, 0)
    part = 1 - present.seconds / 60
    return {name: present.counts[name] + round(before[name] * part) for name in COUNTED}


class _MerchantReports(NamedTuple):
    """How old each report of a merchant is, and what it says."""

    ages: list[float]
    troubles: list[Trouble]


def _merged(seen: _MerchantReports, outcomes: Failing | None) -> FleetTrouble:
    # A field's values by its name: thousands of rows are summed a column at a time.
    of: Any = Trouble._make(zip(*seen.troubles, strict=True))
    aged = list(zip(seen.ages, seen.troubles, strict=True))
    breakers = Counter(of.breaker)
    breaker = next((state for state in _BREAKERS if breakers[state]), "closed")
    not_closed = [t.breaker_for + age for age, t in aged if t.breaker == breaker]
    opens = [t.half_opens_in - age for age, t in aged if t.breaker == "open"]
    errors = [(t.error_ago + age, t.error) for age, t in aged if t.error is not None]
    error_ago, error = min(errors, default=(0.0, None))
    usual = sorted(known for known in of.usual if known is not None)
    return FleetTrouble(
        of.merchant_id[0],
        workers=len(aged),
        breakers=breakers,
        breaker=breaker,
        breaker_for=0.0 if breaker == "closed" else max(not_closed),
        half_opens_in=max(0.0, min(opens, default=0.0)),
        silent=sum(of.silent),
        since=max(map(add, of.since, seen.ages)),
        calls=sum(of.calls),
        timed_out=sum(of.timed_out),
        failed=sum(of.failed),
        overloaded=sum(of.overloaded),
        late=sum(of.late),
        in_flight=sum(of.in_flight),
        limit=sum(of.limit),
        waiting=sum(of.waiting),
        parked=sum(of.parked),
        latest=max((known for known in of.latest if known is not None), default=None),
        usual=usual[len(usual) // 2] if usual else None,
        error=error,
        error_ago=error_ago,
        agreed=max(of.agreed),
        quota=next(filter(None, of.quota), None),
        failing=outcomes,
    )


def _sum(each: Any) -> Counter[str]:
    total: Counter[str] = Counter()
    for counts in each:
        total.update(counts)
    return total


def _counts(row: Any) -> Counters:
    return {name: 0 if row is None else int(row[name]) for name in COUNTED}
