"""A merchant's breaker and limit over time: what each adversary must not be able to do.

| adversary | must not | test |
|---|---|---|
| a worker is suspended with a breaker open | make a minute of hours | `a_silence_is_not_counted` |
| a minute ends between two reports | take the last one's seconds with it | `a_minute_has_its_own` |
| a commit whose answer is lost | count seconds twice | `a_report_that_is_stored_twice` |
| a worker that does not see the merchant | hide what another sees | `the_worst_that_a_worker_saw` |
| ids with quotation marks, per cent signs, or another's end | read another's minute | `odd_ids` |
| ten thousand merchants in trouble | make a row large | `ten_thousand_merchants` |
| a later release's row with more fields | be an error | `a_later_releases_row` |
"""

from sqlalchemy import Engine, update

from pos_gateway.database.schema import worker_minutes
from pos_gateway.reports.merchant_hour import MINUTES, merchant_hour
from pos_gateway.reports.report import LARGEST, MAX_TROUBLES, Trouble
from pos_gateway.reports.trouble_minutes import LONGEST, Minutes, TroubleMinute
from tests.reports.lab import Reports, Worker

OPEN = Trouble("m", breaker="open", limit=2, agreed=10)


def saw(engine: Engine, merchant_id: str = "m") -> TroubleMinute:
    """What the last two minutes have of a merchant: a test may begin in the one before."""
    hour = merchant_hour(engine, merchant_id).minutes
    found = [each.trouble for each in hour[-2:] if each.trouble is not None]
    assert all(each.trouble is None for each in hour[:-2])
    return TroubleMinute(
        sum(each.open for each in found),
        sum(each.half_open for each in found),
        min((each.limit for each in found), default=0),
        max((each.agreed for each in found), default=0),
    )


def every_two_seconds(worker: Worker, *troubles: Trouble) -> None:
    for each in troubles:
        worker.clock.seconds += 2.0
        worker.report(each)


def test_seconds_and_the_lowest_limit_are_added_up(reports: Reports) -> None:
    worker = reports.worker("w")
    worker.report()
    half_open = OPEN._replace(breaker="half_open", limit=1)
    every_two_seconds(worker, OPEN, OPEN, half_open, OPEN._replace(breaker="closed", limit=5))
    assert saw(reports.engine) == TroubleMinute(4.0, 2.0, 1, 10)


def test_a_minute_is_shown_where_it_was(reports: Reports) -> None:
    """Without an attempt in the hour, too: all of its orders are parked."""
    worker = reports.worker("w")
    worker.report()
    every_two_seconds(worker, OPEN)
    reports.pass_time(30 * 60)
    hour = merchant_hour(reports.engine, "m").minutes
    assert len(hour) == MINUTES
    [ago] = [n for n, each in enumerate(reversed(hour)) if each.trouble is not None]
    assert 30 <= ago <= 31
    for gone in (
        31,
        -95,
    ):  # too old by now; and ahead of time, after the database's clock was set back
        reports.pass_time(gone * 60)
        assert merchant_hour(reports.engine, "m").minutes == []


def test_a_silence_is_not_counted(reports: Reports) -> None:
    worker = reports.worker("w")
    worker.report()
    worker.clock.seconds += 3600.0
    worker.report(OPEN)
    assert saw(reports.engine).open == LONGEST


def test_a_minute_has_its_own() -> None:
    minutes = Minutes()
    minutes.see([OPEN], 2.0)
    assert minutes.of(1) == '{"m":[2.0,0.0,2,10]}'
    minutes.see([OPEN], 2.0)
    assert minutes.of(1) == '{"m":[4.0,0.0,2,10]}'
    minutes.see([OPEN._replace(breaker="closed")], 2.0)
    assert minutes.of(2) == '{"m":[0.0,0.0,2,10]}'
    minutes.see([], 2.0)
    assert minutes.of(2) == '{"m":[0.0,0.0,2,10]}'
    assert minutes.of(3) is None


def test_a_report_that_is_stored_twice_counts_once() -> None:
    """Its commit's answer was lost; and while the database is away each report adds to one minute."""
    minutes = Minutes()
    minutes.see([OPEN], 2.0)
    assert minutes.of(1) == minutes.of(1)
    for _ in range(100):
        minutes.see([OPEN], 2.0)
    assert minutes.of(9) == '{"m":[2.0,0.0,2,10]}'


def test_the_worst_that_a_worker_saw_is_shown(reports: Reports) -> None:
    one, other, third = (reports.worker(name) for name in "abc")
    for worker in (one, other, third):
        worker.report()
    every_two_seconds(one, OPEN, OPEN)
    every_two_seconds(other, OPEN._replace(breaker="half_open", limit=1))
    every_two_seconds(third, Trouble("another", breaker="open"))
    assert saw(reports.engine) == TroubleMinute(4.0, 2.0, 1, 10)


def test_odd_ids_have_their_own_minutes(reports: Reports) -> None:
    odd = ['quoted"', "100%", "a_b", "tail\\", "ß", 'x":[1],"m', "100%2"]
    worker = reports.worker("w")
    worker.report()
    worker.clock.seconds += 2.0
    worker.report(*(OPEN._replace(merchant_id=each, limit=n) for n, each in enumerate(odd, 1)))
    assert [saw(reports.engine, each).limit for each in odd] == [*range(1, len(odd) + 1)]
    for other in ("m", "axb", "100", "uoted", "%", "", "tail", '"'):
        assert merchant_hour(reports.engine, other).minutes == []


def test_ten_thousand_merchants_are_a_small_row() -> None:
    minutes = Minutes()
    minutes.of(1)
    for number in range(0, 10_000, MAX_TROUBLES):
        named = [OPEN._replace(merchant_id=f"{n:0>128}") for n in range(number, number + 50)]
        minutes.see(named, 2.0)
    text = minutes.of(1)
    assert text is not None and len(text) < LARGEST and text.count("[") == MAX_TROUBLES


def test_a_later_releases_row_is_read_as_far_as_it_is_known(reports: Reports) -> None:
    worker = reports.worker("w")
    worker.report()
    every_two_seconds(worker, OPEN)
    with reports.engine.begin() as connection:
        text = '{"m":[3.0,1.0,4,9,"new"]}'
        connection.execute(update(worker_minutes).values(troubles=text))
    assert saw(reports.engine) == TroubleMinute(3.0, 1.0, 4, 9)


def test_a_worker_without_trouble_writes_none(reports: Reports) -> None:
    worker = reports.worker("w")
    for _ in range(3):
        worker.clock.seconds += 2.0
        worker.report()
    assert reports.rows(worker_minutes) == 0
    assert merchant_hour(reports.engine, "m").minutes == []
