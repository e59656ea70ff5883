"""A merchant that answers is kept busy while it has orders anywhere: in virtual time."""

from collections.abc import Callable

import pytest

from tests.admission.bursts import SIFT, STARTED, TIMEOUT, WINDOW, Bursts, Merchant

Reply = Callable[[int, float], float]


def steady(seconds: float) -> Reply:
    return lambda _number, _now: seconds


def cold(seconds: float, first: int) -> Reply:
    """The first replies take fifteen times as long, as those that open a connection."""
    return lambda number, _now: (15 if number <= first else 1) * seconds


def one_slow(seconds: float, which: int, slow: float) -> Reply:
    return lambda number, _now: slow if number % which == which // 2 else seconds


def hangs(_number: int, _now: float) -> float:
    return TIMEOUT


def bound(merchant: Merchant) -> float:
    """Seconds: 1.25 times those of the merchant, or of the worker's CPU, if that is slower, and one.

    A reply that is slower than the others may be the last.
    """
    replies = [merchant.reply(number, 0.0) for number in range(1, merchant.orders + 1)]
    work = sum(max(each, merchant.limit / STARTED) for each in replies) / merchant.limit
    return 1.25 * work + 1.0 + max(replies) - min(replies)


def drains(merchant: Merchant, *others: Merchant, workers: int = 1, sift: float = SIFT) -> Bursts:
    """The merchant's orders are completed within its bound."""
    scene, most = Bursts(merchant, *others, workers=workers, sift=sift), bound(merchant)
    seen = scene.run(merchant.name, merchant.at + 3 * most)
    assert seen.done == merchant.orders
    assert seen.last - merchant.at <= most
    return scene


SIZES = [
    (reply, limit, orders)
    for reply in (0.02, 0.2, 2.0)
    for limit in (1, 10, 50)
    for orders in (500, 2000)
    if orders * reply / limit <= 1000  # longer ones show nothing new
]


@pytest.mark.parametrize(("reply", "limit", "orders"), [*SIZES, (0.02, 50, 8000)])
def test_a_burst_takes_as_long_as_its_merchant(reply: float, limit: int, orders: int) -> None:
    drains(Merchant("m", steady(reply), limit, orders))


