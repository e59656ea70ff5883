"""All workers together: see the table of adversaries in ``test_store.py``."""

import random
import threading
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import event

from pos_gateway.reports.fleet_view import Minute, a_minute
from pos_gateway.reports.report import Trouble
from tests.reports.lab import LASTS, Reports

M = Trouble("m", in_flight=1, limit=2, agreed=10)


def test_what_workers_have_is_summed(reports: Reports) -> None:
    one, two, three = (reports.worker(name) for name in "abc")
    one.report(
        slots={"free": 100, "light": 60},
        waiting={"slot": 2},
        parked=5,
        events_age=0.25,
        release="1.0",
    )
    two.report(slots={"free": 50}, waiting={"slot": 1, "merchant": 7}, uncommitted=3, release="1.1")
    three.report(kind="synchronous", canary=True, release="1.1", queues={"orders": 9})
    fleet = reports.view.now()
    assert fleet.slots == {"free": 150, "light": 60}
    assert fleet.waiting == {"slot": 3, "merchant": 7}
    assert (fleet.parked, fleet.uncommitted, fleet.events_age) == (5, 3, 0.25)
    assert fleet.kinds == {("green", False): 2, ("synchronous", True): 1}
    assert fleet.releases == {"1.0": 1, "1.1": 2}
    assert fleet.queues == {"orders": 9}


def test_no_worker_is_an_empty_fleet(reports: Reports) -> None:
    fleet = reports.view.now()
    assert (fleet.slots, fleet.events_age, fleet.queues, fleet.in_trouble) == ({}, None, {}, 0)
    assert fleet.troubles() == []
    assert set(a_minute(reports.view.history()).values()) == {0}


def test_a_merchant_that_forty_workers_report_is_one(reports: Reports) -> None:
    for number in range(40):
        trouble = M._replace(
            waiting=2,
            parked=3,
            calls=5,
            timed_out=4,
            silent=number % 2 == 0,
            latest=10.0 + number / 100,
            usual=0.2 + number / 1000,
            since=100.0 + number,
            error="timeout" if number else "http_503",
            error_ago=50.0 - number,
        )
        if number < 10:
            trouble = trouble._replace(breaker="half_open", breaker_for=500.0)
        if 10 <= number < 30:
            trouble = trouble._replace(
                breaker="open", breaker_for=float(number), half_opens_in=30.0 + number
            )
        reports.worker(f"w{number}").report(trouble, in_trouble=1)
    fleet = reports.view.now()
    [found] = fleet.troubles()
    assert fleet.in_trouble == 1
    assert found.workers == 40
    assert found.breakers == {"half_open": 10, "open": 20, "closed": 10}
    assert (found.breaker, found.silent) == ("open", 20)
    assert (found.in_flight, found.limit, found.agreed) == (40, 80, 10)
    assert (found.waiting, found.parked, found.calls, found.timed_out) == (80, 120, 200, 160)
    assert found.latest == pytest.approx(10.39)
    assert found.usual == pytest.approx(0.22)
    assert found.error == "timeout"
    age = {int(each.worker[1:]): each.age for each in fleet.workers}
    assert found.breaker_for == max(n + age[n] for n in range(10, 30))
    assert found.half_opens_in == max(0.0, min(30 + n - age[n] for n in range(10, 30)))
    assert found.since == max(100 + n + age[n] for n in range(40))
    assert found.error_ago == min(50 - n + age[n] for n in range(40))
    assert fleet.trouble("m") == found
    assert fleet.trouble("other") is None


def test_times_are_counted_from_the_report(reports: Reports) -> None:
    worker = reports.worker("w")
    worker.report(
        M._replace(since=5.0, breaker="open", breaker_for=5.0, half_opens_in=4.0, error="x"),
        M._replace(merchant_id="closed"),
    )
    reports.pass_time(4)
    fleet = reports.view.now()
    found, closed = fleet.trouble("m"), fleet.trouble("closed")
    assert found is not None
    assert closed is not None
    [passed] = [each.age for each in fleet.workers]  # with the time that this test takes
    assert found.error_ago == passed >= 4
    assert found.since == found.breaker_for == 5 + passed
    assert found.half_opens_in == 0.0
    assert (closed.breaker_for, closed.error) == (0.0, None)


