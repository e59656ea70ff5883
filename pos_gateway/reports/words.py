"""A merchant's trouble in words, for an operator: the first rule that applies says what is wrong.

====  ==========================  =======================================================================
rule  applies where               it says
====  ==========================  =======================================================================
1     the merchant has no record  no merchant has this id
2     it is paused                paused by kim since 14:02 UTC (reason)
3     its record is not loaded    no worker has loaded its record
4     its orders are not sent     not sent: a worker has no key for its secrets
5     a breaker is open           breaker open for 12 s on 3 of 4 workers: calls; tried again in 18 s
6     a breaker is half-open      breaker half-open after 40 s on 1 of 4 workers: one call tries it; calls
7     a worker gets no answer     silent on 2 of 4 workers: a call hangs or timed out; calls
8     replies take far longer     slow: replies take 4.1 s, usually 0.3 s; limit
9     it refuses calls            overloaded: calls; limit
10    it has as many as it may    at its limit of 1, lowered from 4 because calls time out: 212 orders wait
      or its quota is used up     the quota of the app clover 1234 has nothing left: 212 orders wait
11    its calls fail              calls
12    orders are held up          212 orders wait, 30 orders are parked
13    most of its orders fail     of 56 orders in 10 min 40 failed (http_404) and 16 were rejected (other)
====  ==========================  =======================================================================

``calls`` is the outcome of the last ones, ``limit`` rule 10, each where there is something to say. Rules 1
to 4 also say how many orders are held up. Rule 13 is said beside each of the others, too.
"""

from datetime import UTC, datetime
from typing import NamedTuple

from pos_gateway.domain.outcome import CREDENTIAL_REFUSED
from pos_gateway.reports.counters import Counters
from pos_gateway.reports.fleet_view import Fleet, FleetTrouble
from pos_gateway.reports.recent_outcomes import WINDOW, Failing
from pos_gateway.runtime.clock import from_unix

#: A reply is slow that takes this many times the usual, and at least these seconds.
SLOW, SLOW_AT_LEAST = 3.0, 0.5
#: What the gateway lacks, by the reason for which it has not sent an order; seconds that it is shown.
_LACKED = {
    "secret_key": "not sent: a worker has no key for its secrets (POS_GATEWAY_SECRET_KEY)",
    CREDENTIAL_REFUSED: "not sent: the POS, or its token endpoint, refuses its credentials (pos-gateway merchants check)",
    "look_ups": "not sent: a worker waits for too many look-ups of host names: its name servers do not answer",
    "local": "not sent: a worker lacks open files or memory (pos-gateway doctor)",
}
_LATELY = 180.0
#: Characters shown of an operator's reason.
_REASON = 200
#: Seconds within which the time of day says when.
_TODAY = 20 * 3600.0


class RecordStatus(NamedTuple):
    """What the database has of the merchant itself. Times are Unix time."""

    exists: bool = True
    paused: bool = False
    #: Since when, by whom, and why, if the audit has it.
    since: float | None = None
    by: str | None = None
    reason: str | None = None


def in_words(
    trouble: FleetTrouble,
    record: RecordStatus | None = None,
    *,
    workers: int | None = None,
    now: datetime | None = None,
) -> str:
    """What is wrong with a merchant, in a phrase.

    Args:
        record: its record; None: it is not known, and what workers report decides.
        workers: how many report at all; None: those that report this merchant.
        now: the time of day.
    """
    known = outcomes(trouble.failing) if trouble.failing else ""
    if not trouble.workers and known and (record is None or (record.exists and not record.paused)):
        return known
    return _joined(_by_workers(trouble, record, workers or trouble.workers, now), known)


def _by_workers(
    trouble: FleetTrouble, record: RecordStatus | None, total: int, now: datetime | None
) -> str:
    """What the rules say of what workers see."""
    without_calls = _without_calls(trouble, record, now)
    if without_calls:
        return _joined(without_calls, _held_up(trouble), between=": ")
    if unsent := _unsent(trouble):
        return _joined(unsent, _held_up(trouble), between=": ")
    if trouble.breaker != "closed":
        return _of_breaker(trouble, total)
    if trouble.silent:
        return _joined(
            f"silent{_on(trouble.silent, total)}: a call hangs or timed out", calls(trouble)
        )
    ended = calls(trouble)
    is_overloaded = trouble.overloaded and ended
    if slow := _slow(trouble) or (f"overloaded: {ended}" if is_overloaded else ""):
        return _joined(slow, _at_limit(trouble))
    at_limit = _joined(_at_limit(trouble), ended) if trouble.timed_out else _at_limit(trouble)
    return at_limit or ended or _held_up(trouble) or "no trouble that a worker sees"