#: Merchants whose replies are not as estimated.
ODD = {
    "the first reply is cold": lambda reply, limit: cold(reply, 1),
    "the first replies are cold": cold,
    "one reply is slow": lambda reply, limit: one_slow(reply, 1000, 2.0),
    "one of fifty replies is slow": lambda reply, limit: one_slow(reply, 50, 1.0),
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize(("reply", "limit"), [(0.02, 1), (0.02, 10), (0.2, 10), (0.02, 50)])
def test_a_few_slow_replies_do_not_set_the_latency_estimate(
    reply: float, limit: int, odd: str
) -> None:
    drains(Merchant("m", ODD[odd](reply, limit), limit, orders=2000))


@pytest.mark.parametrize(("reply", "limit"), [(0.02, 1), (0.02, 10), (0.2, 10), (0.02, 50)])
def test_a_burst_is_not_parked_because_its_merchants_record_is_late(
    reply: float, limit: int
) -> None:
    scene = drains(Merchant("m", steady(reply), limit, orders=500, record=0.2))
    assert scene.seen["m"].parked == 0


@pytest.mark.parametrize(("reply", "limit"), [(0.02, 10), (0.2, 10), (2.0, 2), (0.02, 50)])
def test_two_workers_share_a_burst(reply: float, limit: int) -> None:
    drains(Merchant("m", steady(reply), limit, orders=min(3000, int(500 / reply))), workers=2)


@pytest.mark.parametrize(("reply", "limit"), [(0.02, 10), (0.2, 10), (0.02, 50)])
def test_a_worker_that_reads_faster_parks_more_and_idles_no_merchant(
    reply: float, limit: int
) -> None:
    drains(Merchant("m", steady(reply), limit, orders=3000), sift=4 * SIFT)


def backlogs(number: int, limit: int, orders: int) -> list[Merchant]:
    """Merchants at 1 s whose backlogs never end; all together leave slots free."""
    return [
        Merchant(f"other-{each}", steady(1.0), limit, orders, endless=True)
        for each in range(number)
    ]


@pytest.mark.parametrize(("number", "limit", "each"), [(20, 9, 1000), (150, 1, 100)])
@pytest.mark.parametrize(("reply", "limit_of_it", "orders"), [(0.02, 10, 2000), (0.2, 1, 50)])
def test_a_burst_beside_the_backlogs_of_others(
    number: int, limit: int, each: int, reply: float, limit_of_it: int, orders: int
) -> None:
    burst = Merchant("m", steady(reply), limit_of_it, orders, at=8.0)
    scene = drains(burst, *backlogs(number, limit, each))
    assert scene.seen["m"].idle <= 1.0  # once may be until the first bundle is back


def test_the_bound_on_waiting_orders_is_shared_by_seconds_of_work() -> None:
    quick = [Merchant(f"quick-{n}", steady(0.1), 1, 60, endless=True) for n in range(100)]
    burst = Merchant("m", steady(0.2), 50, orders=1000, at=5.0)
    # With this many others a bundle is split now and then, and its rest is away for a second.
    assert Bursts(burst, *quick).run("m", burst.at + 2 * bound(burst)).done == burst.orders


def test_dead_merchants_leave_the_window_to_those_that_answer() -> None:
    dead = [Merchant(f"dead-{n}", hangs, 10, orders=20) for n in range(500)]
    drains(Merchant("m", steady(0.1), 10, orders=600, at=25.0), *dead)


def test_merchants_without_a_record_leave_the_window_to_those_that_answer() -> None:
    unknown = [Merchant(f"unknown-{n}", steady(0.1), 10, 500, record=1e9) for n in range(20)]
    drains(Merchant("m", steady(0.1), 10, orders=1000, at=5.0), *unknown)


@pytest.mark.parametrize("odd", ODD)
def test_slow_replies_beside_the_backlogs_of_others(odd: str) -> None:
    drains(Merchant("m", ODD[odd](0.02, 10), 10, orders=1000, at=8.0), *backlogs(150, 1, 100))


def test_merchants_that_never_answered_do_not_fill_the_window() -> None:
    dead = [Merchant(f"dead-{each}", hangs, 10, orders=3000) for each in range(4)]
    scene = Bursts(*dead)
    for tenths in range(1, 100):
        scene.run("dead-0", tenths / 10)
        assert scene.unacknowledged < 0.75 * WINDOW


def test_a_dead_merchants_backlog_is_parked_and_drains_when_it_is_back() -> None:
    back_at = 60.0
    dead = Merchant("dead", lambda _, now: 0.05 if now > back_at else TIMEOUT, 10, orders=20_000)
    behind = Merchant("behind", steady(0.02), 10, orders=200, at=0.001)
    scene = Bursts(dead, behind)
    seen = scene.run("behind")
    assert seen.last < 1.25 * dead.orders / SIFT  # the time to read its backlog, and no more
    rests = scene.run("dead", 40.0).looks
    looks = scene.run("dead", back_at).looks - rests
    assert looks / (back_at - 40.0) < 25  # every half a minute at most
    began = scene.run("dead", back_at + 40.0).done
    done = scene.run("dead", back_at + 60.0).done - began
    assert done / 20 > 0.95 * dead.limit / 0.05


def test_checking_parked_bundles_costs_little_however_slow_their_merchants_are() -> None:
    scene = Bursts(*backlogs(150, 1, 100))
    scene.run("other-0", 40.0)
    looks = sum(seen.looks for seen in scene.seen.values())
    scene.run("other-0", 52.0)
    assert (sum(seen.looks for seen in scene.seen.values()) - looks) / 12 < 75
