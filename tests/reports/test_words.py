"""A merchant's trouble in words: every state, and its grammar.

The table of states; ``-`` is any. The first line that fits says what is shown.

========  =========  ======  ======  =====  =====  ========  =========================================
record    breaker    silent  calls   slow   limit  held up   says
========  =========  ======  ======  =====  =====  ========  =========================================
none      -          -       -       -      -      -         no merchant has this id
paused    -          -       -       -      -      -         paused …
unloaded  -          -       -       -      -      -         no worker has loaded its record
there     -          -       -       -      -      -         not sent … (for want of a key, or of files)
there     open       -       -       -      -      -         breaker open …
there     half-open  -       -       -      -      -         breaker half-open …
there     closed     yes     -       -      -      -         silent …
there     closed     no      -       yes    -      -         slow …
there     closed     no      4xx     no     -      -         overloaded …
there     closed     no      -       no     yes    waiting   at its limit …
there     closed     no      failed  no     no     -         … calls failed
there     closed     no      fine    no     no     yes       … orders wait
there     closed     no      fine    no     no     no        no trouble that a worker sees
========  =========  ======  ======  =====  =====  ========  =========================================
"""

import itertools
import re
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest

from pos_gateway.domain.outcome import MENDED_HERE
from pos_gateway.reports import words as subject
from pos_gateway.reports.fleet_view import Fleet, FleetTrouble, LiveWorker
from pos_gateway.reports.report import WorkerReport
from pos_gateway.reports.words import (
    RecordStatus,
    calls,
    duration,
    in_words,
    orders,
    seconds,
    without_cpu,
)

NOW = datetime(2026, 1, 31, 15, 30, tzinfo=UTC)
#: When it was paused: 14:02.
AT = datetime(2026, 1, 31, 14, 2, 59, tzinfo=UTC).timestamp()
THERE, GONE, PAUSED = RecordStatus(), RecordStatus(exists=False), RecordStatus(paused=True)


def trouble(**fields: Any) -> FleetTrouble:
    """A merchant without trouble but for these fields."""
    given: dict[str, Any] = {
        "merchant_id": "m",
        "workers": 1,
        "breaker": "closed",
        "breaker_for": 0.0,
        "half_opens_in": 0.0,
        "silent": 0,
        "since": 60.0,
        **dict.fromkeys(("calls", "timed_out", "failed", "overloaded", "late"), 0),
        "in_flight": 1,
        "limit": 4,
        "waiting": 0,
        "parked": 0,
        "latest": 0.2,
        "usual": 0.3,
        "error": None,
        "error_ago": 0.0,
        "agreed": 4,
        **fields,
    }
    given.setdefault("breakers", Counter({given["breaker"]: given["workers"]}))
    return FleetTrouble(**given)


OPEN = {"breaker": "open", "breaker_for": 12.0, "half_opens_in": 18.0}
HALF_OPEN = {"breaker": "half_open", "breaker_for": 40.0}
ON_3_OF_4 = {"workers": 4, "breakers": Counter(open=3, closed=1)}
TIMED_OUT = {"calls": 10, "timed_out": 9}
SLOW = {"latest": 4.1, "usual": 0.3}
AT_LIMIT = {"in_flight": 4, "waiting": 212}