def calls(trouble: FleetTrouble) -> str:
    """The outcome of the last calls: ``9 of the last 10 calls timed out``; empty if all were fine."""
    bad = [
        (trouble.timed_out, "timed out", "timed out"),
        (trouble.failed, "failed", "failed"),
        (trouble.overloaded, "was refused as too many", "were refused as too many"),
        (trouble.late, "was late", "were late"),
    ]
    parts = [(number, one if number == 1 else many) for number, one, many in bad if number]
    if not parts or not trouble.calls:
        return ""
    if len(parts) == 1:
        [(number, verb)] = parts
        if trouble.calls == 1:
            return f"the last call {verb}"
        whole = "all" if number >= trouble.calls else str(number)
        return f"{whole} of the last {trouble.calls} calls {verb}"
    *most, last = (f"{number} {verb}" for number, verb in parts)
    return f"of the last {trouble.calls} calls {', '.join(most)} and {last}"


def outcomes(seen: Failing) -> str:
    """How a merchant's orders ended: ``56 of 56 orders in 10 min failed (http_404)``."""
    parts = [
        (seen.failed, "failed", seen.failed_for),
        (
            seen.rejected,
            "was rejected" if seen.rejected == 1 else "were rejected",
            seen.rejected_for,
        ),
        (seen.expired, "expired", seen.expired_for),
        (seen.in_doubt, "came to be in doubt", seen.in_doubt_for),
    ]
    said = [(number, f"{verb} ({why})" if why else verb) for number, verb, why in parts if number]
    window = duration(WINDOW)
    if len(said) == 1:
        return f"{seen.bad} of {seen.total} orders in {window} {said[0][1]}"
    *most, last = (f"{number} {verb}" for number, verb in said)
    return f"of {seen.total} orders in {window} {', '.join(most)} and {last}"


def not_delivered(fleet: Fleet) -> str:
    """Why no order is delivered at all, in a sentence; empty: workers take orders, as far as known."""
    if not fleet.delivering:
        return "No worker reports: no order is delivered"
    if fleet.consumers == 0:
        return (
            "No worker takes orders, though workers report: their login may not read the queue orders, or the "
            "queue has no quorum"
        )
    return ""


#: What helps where no order is delivered.
START_READING = (
    "Start a worker: celery -A pos_gateway.gcelery worker. If one runs, compare its POS_GATEWAY_DATABASE_URL with "
    "this server's; its log says whether the broker refuses it: let its login read orders, start the queue's nodes."
)
#: What helps workers that have no CPU left.
MORE_CPU = (
    "Add workers; raise their CPU limit if that is below a core; look what else takes the nodes' CPU. "
    "How much a load takes: pos-gateway plan."
)


def without_cpu(fleet: Fleet, minute: Counters) -> str:
    """``1 of 3 workers has no CPU left (of 0.5 cores)``, and its meaning; empty: all have some.

    ``minute``: the sums of all workers in the last minute.
    """
    if not (short := fleet.without_cpu):
        return ""
    workers = "worker" if fleet.watching == 1 else "workers"
    have = "has" if len(short) == 1 else "have"
    least = min(each.cores for each in short)
    cores = "1 core" if least == 1 else f"{least:g} cores"
    return (
        f"{len(short)} of {fleet.watching} {workers} {have} no CPU left (of {cores}), with {minute['taken'] / 60:.0f} "
        "orders a second in all: orders of merchants known to keep up go first, and the others' wait"
    )


def duration(length: float) -> str:
    """``12 s``, ``5 min``, ``3 h``, ``4 days``."""
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if length >= 2 * size:
            return f"{int(length // size)} {unit}"
    return f"{max(0, round(length))} s"