def test_the_worst_merchants_come_first(reports: Reports) -> None:
    one, two = reports.worker("a"), reports.worker("b")
    one.report(
        M._replace(merchant_id="many here", waiting=6),
        M._replace(merchant_id="everywhere", waiting=4),
        M._replace(merchant_id="silent", silent=True),
        M._replace(merchant_id="open", breaker="open"),
    )
    two.report(
        M._replace(merchant_id="everywhere", parked=3),
        M._replace(merchant_id="half open", breaker="half_open"),
    )
    names = [each.merchant_id for each in reports.view.now().troubles()]
    assert names == ["everywhere", "many here", "open", "half open", "silent"]
    assert [each.merchant_id for each in reports.view.now().troubles(2)] == names[:2]


def test_a_report_that_cannot_be_read_hides_no_other(reports: Reports) -> None:
    for name in "abc":
        reports.worker(name).report(M._replace(merchant_id=name, waiting=1))
    reports.store("b", "no report")
    reports.store("c", '{"version": 99, "kind": 7, "troubles": [["c", "long"], 5, []]}')
    fleet = reports.view.now()
    assert sorted(each.worker for each in fleet.workers) == ["a", "c"]
    assert {each.merchant_id for each in fleet.troubles()} == {"a", "c"}


def test_the_last_minute_slides() -> None:
    def minute(seconds: float, taken: int) -> Minute:
        return Minute(0.0, seconds, {**a_minute([]), "taken": taken})

    assert a_minute([minute(60, 600), minute(15, 150)])["taken"] == 600
    assert a_minute([minute(60, 600), minute(0, 0)])["taken"] == 600
    assert a_minute([minute(60, 600), minute(60, 30)])["taken"] == 30
    assert a_minute([minute(30, 30)])["taken"] == 30


def test_history_has_sixty_minutes_and_this_one_is_the_last(reports: Reports) -> None:
    worker = reports.worker("w")
    worker.ends(7)
    worker.report()
    reports.pass_time(90 * 60)
    worker.ends(2, "rejected")
    worker.report()
    reports.pass_time(30 * 60)
    worker.ends(1)
    worker.report()
    history = reports.view.history()
    assert len(history) == 60
    assert {later.at - earlier.at for earlier, later in pairwise(history)} == {60.0}
    assert {minute.seconds for minute in history[:-1]} == {60.0}
    assert 0 <= history[-1].seconds <= 60
    assert (reports.total("accepted"), reports.total("rejected")) == (1, 2)
    assert sum(minute.counts["rejected"] for minute in history[28:31]) == 2


def test_two_hundred_workers(reports: Reports) -> None:
    """They report at once, some die, some restart: one query each says what is true."""
    rng = random.Random(7)
    workers = [reports.worker(f"pod-{number}-1-{number:012}") for number in range(200)]

    def report(some: list[Any]) -> None:
        for worker in some:
            worker.report(
                M._replace(merchant_id="everywhere", waiting=3),
                *(M._replace(merchant_id=f"m{n}", waiting=1) for n in rng.sample(range(60), 49)),
                slots={"free": 150, "light": 50},
                in_trouble=70,
            )

    for _ in range(2):
        for worker in workers:
            worker.ends(5)
        parts = [workers[start::4] for start in range(4)]
        threads = [threading.Thread(target=report, args=(part,)) for part in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert reports.total() == 2 * 200 * 5
    reports.pass_time(60 + LASTS)
    after = [reports.worker(f"pod-{number}-1-{number + 1000:012}") for number in range(20)]
    for worker in [*workers[100:], *after]:
        worker.ends(1)
    report([*workers[100:], *after])

    statements = []
    event.listen(reports.engine, "before_cursor_execute", lambda *a: statements.append(a[2]))
    fleet, history = reports.view.now(), reports.view.history()
    assert len(statements) == 3  # now has two
    assert len(fleet.workers) == 120
    assert len(fleet.lost) == 100
    assert fleet.in_trouble == 70
    assert fleet.slots == {"free": 120 * 150, "light": 120 * 50}
    assert sum(minute.counts["taken"] for minute in history) == 2 * 200 * 5 + 120
    worst = fleet.troubles()[0]
    assert len(fleet.troubles()) == 50
    assert worst.merchant_id == "everywhere"
    assert (worst.workers, worst.waiting, worst.limit) == (120, 360, 240)