SAID: list[tuple[dict[str, Any], RecordStatus | None, str]] = [
    # No record.
    ({}, GONE, "no merchant has this id"),
    ({"waiting": 1, "agreed": 0}, GONE, "no merchant has this id: 1 order waits"),
    ({"parked": 2, **OPEN}, GONE, "no merchant has this id: 2 orders are parked"),
    # Paused.
    ({}, PAUSED, "paused"),
    ({}, RecordStatus(paused=True, since=AT, by="kim"), "paused by kim since 14:02 UTC"),
    ({}, RecordStatus(paused=True, since=AT, by="kim", reason="outage"), "paused by kim since 14:02 UTC (outage)"),
    (
        {"waiting": 212, "parked": 1, "agreed": 0},
        RecordStatus(paused=True, since=AT - 86_400, by="kim"),
        "paused by kim since 2026-01-30 14:02 UTC: 212 orders wait, 1 order is parked",
    ),
    (
        {**OPEN, **TIMED_OUT},
        RecordStatus(paused=True, since=AT, by="pos-gateway", reason="its POS says that it is gone"),
        "paused by the gateway since 14:02 UTC (its POS says that it is gone)",
    ),
    ({}, RecordStatus(paused=True, since=AT, by="kim", reason="x" * 300), f"paused by kim since 14:02 UTC ({'x' * 199}…)"),
    # The record is not loaded.
    ({"agreed": 0, "waiting": 3}, THERE, "no worker has loaded its record: 3 orders wait"),
    ({"agreed": 0}, None, "paused, or its record is not loaded"),
    # Not sent, for want of something here.
    ({"error": "secret_key", "error_ago": 9.0, "parked": 2}, THERE, "not sent: a worker has no key for its secrets (POS_GATEWAY_SECRET_KEY): 2 orders are parked"),
    ({"error": "look_ups"}, THERE, "not sent: a worker waits for too many look-ups of host names: its name servers do not answer"),
    ({"error": "local"}, THERE, "not sent: a worker lacks open files or memory (pos-gateway doctor)"),
    ({**OPEN, "error": "credential_refused"}, THERE, "not sent: the POS, or its token endpoint, refuses its credentials (pos-gateway merchants check)"),
    ({"error": "secret_key", "error_ago": 600.0, "parked": 2}, THERE, "2 orders are parked"),
    # Open.
    ({**OPEN, **ON_3_OF_4, **TIMED_OUT}, THERE, "breaker open for 12 s on 3 of 4 workers: 9 of the last 10 calls timed out; tried again in 18 s"),
    ({**OPEN, "calls": 10, "failed": 10}, THERE, "breaker open for 12 s: all of the last 10 calls failed; tried again in 18 s"),
    ({**OPEN, "workers": 4}, THERE, "breaker open for 12 s on all 4 workers; tried again in 18 s"),
    ({**OPEN, "half_opens_in": 0.0}, THERE, "breaker open for 12 s; tried again now"),
    ({**OPEN, "silent": 1, **SLOW, **AT_LIMIT}, THERE, "breaker open for 12 s; tried again in 18 s"),
    ({**OPEN, "calls": 10, "late": 1, "overloaded": 2}, THERE, "breaker open for 12 s: of the last 10 calls 2 were refused as too many and 1 was late; tried again in 18 s"),
    # Half-open.
    ({**HALF_OPEN, "calls": 1, "timed_out": 1}, THERE, "breaker half-open after 40 s: one call tries it; the last call timed out"),
    ({**HALF_OPEN, "workers": 4, "breakers": Counter(half_open=1, closed=3), "silent": 1}, THERE, "breaker half-open after 40 s on 1 of 4 workers: one call tries it"),
    # Silent.
    ({"silent": 2, "workers": 4}, THERE, "silent on 2 of 4 workers: a call hangs or timed out"),
    ({"silent": 1, "calls": 8, "timed_out": 3, **SLOW}, THERE, "silent: a call hangs or timed out; 3 of the last 8 calls timed out"),
    # Slow.
    (SLOW, THERE, "slow: replies take 4.1 s, usually 0.3 s"),
    # A quota has nothing left.
    ({"quota": "app clover 1234", "waiting": 212}, THERE, "the quota of the app clover 1234 has nothing left: 212 orders wait"),
    ({"quota": "credential 0f3c", "parked": 1}, THERE, "the quota of its credential has nothing left: 1 order is parked"),
    ({"quota": "app", "waiting": 2}, THERE, "the quota of its location has nothing left: 2 orders wait"),
    ({"quota": "m"}, THERE, "no trouble that a worker sees"),
    ({**SLOW, "quota": "m", "waiting": 2}, THERE, "slow: replies take 4.1 s, usually 0.3 s; the quota of its location has nothing left: 2 orders wait"),
    ({"quota": "m", "waiting": 2}, PAUSED, "paused: 2 orders wait"),
    ({**SLOW, **AT_LIMIT}, THERE, "slow: replies take 4.1 s, usually 0.3 s; at its limit of 4: 212 orders wait"),
    ({**SLOW, "overloaded": 1, "calls": 4}, THERE, "slow: replies take 4.1 s, usually 0.3 s"),
    # Overloaded.
    ({"overloaded": 4, "calls": 10}, THERE, "overloaded: 4 of the last 10 calls were refused as too many"),
    ({"overloaded": 1, "calls": 10, **AT_LIMIT, "limit": 1}, THERE, "overloaded: 1 of the last 10 calls was refused as too many; at its limit of 1, lowered from 4 because it refuses calls as too many: 212 orders wait"),
    # At its limit.
    (AT_LIMIT, THERE, "at its limit of 4: 212 orders wait"),
    ({**AT_LIMIT, "waiting": 1, "parked": 9, "calls": 9, "failed": 1}, THERE, "at its limit of 4: 1 order waits"),
    ({**AT_LIMIT, "calls": 20, "timed_out": 5}, THERE, "at its limit of 4: 212 orders wait; 5 of the last 20 calls timed out"),
    ({**AT_LIMIT, "limit": 1, "calls": 20, "timed_out": 5}, THERE, "at its limit of 1, lowered from 4 because calls time out: 212 orders wait; 5 of the last 20 calls timed out"),
    # Its calls fail.
    ({"calls": 10, "failed": 3, "waiting": 5}, THERE, "3 of the last 10 calls failed"),
    ({"calls": 10, "failed": 1, "timed_out": 2, "late": 3}, THERE, "of the last 10 calls 2 timed out, 1 failed and 3 were late"),
    # Held up.
    ({"waiting": 5}, THERE, "5 orders wait"),
    ({"waiting": 1, "parked": 1}, THERE, "1 order waits, 1 order is parked"),
    ({"parked": 30}, THERE, "30 orders are parked"),
    ({"waiting": 3, "in_flight": 4, "limit": 0}, THERE, "3 orders wait"),
    ({}, THERE, "no trouble that a worker sees"),
    ({}, None, "no trouble that a worker sees"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "record", "said"), SAID, ids=[said[:50] for _, _, said in SAID])
