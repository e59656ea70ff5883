"""The simulated merchants' own records: complete after hours, and no larger in memory."""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
import requests

from pos_gateway.simulated_merchants.client import SimulatedMerchants
from pos_gateway.simulated_merchants.feed import Feed, FeedEntry
from pos_gateway.simulated_merchants.lateness import Lateness
from pos_gateway.simulated_merchants.levels import BUCKETS, Timeline
from pos_gateway.simulated_merchants.measure import Load
from pos_gateway.simulated_merchants.orders import ReceivedOrder, ReceivedOrders
from testkit.patience import PATIENCE


def an_order() -> ReceivedOrder:
    return ReceivedOrder(first_at=1.0, first_monotonic=1.0)


def orders_with(number: int, *, near: int) -> ReceivedOrders:
    orders = ReceivedOrders(near)
    for each in range(number):
        orders.add("m", str(each), an_order())
    return orders


def send_order(merchants: SimulatedMerchants, merchant: str, order: str) -> requests.Response:
    url, headers = f"{merchants.base_url(merchant)}/orders", {"Idempotency-Key": order}
    return requests.post(url, json={}, headers=headers, timeout=PATIENCE)


class TestOrders:
    def test_the_oldest_are_put_away_and_all_of_them_are_still_there(self) -> None:
        orders = orders_with(5000, near=1000)

        assert len(orders._near) < 1500
        assert len(orders) == 5000
        assert sorted(int(order_id) for _, order_id, _ in orders) == list(range(5000))

    def test_one_that_is_sent_again_after_hours_is_known_and_remembers_what_it_was_told(
        self,
    ) -> None:
        orders = orders_with(5000, near=1000)
        old = orders.find("m", "7")
        assert old is not None
        old.statuses.append("201")
        old.creates = 1

        for number in range(5000, 10_000):
            orders.add("m", str(number), an_order())

        again = orders.find("m", "7")
        assert again is not None
        assert again is not old
        assert (again.creates, again.statuses) == (1, ["201"])
        assert orders.find("m", "10000") is None
        assert orders.find("other", "7") is None
        assert len(orders) == 10_000

    def test_one_that_a_call_holds_stays_in_memory(self) -> None:
        orders = ReceivedOrders(1000)
        held = an_order()
        held.open = 1
        orders.add("m", "held", held)
        for number in range(5000):
            orders.add("m", str(number), an_order())

        assert orders.find("m", "held") is held


class TestFeed:
    @pytest.fixture
    def feed(self) -> Iterator[Feed]:
        feed = Feed()
        for number in range(12_000):
            feed.tell(FeedEntry("m", str(number), 0, 1.0))
        yield feed

    def test_it_goes_on_where_one_stopped_page_by_page(self, feed: Feed) -> None:
        read, number = [], 8_500
        while entries := feed.since(number)["entries"]:
            read += [int(entry.order_id) for entry in entries]
            number = feed.since(number)["next"]

        assert read == list(range(8_500, 12_000))
        assert number == 12_000

    def test_it_keeps_the_newest_and_says_how_many_were_missed(self, feed: Feed) -> None:
        page = feed.since(0)

        assert page["missed"] == 2000
        assert page["entries"][0].order_id == "2000"
        assert len(feed._entries) == 10_000


class TestPast:
    def test_an_hour_is_kept_and_what_is_older_is_not(self) -> None:
        timeline = Timeline()
        for second in range(2 * 3600):
            for tenth in range(BUCKETS):
                timeline.change(second + tenth / BUCKETS, 1)
                timeline.change(second + tenth / BUCKETS, 2)

        kept = timeline.since(0.0)
        assert len(kept) == 3600 * BUCKETS
        assert kept[-1] == (2 * 3600 - 1 / BUCKETS, 3)
        assert kept[0][0] == 3600.0


class TestLateness:
    def test_the_latest_hundredth_is_told_to_the_next_bound(self) -> None:
        lateness = Lateness()
        for _ in range(990):
            lateness.note(0.0005)
        for _ in range(9):
            lateness.note(0.07)
        assert lateness.as_json() == {"replies": 999, "p99": 0.001, "worst": 0.07}

        for _ in range(9):
            lateness.note(0.03)
        assert lateness.as_json()["p99"] == 0.05
        for _ in range(100):
            lateness.note(7.0)
        assert lateness.as_json()["p99"] == 7.0

    def test_nothing_is_late_before_the_first_reply(self) -> None:
        assert Lateness().as_json() == {"replies": 0, "p99": 0.0, "worst": 0.0}


class TestTheProcess:
    def test_its_memory_does_not_grow_with_the_orders(self) -> None:
        with SimulatedMerchants(near=500) as merchants:
            load = Load(merchants.port, "instant", 20)
            load.send(6000)
            before = psutil.Process(merchants.pid).memory_info().rss
            load.send(9_000)
            grown = psutil.Process(merchants.pid).memory_info().rss - before
            load.close()

            assert merchants.summary()["orders"] == 15_000
        assert grown < 9_000 * 100  # in memory an order takes 500 bytes and more

    def test_orders_that_were_put_away_are_told_of_and_doubling_one_is_noticed(self) -> None:
        with SimulatedMerchants(near=10) as merchants:
            merchants.profile("*", {"create": {"kind": "accept"}, "keyed": False})
            load = Load(merchants.port, "m", 20)
            load.send(1200)
            load.close()
            old = merchants.orders()[0]
            send_order(merchants, old["merchant"], old["order_id"])

            assert len(merchants.arrivals()) == 1200
            [doubled] = merchants.doubled()
            assert doubled["order_id"] == old["order_id"]
            feed = merchants.feed(2400)
            assert feed["entries"] == [[old["merchant"], old["order_id"], 2, feed["entries"][0][3]]]

    def test_the_feed_tells_of_arrivals_and_of_orders_made(self) -> None:
        with SimulatedMerchants() as merchants:
            merchants.profile("no-*", "reject")
            for merchant in ("no-1", "instant-1", "instant-1"):
                send_order(merchants, merchant, "o-1")

            entries = [entry[:3] for entry in merchants.feed()["entries"]]
        assert entries == [["no-1", "o-1", 0], ["instant-1", "o-1", 0], ["instant-1", "o-1", 1]]

    def test_a_simulation_that_is_held_up_says_that_it_replied_late(self) -> None:
        with SimulatedMerchants() as merchants:
            merchants.profile("m", {"latency": 1.0})
            with ThreadPoolExecutor() as threads:
                reply = threads.submit(send_order, merchants, "m", "o-1")
                merchants.wait_until(requests=1)
                os.kill(merchants.pid, signal.SIGSTOP)
                time.sleep(1.5)  # the fault itself: as long as this no request is served
                os.kill(merchants.pid, signal.SIGCONT)
                assert reply.result().status_code == 201

            late = merchants.summary()["late"]
        assert late["replies"] == 1
        assert late["p99"] == late["worst"] > 0.25
