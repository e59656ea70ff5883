"""One report: its JSON, its limits, and reports of other releases."""

import json
from typing import Any

import pytest

from pos_gateway.broker.topology import QUEUES
from pos_gateway.reports.counters import WAITS, counters, wait_within
from pos_gateway.reports.report import (
    LARGEST,
    MAX_TROUBLES,
    VERSION,
    Trouble,
    WorkerReport,
    decoded,
    encoded,
)

TROUBLE = Trouble(
    "m",
    12.5,
    "open",
    3.0,
    1.0,
    True,
    10,
    9,
    1,
    0,
    2,
    10.0,
    0.25,
    2,
    4,
    17,
    300,
    "timeout",
    0.5,
    8,
    "app pos 1",
)
REPORT = WorkerReport(
    kind="green",
    canary=True,
    release="1.2",
    uptime=12.5,
    slots={"free": 3},
    waiting={"slot": 2},
    parked=1,
    uncommitted=4,
    events_age=0.5,
    queues={"orders": 7},
    consumers=2,
    in_trouble=2,
    troubles=[TROUBLE],
)


def said(report: WorkerReport = REPORT) -> Any:
    return json.loads(encoded(report))


def test_a_report_is_read_as_it_was_written() -> None:
    assert decoded(encoded(REPORT)) == REPORT
    assert decoded(encoded(WorkerReport(troubles=[]))) == WorkerReport(troubles=[])


@pytest.mark.parametrize(
    "merchant_id",
    [
        '"' * 128,
        "\\" * 128,
        "</script><script>alert(1)</script>",
        "'; drop table orders --",
        "~" * 128,
    ],
)
def test_odd_ids_and_the_limit(merchant_id: str) -> None:
    troubles = [TROUBLE._replace(merchant_id=merchant_id, parked=n) for n in range(400, 0, -1)]
    text = encoded(
        WorkerReport(
            troubles=troubles,
            queues={queue.name: 2**31 for queue in QUEUES},
            in_trouble=10_000,
        )
    )
    assert len(text.encode()) <= LARGEST
    read = decoded(text)
    assert read is not None
    assert 30 <= len(read.troubles) <= MAX_TROUBLES
    assert read.troubles == troubles[: len(read.troubles)]  # the worst are kept
    assert read.in_trouble == 10_000


def test_a_later_releases_report() -> None:
    """What it has added is ignored, and what it has changed is left out, field by field."""
    later = said()
    later["version"] = VERSION + 1
    later["troubles"][0] += ["a new field", {"and": "another"}]
    later["weather"] = {"sun": True}
    assert decoded(json.dumps(later)) == REPORT
    later["slots"] = {"free": 3, "reserved": "some"}
    later["events_age"], later["parked"] = "late", None
    later["troubles"][0][2:4] = [["open"], "long"]
    read = decoded(json.dumps(later))
    assert read is not None
    assert (read.slots, read.events_age, read.parked) == ({"free": 3}, None, 0)
    assert read.troubles == [TROUBLE._replace(breaker="closed", breaker_for=0.0)]


def test_an_earlier_releases_report() -> None:
    """It lacks what was added since."""
    earlier = said()
    earlier["version"] = VERSION - 1
    del earlier["queues"], earlier["consumers"]
    del earlier["troubles"][0][-4:]
    read = decoded(json.dumps(earlier))
    assert read is not None
    assert (read.queues, read.consumers, read.uncommitted) == ({}, None, 4)
    assert read.troubles == [TROUBLE._replace(error=None, error_ago=0.0, agreed=0, quota=None)]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"x"', '{"uptime": NaN}', "\x00"])
def test_what_is_no_report_is_none(text: str) -> None:
    assert decoded(text) is None


def test_counters_have_what_is_counted_and_no_more() -> None:
    counted = counters(7, {"accepted": 5, "preparing": 3}, [1, 2])
    assert counted["taken"] == 7
    assert counted["accepted"] == 5
    assert "preparing" not in counted
    assert (counted["waited_0"], counted["waited_1"], counted["waited_10"]) == (1, 2, 0)
    assert len([name for name in counted if name.startswith("waited")]) == len(WAITS) + 1


def test_waits_are_interpolated() -> None:
    assert wait_within(counters(0, {}, ()), 0.5) is None
    waits = [0] * (len(WAITS) + 1)
    waits[2], waits[3] = 50, 50  # up to 0.05 s, up to 0.1 s
    counted = counters(0, {}, waits)
    assert wait_within(counted, 0.25) == pytest.approx(0.0375)
    assert wait_within(counted, 0.5) == pytest.approx(0.05)
    assert wait_within(counted, 0.99) == pytest.approx(0.099)
    waits[-1] = 900
    assert wait_within(counters(0, {}, waits), 0.99) == WAITS[-1]