def test_every_state_has_its_words(
    fields: dict[str, Any], record: RecordStatus | None, said: str
) -> None:
    assert in_words(trouble(**fields), record, now=NOW) == said


def test_each_reason_that_is_mended_at_the_gateway_has_its_words() -> None:
    assert subject._LACKED.keys() == MENDED_HERE


def test_how_many_workers_there_are_is_said_where_not_all_report_the_merchant() -> None:
    two = trouble(**OPEN, workers=2)
    assert "on all 2 workers" in in_words(two, THERE)
    assert "on 2 of 40 workers" in in_words(two, THERE, workers=40)


@pytest.mark.parametrize(
    ("latest", "usual", "is_slow"),
    [
        (0.9, 0.3, True),  # three times
        (0.89, 0.3, False),
        (0.49, 0.02, False),  # half a second at least
        (0.5, 0.02, True),
        (None, 0.3, False),
        (9.0, None, False),
    ],
)
def test_slow_is_three_times_the_usual(
    latest: float | None, usual: float | None, is_slow: bool
) -> None:
    said = in_words(trouble(latest=latest, usual=usual, parked=1), THERE)
    assert said.startswith("slow: ") == is_slow


def test_any_combination_is_a_phrase_with_its_grammar() -> None:
    """All states together: closed, open and half-open, with each of the others or without."""
    breakers = ({}, OPEN, HALF_OPEN)
    parts: list[tuple[dict[str, Any], ...]] = [
        breakers,
        ({}, {"silent": 1}),
        ({}, {"timed_out": 1}, {"failed": 2}, {"overloaded": 1}, {"late": 2}, {"timed_out": 3, "late": 1}),
        ({"calls": 10}, {"calls": 1}, {}),
        ({}, SLOW, {"latest": None, "usual": None}),
        ({"in_flight": 4}, {"limit": 0}),
        ({}, {"waiting": 1}, {"waiting": 2, "parked": 1}, {"parked": 2}),
        ({}, {"agreed": 0}),
        ({}, {"workers": 3}),
    ]  # fmt: skip
    records = (None, THERE, GONE, PAUSED)
    for each in itertools.product(*parts):
        fields = {name: value for part in each for name, value in part.items()}
        for record in records:
            said = in_words(trouble(**fields), record, now=NOW)
            assert said
            assert not re.search(
                r"\b1 orders|\b1 were|  |: ?:|; ?;|: *$|; *$|None|\bnan\b", said
            ), said
            assert not re.search(r"\b([02-9]|1\d) (order |was )", said), said
            assert said[0].islower() or said[0].isdigit()


@pytest.mark.parametrize(
    ("length", "said"),
    [(-1, "0 s"), (0.4, "0 s"), (12, "12 s"), (119.4, "119 s"), (120, "2 min"), (7199, "119 min"), (7200, "2 h"), (172_800, "2 days")],
)  # fmt: skip
def test_a_duration_has_one_unit(length: float, said: str) -> None:
    assert duration(length) == said


@pytest.mark.parametrize(
    ("length", "said"),
    [(None, ""), (0.0, "0 ms"), (0.0204, "20 ms"), (0.0996, "0.1 s"), (0.3, "0.3 s"), (4.14, "4.1 s"), (9.96, "10 s"), (61.2, "61 s")],
)  # fmt: skip
def test_a_reply_time_has_two_digits(length: float | None, said: str) -> None:
    assert seconds(length) == said


def test_one_order_waits_and_two_orders_wait() -> None:
    assert [orders(n, "waits", "wait") for n in (0, 1, 2)] == ["0 orders wait", "1 order waits", "2 orders wait"]  # fmt: skip


def test_no_calls_is_nothing_said() -> None:
    assert calls(trouble()) == calls(trouble(calls=10)) == calls(trouble(failed=1)) == ""


@pytest.mark.parametrize(
    ("short", "others", "said"),
    [
        ([0.5], 0, "1 of 1 worker has no CPU left (of 0.5 cores)"),
        ([1.0], 2, "1 of 3 workers has no CPU left (of 1 core)"),
        ([1.0, 0.25], 1, "2 of 3 workers have no CPU left (of 0.25 cores)"),
    ],
)
def test_workers_without_cpu_are_counted_with_the_least_cores(
    short: list[float], others: int, said: str
) -> None:
    reports = [WorkerReport(lacks_cpu=True, cores=cores) for cores in short]
    reports += [WorkerReport()] * others
    fleet = Fleet([LiveWorker(f"w{n}", 0.0, each) for n, each in enumerate(reports)], {})
    words = without_cpu(fleet, {"taken": 7800})
    assert words.startswith(f"{said}, with 130 orders a second in all: ")
    assert without_cpu(Fleet([], {}), {"taken": 7800}) == ""
