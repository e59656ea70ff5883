"""The simulated merchants, in their own process and over real sockets: they must not lie."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import requests
import trustme

from pos_gateway.simulated_merchants.behaviour import Behaviour, Treatment
from pos_gateway.simulated_merchants.client import SimulatedMerchants
from pos_gateway.simulated_merchants.measure import Load, measure
from pos_gateway.simulated_merchants.mix import Alternation, Mix, Outage
from testkit.patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
ORDER = {"order_id": "o-1", "items": []}
WELL = {"kind": "accept"}
MOSTLY_WELL = [{"weight": 3, "kind": "accept"}, {"weight": 1, "kind": "fail"}]


@pytest.fixture(scope="module")
def server() -> Iterator[SimulatedMerchants]:
    with SimulatedMerchants(seed=7, keep_bodies=True) as running:
        yield running


@pytest.fixture
def merchants(server: SimulatedMerchants) -> SimulatedMerchants:
    server.reset()
    return server


def send(
    merchants: SimulatedMerchants,
    merchant: str,
    order: str = "o-1",
    timeout: float | tuple[float, float] = 10.0,
) -> requests.Response:
    url = f"{merchants.base_url(merchant)}/orders"
    headers = {"Idempotency-Key": order}
    return requests.post(url, json=ORDER, headers=headers, timeout=timeout)


def look_up(merchants: SimulatedMerchants, merchant: str, order: str = "o-1") -> requests.Response:
    return requests.get(f"{merchants.base_url(merchant)}/orders/{order}", timeout=PATIENCE)


def cancel(merchants: SimulatedMerchants, merchant: str, order: str = "o-1") -> requests.Response:
    return requests.post(f"{merchants.base_url(merchant)}/orders/{order}/cancel", timeout=PATIENCE)


def send_raw(merchants: SimulatedMerchants, merchant: str, *orders: str) -> socket.socket:
    """Send orders down one connection without waiting for the replies between them."""
    connection = socket.create_connection((merchants.host, merchants.port), timeout=PATIENCE)
    for order in orders:
        connection.sendall(
            f"POST /m/{merchant}/orders HTTP/1.1\r\nHost: x\r\nIdempotency-Key: {order}\r\n"
            "Content-Length: 2\r\n\r\n{}".encode()
        )
    return connection


def read_replies(connection: socket.socket, number: int) -> list[bytes]:
    """The status lines of some replies, in the order in which they came."""
    data = b""
    while data.count(b"HTTP/1.1") < number or not data.endswith(b"}"):
        received = connection.recv(65536)
        assert received, f"closed after {data!r}"
        data += received
    return [
        line for line in data.replace(b"HTTP/1.1", b"\nHTTP/1.1").split(b"\n") if b"HTTP" in line
    ]


class TestTheReferenceApi:
    def test_a_new_order_is_accepted_and_a_repetition_gets_the_same_id(
        self, merchants: SimulatedMerchants
    ) -> None:
        first, second = (send(merchants, "instant-1") for _ in range(2))

        assert (first.status_code, first.json()["status"]) == (201, "accepted")
        assert (second.status_code, second.json()) == (200, first.json())
        order = merchants.order("instant-1", "o-1")
        assert order is not None
        assert (order["requests"], order["creates"]) == (2, 1)
        assert order["statuses"] == ["201", "200"]
        assert json.loads(order["body"]) == ORDER
        assert merchants.doubled() == []

    def test_an_order_can_be_looked_up_and_cancelled_and_an_unknown_one_cannot(
        self, merchants: SimulatedMerchants
    ) -> None:
        order_id = send(merchants, "instant-1").json()["id"]

        assert look_up(merchants, "instant-1").json() == {"id": order_id, "status": "accepted"}
        assert cancel(merchants, "instant-1").json() == {"id": order_id, "status": "cancelled"}
        assert look_up(merchants, "instant-1").json()["status"] == "cancelled"
        assert look_up(merchants, "instant-1", "o-2").status_code == 404
        assert cancel(merchants, "instant-1", "o-2").status_code == 404
        assert look_up(merchants, "instant-2").status_code == 404

    def test_the_same_order_id_at_two_merchants_is_two_orders(
        self, merchants: SimulatedMerchants
    ) -> None:
        assert send(merchants, "instant-1").status_code == 201
        assert send(merchants, "instant-2").status_code == 201
        assert {each["merchant"] for each in merchants.orders()} == {"instant-1", "instant-2"}

    def test_without_a_key_the_order_id_in_the_body_counts_and_without_either_it_is_an_error(
        self, merchants: SimulatedMerchants
    ) -> None:
        url = f"{merchants.base_url('instant-1')}/orders"

        assert requests.post(url, json=ORDER, timeout=PATIENCE).status_code == 201
        assert requests.post(url, data="not json", timeout=PATIENCE).status_code == 400
        assert merchants.summary()["malformed"] == 1
        assert [each["order_id"] for each in merchants.orders("instant-1")] == ["o-1"]

    def test_paths_that_no_merchant_has_are_not_found(self, merchants: SimulatedMerchants) -> None:
        base = f"http://{merchants.host}:{merchants.port}"

        assert requests.get(f"{base}/", timeout=PATIENCE).status_code == 404
        assert requests.get(f"{base}/m/fast-1", timeout=PATIENCE).status_code == 404
        assert requests.get(f"{base}/m/fast-1/orders", timeout=PATIENCE).status_code == 405

    def test_pipelined_requests_are_answered_in_their_order(
        self, merchants: SimulatedMerchants
    ) -> None:
        merchants.profile("m", {"kind": "accept", "latency": 0.02})
        with send_raw(merchants, "m", "a", "b", "a", "c") as connection:
            replies = read_replies(connection, 4)

        assert [reply.split()[1] for reply in replies] == [b"201", b"201", b"200", b"201"]

    def test_what_is_not_http_is_refused_and_the_next_client_is_served(
        self, merchants: SimulatedMerchants
    ) -> None:
        with socket.create_connection(
            (merchants.host, merchants.port), timeout=PATIENCE
        ) as connection:
            connection.sendall(b"\x16\x03\x01 nonsense\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 400")

        assert send(merchants, "instant-1").status_code == 201


class TestBehaviours:
    @pytest.mark.parametrize(
        ("kind", "status", "body"),
        [
            ("fail", 503, {"error": {"code": "failed", "message": "the POS is in trouble"}}),
            (
                "reject",
                422,
                {"error": {"code": "out_of_stock", "message": "an item is out of stock"}},
            ),
            ("limit", 429, {"error": {"code": "rate_limited", "message": "too many requests"}}),
        ],
    )
    def test_a_refusal_has_its_status_and_makes_no_order(
        self, merchants: SimulatedMerchants, kind: str, status: int, body: dict[str, Any]
    ) -> None:
        merchants.profile("m", {"kind": kind})

        reply = send(merchants, "m")

        assert (reply.status_code, reply.json()) == (status, body)
        assert reply.headers.get("Retry-After") == ("1" if kind == "limit" else None)
        order = merchants.order("m", "o-1")
        assert order is not None
        assert (order["requests"], order["creates"], order["state"]) == (1, 0, None)

    def test_a_conflict_has_the_order_and_says_409_each_time(
        self, merchants: SimulatedMerchants
    ) -> None:
        assert [send(merchants, "conflict-1").status_code for _ in range(2)] == [409, 409]
        assert look_up(merchants, "conflict-1").json()["status"] == "accepted"
        assert merchants.summary()["creates"] == 1

    def test_a_pending_order_is_accepted_once_its_time_has_come(
        self, merchants: SimulatedMerchants
    ) -> None:
        merchants.profile("never", {"kind": "pending", "decided_after": None})
        merchants.profile("at-once", {"kind": "pending", "decided_after": 0})

        assert send(merchants, "never").status_code == 202
        assert send(merchants, "never").json() == {"status": "pending"}
        assert look_up(merchants, "never").json()["status"] == "pending"
        send(merchants, "at-once")
        assert look_up(merchants, "at-once").json()["status"] == "accepted"

    def test_a_late_merchant_has_the_order_although_the_client_gave_up(
        self, merchants: SimulatedMerchants
    ) -> None:
        with pytest.raises(requests.ReadTimeout):
            send(merchants, "late-1", timeout=(5, 0.2))

        merchants.wait_until(merchant_id="late-1", requests=1, idle=True)
        order = merchants.order("late-1", "o-1")
        assert order is not None
        assert (order["creates"], order["statuses"]) == (1, ["gone"])
        assert look_up(merchants, "late-1").json()["status"] == "accepted"

    def test_a_failure_can_strike_after_the_order_was_made(
        self, merchants: SimulatedMerchants
    ) -> None:
        merchants.profile("m", {"kind": "fail", "status": 500, "makes_order": True})

        assert send(merchants, "m").status_code == 500
        merchants.profile("m", "instant")
        assert send(merchants, "m").status_code == 200
        assert merchants.summary()["creates"] == 1

    def test_a_reset_ends_the_connection_without_a_reply(
        self, merchants: SimulatedMerchants
    ) -> None:
        with (
            send_raw(merchants, "reset-1", "o-1") as connection,
            pytest.raises(ConnectionResetError),
        ):
            connection.recv(100)

        assert merchants.merchant("reset-1")["statuses"] == {"reset": 1}

    def test_only_a_merchant_that_ignores_keys_doubles_orders(
        self, merchants: SimulatedMerchants
    ) -> None:
        first, second = (send(merchants, "unkeyed-1").json()["id"] for _ in range(2))

        assert first != second
        assert [(each["order_id"], each["creates"]) for each in merchants.doubled()] == [("o-1", 2)]

    def test_a_merchant_that_checks_bodies_refuses_what_is_not_json(
        self, merchants: SimulatedMerchants
    ) -> None:
        merchants.profile("m", {"create": {"kind": "accept"}, "checks_body": True})
        url, key = f"{merchants.base_url('m')}/orders", {"Idempotency-Key": "o-1"}

        assert requests.post(url, data="{", headers=key, timeout=PATIENCE).status_code == 400
        assert requests.post(url, data="{}", headers=key, timeout=PATIENCE).status_code == 201


class TestHanging:
    def test_a_hanging_merchant_holds_every_request_until_it_is_released(
        self, merchants: SimulatedMerchants
    ) -> None:
        with send_raw(merchants, "hang-1", "a") as one, send_raw(merchants, "hang-1", "b") as two:
            counts = merchants.wait_until(merchant_id="hang-1", in_flight=2)
            assert (counts["requests"], counts["creates"]) == (2, 0)
            assert merchants.summary()["hanging"] == 2

            merchants.profile("hang-1", "instant", release=True)

            assert read_replies(one, 1)[0].startswith(b"HTTP/1.1 201")
            assert read_replies(two, 1)[0].startswith(b"HTTP/1.1 201")
        assert merchants.merchant("hang-1")["max_in_flight"] == 2
        assert merchants.summary()["creates"] == 2

    def test_a_client_that_leaves_a_hanging_merchant_is_no_longer_in_flight(
        self, merchants: SimulatedMerchants
    ) -> None:
        send_raw(merchants, "hang-1", "a").close()

        counts = merchants.wait_until(requests=1, idle=True)
        assert (counts["creates"], counts["statuses"]) == (0, {"gone": 1})

    def test_a_merchant_that_hangs_for_a_while_makes_the_order_in_the_end(
        self, merchants: SimulatedMerchants
    ) -> None:
        merchants.profile("m", {"kind": "hang", "hangs_for": 0.05})

        assert send(merchants, "m").status_code == 201

    @pytest.mark.parametrize(
        ("stage", "seen"), [("head", b"HTTP/1.1 201 Created\r\n"), ("body", b'"status":"accepted"')]
    )
    def test_a_merchant_may_fall_silent_in_the_middle_of_its_reply_and_has_the_order(
        self, merchants: SimulatedMerchants, stage: str, seen: bytes
    ) -> None:
        merchants.profile("m", {"create": {"kind": "hang", "stage": stage}, "lookups": WELL})
        with send_raw(merchants, "m", "o-1") as connection:
            received = connection.recv(1000)
            assert received.endswith(seen)
            assert merchants.merchant("m")["in_flight"] == 1
            assert look_up(merchants, "m").json()["status"] == "accepted"

            merchants.profile("m", "fail", release=True)

            whole = received + connection.recv(1000)
        assert whole.startswith(b"HTTP/1.1 201 Created\r\n")
        assert whole.endswith(b'"status":"accepted"}')
        assert merchants.merchant("m")["statuses"]["201"] == 1

    def test_a_reply_that_was_cut_goes_on_after_a_while(
        self, merchants: SimulatedMerchants
    ) -> None:
        merchants.profile("m", {"kind": "hang", "stage": "body", "hangs_for": 0.05})

        assert send(merchants, "m").json()["status"] == "accepted"

    def test_a_reply_that_drips_is_whole_in_the_end_and_came_byte_by_byte(
        self, merchants: SimulatedMerchants
    ) -> None:
        merchants.profile("m", {"kind": "drip", "byte_every": 0.005})
        with send_raw(merchants, "m", "o-1", "o-2") as connection:
            first = connection.recv(1000)
            replies = first + b"".join(iter(partial(connection.recv, 1), b"}"))
            assert len(first) < 100
            assert replies.startswith(b"HTTP/1.1 201 Created\r\n")
            assert replies.endswith(b'"status":"accepted"')
            assert read_replies(connection, 1)[0].startswith(b"HTTP/1.1 201")

    def test_a_client_that_leaves_a_dripping_merchant_stops_the_drip(
        self, merchants: SimulatedMerchants
    ) -> None:
        with send_raw(merchants, "drip-1", "o-1") as connection:
            connection.recv(1)

        assert merchants.wait_until(requests=1, idle=True)["statuses"] == {"gone": 1}

    def test_a_prefix_switches_the_merchants_that_there_are_and_those_that_come(
        self, merchants: SimulatedMerchants
    ) -> None:
        assert send(merchants, "instant-1").status_code == 201
        merchants.profile("instant-2", "reject")

        merchants.profile("instant-*", {"kind": "fail", "status": 500})

        statuses = [send(merchants, f"instant-{number}").status_code for number in (1, 2, 3)]
        assert statuses == [500, 500, 500]
        assert merchants.merchant("instant-1")["group"] == "instant"

    def test_a_reset_forgets_everything_and_disconnects_who_waits(
        self, merchants: SimulatedMerchants
    ) -> None:
        merchants.profile("instant-1", "fail")
        with send_raw(merchants, "hang-1", "a") as hanging:
            merchants.wait_until(in_flight=1)

            merchants.reset()

            assert hanging.recv(100) == b""
        summary = merchants.summary()
        assert (summary["requests"], summary["in_flight"], summary["merchants"]) == (0, 0, 0)
        assert send(merchants, "instant-1").status_code == 201


class TestAlternation:
    def test_the_turns_follow_the_clock_also_before_the_moment_they_are_counted_from(self) -> None:
        well, ill = Mix.only(Behaviour(Treatment.ACCEPT)), Mix.only(Behaviour(Treatment.HANG))
        flapping = Alternation(ill, well, every=10.0, since=100.0)

        moments = (100.0, 109.9, 110.0, 119.9, 120.0, 99.9)
        turns = ["ill" if flapping.at(moment) is ill else "well" for moment in moments]
        assert turns == ["ill", "ill", "well", "well", "ill", "well"]

    def test_a_request_that_came_while_its_merchant_hung_is_never_answered(
        self, merchants: SimulatedMerchants
    ) -> None:
        turns = [{"kind": "hang"}, {"kind": "accept"}]
        hour, now = 3600.0, time.time()
        merchants.profile("m", {"alternate": turns, "every": hour, "since": now - 1})
        with send_raw(merchants, "m", "a") as connection:
            merchants.wait_until(merchant_id="m", in_flight=1)

            merchants.profile("m", {"alternate": turns, "every": hour, "since": now - hour - 1})

            assert send(merchants, "m", "b").status_code == 201
            assert merchants.merchant("m")["in_flight"] == 1
            connection.settimeout(0.05)
            with pytest.raises(TimeoutError):
                connection.recv(1)

    def test_without_a_moment_the_first_turn_begins_when_it_is_told(
        self, merchants: SimulatedMerchants
    ) -> None:
        turns = [{"kind": "reject"}, {"kind": "accept"}]
        merchants.profile("m", {"alternate": turns, "every": 3600})

        assert send(merchants, "m").status_code == 422


class TestOutage:
    def test_it_begins_and_ends_at_its_moments(self) -> None:
        well, ill = Mix.only(Behaviour(Treatment.ACCEPT)), Mix.only(Behaviour(Treatment.HANG))
        outage = Outage(well, ill, begins=20.0, ends=40.0, since=100.0)

        moments = (100.0, 119.9, 120.0, 139.9, 140.0)
        assert [outage.at(moment) is ill for moment in moments] == [False, False, True, True, False]

    def test_all_merchants_of_a_vendor_are_out_at_the_same_time(
        self, merchants: SimulatedMerchants
    ) -> None:
        now = time.time()
        outage = {"usual": {"kind": "accept"}, "outage": {"kind": "fail"}, "begins": 0, "ends": 60}
        merchants.profile("vendor-*", {**outage, "since": now})
        assert [send(merchants, f"vendor-{number}").status_code for number in (1, 2)] == [503, 503]

        merchants.profile("vendor-*", {**outage, "since": now - 60})

        assert [send(merchants, f"vendor-{number}").status_code for number in (1, 2)] == [201, 201]


class TestChance:
    def statuses(self, merchants: SimulatedMerchants, merchant: str, number: int) -> list[bytes]:
        orders = [f"o-{n}" for n in range(number)]
        with send_raw(merchants, merchant, *orders) as connection:
            return [reply.split()[1] for reply in read_replies(connection, number)]

    def test_weights_decide_how_often_and_no_pattern_when(
        self, merchants: SimulatedMerchants
    ) -> None:
        merchants.profile("m", MOSTLY_WELL)

        statuses = self.statuses(merchants, "m", 400)

        assert 60 < statuses.count(b"503") < 140
        gaps = [i for i, status in enumerate(statuses) if status == b"503"]
        assert len({b - a for a, b in pairwise(gaps)}) > 5

    def test_a_merchant_repeats_itself_after_a_reset_and_another_merchant_differs(
        self, merchants: SimulatedMerchants
    ) -> None:
        merchants.profile("m*", MOSTLY_WELL)
        first, other = (self.statuses(merchants, merchant, 40) for merchant in ("m1", "m2"))

        merchants.reset()
        merchants.profile("m*", MOSTLY_WELL)

        assert self.statuses(merchants, "m1", 40) == first
        assert other != first

    @pytest.mark.parametrize(
        ("profile", "complaint"),
        [
            ("quick", "profile 'quick': one of"),
            ({"kind": "explode"}, "kind 'explode': one of accept"),
            ({"kind": "fail", "delay": 1}, "unknown delay; known: "),
            ({"latency": "long"}, "latency 'long': give seconds"),
            ({"latency": {"uniform": [2, 1]}}, "0 <= low <= high"),
            ([{"weight": 0, "kind": "accept"}], "all above 0"),
            ({"kind": "hang", "hangs_for": -1}, "hangs_for -1: 0 or more seconds"),
            ({"alternate": [{}, {"kind": "hang"}], "every": 1}, "give one behaviour or a list"),
            ({"alternate": [{"kind": "hang"}, {"kind": "fail"}]}, "give every, in seconds"),
            ({"usual": {"kind": "hang"}, "outage": {"kind": "fail"}}, "give begins and ends, in"),
            (
                {"usual": {"latency": 1}, "outage": {"kind": "fail"}, "begins": 9, "ends": 9},
                "outage from 9.0 to 9.0: 0 <= begins < ends",
            ),
            ({"kind": "hang", "stage": "tls"}, "stage 'tls': one of reply, head, body"),
            ({"kind": "fail", "stage": "head"}, "only for kind: hang"),
            ({"kind": "drip", "byte_every": 0}, "byte_every 0: seconds above 0"),
            ({"latency": {"quantiles": [[0, 1], [0.5, 2]]}}, "shares from 0 to 1"),
            ({"latency": {"quantiles": [[0, 2], [1, 1]]}}, "ascending"),
            ({"latency": {"quantiles": [[0, "a"], [1, "b"]]}}, "[0, 'a'] stands where a pair"),
            ({"latency": {"weighted": [[0, 1]]}}, "all above 0"),
            ({"latency": {"weighted": [0.5]}}, "0.5 stands where a pair"),
            ({"alternate": [{"kind": "hang"}, {"kind": "fail"}], "every": 0}, "every 0.0: seconds"),
            ([], "give one behaviour or a list"),
            ({}, "give one behaviour or a list"),
        ],
    )
    def test_a_profile_that_cannot_be_played_is_refused_with_what_would_do(
        self, merchants: SimulatedMerchants, profile: object, complaint: str
    ) -> None:
        with pytest.raises(ValueError, match="400") as refused:
            merchants.profile("m", profile)

        assert complaint in str(refused.value)


class TestTheTruth:
    def test_the_summary_counts_by_status_and_by_profile(
        self, merchants: SimulatedMerchants
    ) -> None:
        merchants.profile("m", {"kind": "fail"})
        for merchant in ("instant-1", "instant-2", "m"):
            send(merchants, merchant)
        send(merchants, "instant-1")
        look_up(merchants, "instant-1")

        summary = merchants.summary()

        assert {name: summary[name] for name in ("requests", "creates", "orders", "lookups")} == {
            "requests": 4,
            "creates": 2,
            "orders": 3,
            "lookups": 1,
        }
        assert summary["statuses"] == {"201": 2, "200": 2, "503": 1}
        assert summary["profiles"]["instant"]["creates"] == 2
        assert summary["profiles"]["custom"]["statuses"] == {"503": 1}
        assert summary["max_in_flight_per_merchant"] == 1
        assert summary["connections"]["accepted"] >= 5

    def test_arrivals_and_the_timeline_say_when(self, merchants: SimulatedMerchants) -> None:
        before = time.time()
        for order in ("a", "b", "a"):
            send(merchants, "instant-1", order)
        send(merchants, "a-client")
        after = time.time()

        arrivals = {(merchant, order): at for merchant, order, at in merchants.arrivals()}
        assert set(arrivals) == {("instant-1", "a"), ("instant-1", "b"), ("a-client", "o-1")}
        assert all(before <= at <= after for at in arrivals.values())
        assert arrivals["instant-1", "a"] <= arrivals["instant-1", "b"]
        timeline = merchants.timeline(since=before)
        assert {group: sum(n for _, n in buckets) for group, buckets in timeline.items()} == {
            "instant": 2,
            "other": 1,
        }
        assert all(before - 0.1 <= at <= after for at, _ in timeline["instant"])
        assert merchants.timeline(since=after + 1) == {"instant": [], "other": []}

    def test_the_levels_say_how_many_requests_each_group_had_in_flight(
        self, merchants: SimulatedMerchants
    ) -> None:
        before = time.time()
        with send_raw(merchants, "hang-1", "a"), send_raw(merchants, "hang-2", "b"):
            merchants.wait_until(in_flight=2)
            assert merchants.levels(since=before)["hang"][-1][1] == 2
        merchants.wait_until(requests=2, idle=True)

        levels = merchants.levels(since=before)
        assert levels["hang"][-1][1] == 0
        assert all(before - 0.1 <= at <= time.time() for at, _ in levels["hang"])
        assert merchants.levels(since=time.time() + 1) == {"hang": []}

    def test_waiting_ends_when_it_happens_and_says_so_when_it_does_not(
        self, merchants: SimulatedMerchants
    ) -> None:
        with send_raw(merchants, "fast-1", "a", "b"):
            assert merchants.wait_until(creates=2, idle=True)["creates"] == 2

        with pytest.raises(TimeoutError, match="'creates': 2"):
            merchants.wait_until(creates=3, timeout=0.05)
        with pytest.raises(ValueError, match="wait: unknown"):
            merchants._dict("GET", "/_/wait?patience=1")


class TestTheProcess:
    def test_a_scenario_file_says_who_behaves_how(self, tmp_path: Path) -> None:
        scenario = tmp_path / "scenario.json"
        profiles = {"picky": {"kind": "reject", "code": "closed", "message": "closed"}}
        rules = {"healthy-*": "instant", "healthy-13": "picky", "m9": {"kind": "fail"}}
        scenario.write_text(json.dumps({"profiles": profiles, "merchants": rules}))
        with SimulatedMerchants(scenario=scenario) as merchants:
            sent = ("healthy-1", "healthy-13", "picky-1", "m9")
            statuses = [send(merchants, merchant).status_code for merchant in sent]

            assert statuses == [201, 422, 422, 503]
            assert merchants.merchant("healthy-1")["group"] == "healthy"

    def test_a_scenario_that_cannot_be_played_stops_the_start(self, tmp_path: Path) -> None:
        scenario = tmp_path / "scenario.json"
        scenario.write_text('{"merchants": {"m-*": "nonesuch"}}')

        with pytest.raises(RuntimeError, match="exit status 2"):
            SimulatedMerchants(scenario=scenario).start()

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_a_signal_ends_it_cleanly_even_while_a_client_hangs(self, number: int) -> None:
        with SimulatedMerchants() as merchants, send_raw(merchants, "hang-1", "a"):
            merchants.wait_until(in_flight=1)
            ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
            while os.waitid(os.P_PID, merchants.pid, ended) is None:
                os.kill(merchants.pid, number)  # as often as there is time for while it ends
            assert merchants.stop() == 0

    def test_it_ends_with_the_process_that_started_it(self) -> None:
        script = (
            "import os; from pos_gateway.simulated_merchants.client import SimulatedMerchants as S\n"
            "print(S().start().port, flush=True); os.kill(os.getpid(), 9)"
        )
        killed = subprocess.run(
            [sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, check=False
        )
        assert killed.returncode == -signal.SIGKILL
        # A client that hangs on it is disconnected when it goes; it may have gone before.
        with (
            pytest.raises(ConnectionError),
            socket.create_connection(("127.0.0.1", int(killed.stdout)), timeout=PATIENCE) as left,
        ):
            assert left.recv(1) == b""
            raise ConnectionResetError

    def test_a_process_that_gevent_has_patched_can_use_it(self) -> None:
        script = (
            "from gevent import monkey; monkey.patch_all()\n"
            "import gevent, requests\n"
            "from pos_gateway.simulated_merchants.client import SimulatedMerchants\n"
            "with SimulatedMerchants() as merchants:\n"
            "    waiting = gevent.spawn(merchants.wait_until, requests=1)\n"
            "    url = merchants.base_url('instant-1') + '/orders'\n"
            "    sent = gevent.spawn(requests.post, url, json={'order_id': 1})\n"
            "    gevent.joinall([waiting, sent], timeout=120, raise_error=True)\n"
            "    print(waiting.value['requests'], sent.value.status_code)\n"
        )
        ran = subprocess.run(
            [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert ran.stdout.split() == ["1", "201"], ran.stderr

    def test_it_speaks_tls(self, tmp_path: Path) -> None:
        authority, certificate = tmp_path / "authority.pem", tmp_path / "certificate.pem"
        issuer = trustme.CA()
        issuer.cert_pem.write_to_path(str(authority))
        issued = issuer.issue_cert("127.0.0.1")
        issued.private_key_and_cert_chain_pem.write_to_path(str(certificate))
        with SimulatedMerchants(tls_cert=certificate, tls_key=certificate) as merchants:
            url = f"{merchants.base_url('instant-1')}/orders"
            headers = {"Idempotency-Key": "o-1"}
            trusted = str(authority)
            reply = requests.post(
                url, json=ORDER, headers=headers, verify=trusted, timeout=PATIENCE
            )

            assert url.startswith("https://")
            assert reply.status_code == 201
            assert merchants.summary()["creates"] == 1

    def test_what_a_request_costs_is_the_servers_cpu_time_and_not_the_first_connections(
        self, merchants: SimulatedMerchants
    ) -> None:
        before = merchants.summary()
        cost, rate = measure(merchants, Load(merchants.port, "instant", connections=50), 1000)
        after = merchants.summary()

        assert after["creates"] - before["creates"] == 50 + 1000
        # All of its CPU seconds in that time, and one request costs no more than all.
        assert 0 < 1000 * cost <= after["cpu_seconds"] - before["cpu_seconds"]
        assert rate > 0