def seconds(length: float | None) -> str:
    """A reply time: ``40 ms``, ``4.1 s``, ``12 s``; empty if it is not known."""
    if length is None:
        return ""
    if length < 0.0995:
        return f"{length * 1000:.0f} ms"
    return f"{length:.1f} s" if length < 9.95 else f"{length:.0f} s"


def orders(number: int, one: str, many: str) -> str:
    """``1 order waits``, ``2 orders wait``."""
    return f"1 order {one}" if number == 1 else f"{number} orders {many}"


def paused(record: RecordStatus, now: datetime) -> str:
    """``paused by kim since 14:02 UTC (reason)``."""
    by = {None: "", "pos-gateway": " by the gateway"}.get(record.by, f" by {record.by}")
    since = f" since {_moment(record.since, now)}" if record.since is not None else ""
    reason = record.reason or ""
    shown = reason if len(reason) <= _REASON else f"{reason[: _REASON - 1]}…"
    return f"paused{by}{since}" + (f" ({shown})" if shown else "")


def _without_calls(trouble: FleetTrouble, record: RecordStatus | None, now: datetime | None) -> str:
    """Why the merchant is not called at all; empty: it is."""
    if record is not None and not record.exists:
        return "no merchant has this id"
    if record is not None and record.paused:
        return paused(record, now or datetime.now(UTC))
    if trouble.agreed:
        return ""
    return "no worker has loaded its record" if record else "paused, or its record is not loaded"


def _unsent(trouble: FleetTrouble) -> str:
    """What the gateway lacks; empty: nothing, or it was long ago."""
    return _LACKED.get(trouble.error or "", "") if trouble.error_ago < _LATELY else ""


def _of_breaker(trouble: FleetTrouble, total: int) -> str:
    length, on = duration(trouble.breaker_for), _on(trouble.breakers[trouble.breaker], total)
    if trouble.breaker == "half_open":
        return _joined(f"breaker half-open after {length}{on}: one call tries it", calls(trouble))
    is_soon = trouble.half_opens_in < 0.5
    when = "tried again now" if is_soon else f"tried again in {duration(trouble.half_opens_in)}"
    return _joined(_joined(f"breaker open for {length}{on}", calls(trouble), between=": "), when)


def _held_up(trouble: FleetTrouble) -> str:
    waiting = orders(trouble.waiting, "waits", "wait") if trouble.waiting else ""
    parked = orders(trouble.parked, "is parked", "are parked") if trouble.parked else ""
    return _joined(waiting, parked, between=", ")


def _at_limit(trouble: FleetTrouble) -> str:
    held_up = _held_up(trouble)
    if trouble.quota and held_up:
        kind, blank, name = trouble.quota.partition(" ")  # a merchant's id has no blank
        kinds = {"app ": f"the app {name}", "credential ": "its credential"}
        of = kinds.get(kind + blank, "its location")
        return f"the quota of {of} has nothing left: {held_up}"
    if not trouble.waiting or not 0 < trouble.limit <= trouble.in_flight:
        return ""
    why = "calls time out" if trouble.timed_out else "it refuses calls as too many"
    is_lowered = trouble.limit < trouble.agreed and (trouble.timed_out or trouble.overloaded)
    lowered = f", lowered from {trouble.agreed} because {why}" if is_lowered else ""
    return f"at its limit of {trouble.limit}{lowered}: {orders(trouble.waiting, 'waits', 'wait')}"


def _slow(trouble: FleetTrouble) -> str:
    latest, usual = trouble.latest, trouble.usual
    if latest is None or usual is None or latest < max(SLOW_AT_LEAST, SLOW * usual):
        return ""
    return f"slow: replies take {seconds(latest)}, usually {seconds(usual)}"


def _moment(at: float, now: datetime) -> str:
    is_today = abs(now.timestamp() - at) < _TODAY
    return from_unix(at).strftime("%H:%M UTC" if is_today else "%Y-%m-%d %H:%M UTC")


def _on(number: int, total: int) -> str:
    if total <= 1:
        return ""
    return f" on all {total} workers" if number >= total else f" on {number} of {total} workers"


def _joined(first: str, second: str, *, between: str = "; ") -> str:
    return between.join(filter(None, (first, second)))
