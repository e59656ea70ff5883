"""Writes what the story's workers report now, and what they have counted in each minute."""

from bisect import bisect_left
from collections import Counter, defaultdict
from typing import Any

from pydantic_core import to_json
from sqlalchemy import Engine, insert

from pos_gateway.database.schema import COUNTED, worker_minutes
from pos_gateway.reports.counters import WAITS, counters
from pos_gateway.reports.report import EVENTS, GREEN, Trouble, WorkerReport, encoded
from pos_gateway.reports.store import ReportStore
from testkit.story.plot import SINCE, Part, Plot, Told

#: Seconds for which the reports count: longer than any test looks at them.
LASTS = 7200.0
_SLOTS = 200
_RELEASE = "0.1.0"


def write_fleet(engine: Engine, plot: Plot, workers: int, dead_letters: int) -> list[str]:
    """Write the workers' reports and minutes; returns the workers' ids, the canary's last.

    Args:
        engine: the database.
        plot: the story.
        workers: green workers, beside which a canary and a process for events report.
        dead_letters: in the broker.
    """
    names = [f"worker-{number}-1-{number:012x}" for number in range(1, workers + 1)]
    canary, publisher = "worker-canary-1-000000000000", "events-1-000000000000"
    minutes = _minutes(plot, names)
    seen = _trouble_minutes(plot)
    rows = [
        {"minute": minute, "worker": worker, "troubles": seen.get(minute), **counted}
        for (minute, worker), counted in sorted(minutes.items())
    ]
    # The store counts into the present minute alone: the earlier ones are written beside it.
    with engine.begin() as connection:
        connection.execute(insert(worker_minutes), rows)
    store = ReportStore(engine)
    troubles = _troubles(plot, workers)
    for place, name in enumerate(names):
        total = dict.fromkeys(COUNTED, 0)
        for (_, worker), counted in minutes.items():
            if worker == name:
                total = {each: total[each] + counted[each] for each in COUNTED}
        report = _green(troubles, place, dead_letters)
        # Not its first one: what it has counted is in the minutes already.
        store.write(name, encoded(report), total, lasts=LASTS, is_first=False)
    nothing = counters(0, {}, ())
    for name, report in (
        (canary, _green([], workers, dead_letters, canary=True)),
        (publisher, WorkerReport(EVENTS, release=_RELEASE, uptime=5400.0, events_age=0.04)),
    ):
        store.write(name, encoded(report), nothing, lasts=LASTS, is_first=False)
    return [*names, publisher, canary]


def _green(
    troubles: list[Trouble], place: int, dead_letters: int, *, canary: bool = False
) -> WorkerReport:
    silent = sum(each.in_flight for each in troubles if each.silent)
    heavy = sum(each.in_flight for each in troubles) - silent
    light = 9 + place
    return WorkerReport(
        kind=GREEN,
        canary=canary,
        release=_RELEASE,
        uptime=5400.0 - 60 * place,
        slots={
            "free": _SLOTS - light - heavy - silent,
            "light": light,
            "heavy": heavy,
            "silent": silent,
        },
        waiting={
            "merchant": sum(each.waiting for each in troubles),
            "slot": 0,
            "retry": 2 * len(troubles),
            "bundle": 0,
        },
        parked=sum(each.parked for each in troubles),
        uncommitted=place % 3,
        events_age=None if canary else 0.03 + place / 100,
        queues={"orders": 37, "orders.canary": 2, "orders.dead": dead_letters, "order-events": 5},
        in_trouble=len(troubles),
        troubles=troubles,
    )


def _troubles(plot: Plot, workers: int) -> list[Trouble]:
    """The merchants in trouble as each worker sees them."""
    held_up = Counter(each.part for each in plot.orders if not each.calls and not each.in_flight)
    of = {part: merchant.id for part, merchant in plot.cast.items()}
    since = {part: minutes * 60.0 for part, minutes in SINCE.items()}
    waiting = -(-held_up[Part.SLOW] // workers)
    parked = -(-held_up[Part.PAUSED] // workers)
    return [
        Trouble(
            of[Part.SLOW],
            since[Part.SLOW],
            calls=20,
            timed_out=3,
            late=16,
            latest=9.4,
            usual=0.31,
            in_flight=3,
            limit=3,
            waiting=waiting,
            parked=4 * waiting,
            error="timeout",
            error_ago=21.0,
            agreed=plot.cast[Part.SLOW].max_concurrency or 10,
        ),
        Trouble(
            of[Part.DEAD],
            since[Part.DEAD],
            breaker="open",
            breaker_for=12.0,
            half_opens_in=14.0,
            silent=True,
            calls=10,
            timed_out=9,
            latest=5.0,
            usual=0.22,
            in_flight=1,
            limit=3,
            waiting=2,
            parked=11,
            error="connect",
            error_ago=12.0,
            agreed=plot.cast[Part.DEAD].max_concurrency or 10,
        ),
        Trouble(
            of[Part.DOUBTFUL],
            since[Part.DOUBTFUL],
            breaker="half_open",
            breaker_for=70.0,
            calls=12,
            failed=8,
            latest=0.9,
            usual=0.4,
            in_flight=1,
            limit=1,
            waiting=1,
            error="broken_off",
            error_ago=8.0,
            agreed=plot.cast[Part.DOUBTFUL].max_concurrency or 10,
        ),
        Trouble(of[Part.PAUSED], since[Part.PAUSED], parked=parked, usual=0.25),
    ]


def _minutes(plot: Plot, workers: list[str]) -> dict[tuple[int, str], dict[str, int]]:
    """What each worker has counted in each minute."""
    minutes: dict[tuple[int, str], dict[str, int]] = defaultdict(lambda: dict.fromkeys(COUNTED, 0))
    for number, told in enumerate(plot.orders):
        worker = workers[number % len(workers)]
        for at, name in _counted(told, plot.now):
            minutes[int(at // 60), worker][name] += 1
    return minutes


def _trouble_minutes(plot: Plot) -> dict[int, str]:
    """What each worker has seen of breakers and limits, by minute, as JSON."""
    of = {part: plot.cast[part] for part in (Part.SLOW, Part.DEAD, Part.DOUBTFUL)}
    found: dict[int, str] = {}
    now = int(plot.now // 60)
    for ago in range(max(SINCE[part] for part in of) + 1):
        minute = {}
        for part, merchant in of.items():
            agreed, lasted = merchant.max_concurrency or 10, SINCE[part] - ago
            if lasted >= 0:
                limit = max(1 if part is Part.DOUBTFUL else 3, agreed - lasted)
                minute[merchant.id] = (*_breaker(part, lasted), limit, agreed)
        found[now - ago] = to_json(minute).decode()
    return found


def _breaker(part: Part, lasted: int) -> tuple[float, float]:
    """Seconds of a minute in which it was open, and half-open."""
    if part is Part.DEAD:
        return (57.0, 3.0) if lasted else (21.0, 0.0)
    return (18.0, 9.0) if part is Part.DOUBTFUL and lasted % 4 else (0.0, 0.0)


def _counted(told: Told, now: float) -> Any:
    """What was counted of one order, and when."""
    if told.calls or told.in_flight:
        first = told.calls[0].at - told.calls[0].seconds if told.calls else now - 2.0
        yield first, "taken"
        if told.part is Part.HEALTHY:
            yield first, f"waited_{bisect_left(WAITS, first - told.placed_at)}"
    for call in told.calls:
        if call.outcome.kind.value in COUNTED and (
            call is told.calls[-1] or call.outcome.kind.value == "pending"
        ):
            yield call.at, call.outcome.kind.value
