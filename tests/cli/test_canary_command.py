"""``pos-gateway canary``: who moves merchants, and what is said of it."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from kombu import Connection

from pos_gateway.broker import topology
from pos_gateway.broker.message import Message
from pos_gateway.broker.publisher import Publisher
from pos_gateway.canary import administration
from pos_gateway.canary.administration import LONGEST
from pos_gateway.canary.evidence import ENOUGH
from pos_gateway.canary.verdict import ORDERS
from pos_gateway.domain.errors import BrokerUnavailable
from pos_gateway.domain.split import Split, in_canary
from pos_gateway.ledger.ledger import Ledger
from pos_gateway.ledger.states import State
from pos_gateway.routing import splits
from testkit.servers.rabbitmq import RabbitMQ
from tests.cli.books import Books
from tests.cli.conftest import PATIENCE, Orders, Program
from tests.ledger.lab import Clock

MakeOrder = Callable[..., dict[str, Any]]

#: Six merchants of each side at 50 %.
MERCHANTS = [f"m-{number}" for number in range(100)]
INSIDE = [each for each in MERCHANTS if in_canary(each, 50)][:6]
OUTSIDE = [each for each in MERCHANTS if not in_canary(each, 50)][:6]


@pytest.fixture
def connected(connected: Program, monkeypatch: pytest.MonkeyPatch) -> Program:
    """The program with a broker whose split is waited for once one was published.

    The broker counts it seconds later, so that its count does not say whether to wait.
    """
    message_of = splits.message_of

    def published(split: Split) -> Message:
        monkeypatch.setattr(splits, "THERE", PATIENCE)
        monkeypatch.setattr(splits, "PERHAPS", PATIENCE)
        return message_of(split)

    monkeypatch.setattr(splits, "message_of", published)
    return connected


@pytest.fixture
def canary(orders: Orders) -> Iterator[None]:
    """A consumer takes orders from the canary's queue."""
    with orders.connection.Consumer([topology.canary_queue], on_message=lambda _: None):
        yield


def test_merchants_are_moved_and_pilots_stay(
    connected: Program, canary: None, broker_url: str
) -> None:
    done = connected.invoke("canary", "set", "0", "--pin", "m-3", "--pin", "m-1")
    assert done.output == (
        "0 % of the merchants, and the pilots m-1, m-3 (before: 0 % of the merchants)\n"
    )
    done = connected.invoke("canary", "set", "12.5", "--unpin", "m-3", "--as", "lee")
    assert "12.5 % of the merchants, and the pilots m-1 (before: " in done.output
    said = splits.in_force(broker_url, 0)
    assert (said.percent, said.pins, said.changed_by) == (12.5, {"m-1"}, "lee")
    assert connected.invoke("canary", "set", "0").exit_code == 0
    assert splits.in_force(broker_url, 0).pins == {"m-1"}


def test_two_operators_at_once_lose_no_pilot_of_each_other(
    connected: Program, canary: None, broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one comes when the first has read what there was, and not said what is to be."""
    in_force, refused = splits.in_force, threading.Event()

    def other() -> None:
        with splits.changing(broker_url) as publish:
            before = in_force(broker_url, 0)
            publish(before.changed("lee", datetime.now(UTC), pins=before.pins | {"m-2"}))
        refused.set()  # it was not, and is done

    def sleep(seconds: float) -> None:
        refused.set()
        time.sleep(seconds)

    def meanwhile(url: str, percent: float) -> Split:
        before = in_force(url, percent)
        second.start()
        assert refused.wait(PATIENCE)
        return before

    second = threading.Thread(target=other)
    watched = SimpleNamespace(monotonic=time.monotonic, sleep=sleep)
    monkeypatch.setattr(splits, "time", watched)
    monkeypatch.setattr(splits, "TURN", PATIENCE)
    monkeypatch.setattr(splits, "in_force", meanwhile)
    assert connected.invoke("canary", "set", "5", "--pin", "m-1").exit_code == 0
    second.join()
    assert in_force(broker_url, 0).pins == {"m-1", "m-2"}


def test_abort_does_not_wait_without_limit_for_another_operator(
    connected: Program, canary: None, broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert connected.invoke("canary", "set", "50").exit_code == 0
    with splits.changing(broker_url):
        monkeypatch.setattr(splits, "TURN", 0.0)
        done = connected.invoke("canary", "set", "0")
        assert (done.exit_code, "another operator is changing it" in done.stderr) == (1, True)
        assert connected.invoke("canary", "abort").exit_code == 0
    assert not splits.in_force(broker_url, 0).takes_any


def test_who_stood_still_and_lost_its_turn_says_nothing(
    connected: Program, canary: None, broker_url: str, rabbitmq: RabbitMQ
) -> None:
    assert connected.invoke("canary", "set", "5", "--pin", "m-1").exit_code == 0
    with pytest.raises(BrokerUnavailable), splits.changing(broker_url) as publish:
        rabbitmq.drop_connections()
        publish(Split().changed("kim", datetime.now(UTC)))
    assert splits.in_force(broker_url, 0).pins == {"m-1"}


def test_what_was_in_the_environment_is_where_it_begins(connected: Program, canary: None) -> None:
    done = connected.invoke("canary", "set", "10", POS_GATEWAY_CANARY_PERCENT="5")
    assert done.output == "10 % of the merchants (before: 5 % of the merchants)\n"


def test_no_merchant_is_moved_to_a_queue_without_workers(
    connected: Program, orders: Orders, broker_url: str
) -> None:
    for arguments in (("1",), ("0", "--pin", "m-1")):
        done = connected.invoke("canary", "set", *arguments)
        assert done.exit_code == 1
        assert "no worker consumes orders.canary: start a canary worker" in done.stderr
    assert splits.present(broker_url) is None
    assert connected.invoke("canary", "set", "0").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("101",), 2, "101.0 is not in the range 0<=x<=100"),
        (("many",), 2, "'many' is not a valid float"),
        (("10", "--pin", "a b"), 1, "pins[0]: string should match pattern"),
        (("10", "--unpin", "m-1"), 1, "m-1: no pilot, so there is nothing to unpin"),
        (("10", "--as", " "), 2, "a name has 1 to 128 characters"),
    ],
)
def test_what_cannot_be_set_is_said(
    connected: Program, canary: None, arguments: tuple[str, ...], code: int, said: str
) -> None:
    done = connected.invoke("canary", "set", *arguments)
    assert (done.exit_code, said in done.stderr) == (code, True), done.stderr


def test_abort_moves_every_merchant_back_even_without_workers(
    connected: Program, orders: Orders, broker_url: str
) -> None:
    with orders.connection.Consumer([topology.canary_queue], on_message=lambda _: None):
        connected.invoke("canary", "set", "50", "--pin", "m-1")
        done = connected.invoke("canary", "abort")
        assert done.output == "aborted: no merchant's orders go to orders.canary any more\n"
    assert not splits.in_force(broker_url, 0).takes_any
    done = connected.invoke("canary", "abort", "--as", "", USER="")
    assert done.exit_code == 2  # a name that was given must be one
    done = connected.invoke("canary", "abort", USER="")
    assert (done.exit_code, "start a worker without -Q" in done.stderr) == (0, True)


@pytest.mark.parametrize("command", [("status",), ("set", "1"), ("abort",)])
def test_a_broker_that_is_down_is_one_sentence(program: Program, command: tuple[str, ...]) -> None:
    done = program.invoke("canary", *command)
    assert done.exit_code == 1
    assert len(done.stderr.splitlines()) == 1
    assert "at amqp://" in done.stderr


def test_the_status_has_what_is_known_without_a_database(connected: Program, canary: None) -> None:
    done = connected.invoke("canary", "status")
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "canary: 0 % of the merchants",
        "QUEUE\tREADY\tCONSUMERS",
        "orders\t0\t0",
        "orders.canary\t0\t1",
        "no verdict: no merchant's orders go to the canary",
    ]
    connected.invoke("canary", "set", "10")
    done = connected.invoke("canary", "status", "--exit-code")
    assert done.exit_code == 1
    assert re.match(r"canary: 10 % of the merchants, since \d+s \(kim\)\n", done.stdout)
    assert "no verdict: there is no file" in done.stdout
    done = connected.invoke("canary", "status", POS_GATEWAY_CANARY_PERCENT="10")
    assert "10 % of the merchants, since" in done.stdout


def test_a_share_of_the_environments_has_no_verdict(connected: Program, canary: None) -> None:
    done = connected.invoke("canary", "status", POS_GATEWAY_CANARY_PERCENT="10")
    assert "no verdict: since when they do is not known" in done.stdout


def deliver(books: Books, merchants: list[str], *, failed: int = 0) -> None:
    """Enough orders of these merchants, of each of which a number have failed."""
    each = ORDERS // len(merchants) + 1
    for merchant in merchants:
        for number in range(each):
            state = State.FAILED if number < failed else State.ACCEPTED
            books.order(f"{merchant}-{number}", state, merchant_id=merchant)


def test_the_verdict_is_the_exit_code(
    connected: Program, canary: None, books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(administration, "SETTLE", 0.0)
    connected.invoke("canary", "set", "50")
    deliver(books, OUTSIDE)
    done = connected.invoke("canary", "status", "--exit-code")
    assert done.exit_code == 3
    assert (
        "outcomes\tunknown\tthe canary has 0 of the 200 orders and 0 of the 5 merchants"
        in done.stdout
    )
    deliver(books, INSIDE, failed=10)
    done = connected.invoke("canary", "status", "--exit-code")
    assert done.exit_code == 4
    assert "failed\tworse\t2" in done.stdout
    assert done.stdout.endswith("verdict: abort\n")


def test_a_canary_whose_work_the_others_do_is_held(
    connected: Program, orders: Orders, books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(administration, "SETTLE", 0.0)
    queues = [topology.orders_queue, topology.canary_standby]
    with orders.connection.Consumer(queues, on_message=lambda _: None):
        connected.invoke("canary", "set", "50")
        deliver(books, OUTSIDE)
        deliver(books, INSIDE)
        done = connected.invoke("canary", "status")
        assert "\nown workers\tunknown\torders.canary has no more consumers" in done.stdout
        assert done.stdout.endswith("verdict: hold\n")
        with (
            Connection(connected.settings["POS_GATEWAY_BROKER_URL"]) as connection,
            connection.Consumer([topology.canary_queue], on_message=lambda _: None),
        ):
            done = connected.invoke("canary", "status")
    assert "\nown workers\tfine\t" in done.stdout


def test_healthy_are_those_who_were_when_the_canary_got_its_share(
    connected: Program, canary: None, books: Books, broker_url: str
) -> None:
    """Also hours later, of which the last one's orders are looked at."""
    now, clock = time.time(), Clock()
    changed_at = datetime.fromtimestamp(now - 2 * LONGEST, UTC)
    publisher = Publisher(broker_url)
    publisher.publish(splits.message_of(Split(percent=50, changed_by="kim", changed_at=changed_at)))
    publisher.close()
    books.ledger = Ledger(books.engine, books.payloads, clock=clock)
    for since_then, failed in ((-60, 0), (LONGEST - 60, 1), (LONGEST + 60, 0)):
        clock.of_day = changed_at.timestamp() + since_then
        for merchant in (*INSIDE, *OUTSIDE):
            for number in range(ENOUGH):
                state = State.FAILED if number < failed else State.ACCEPTED
                order_id = f"{merchant}-{since_then}-{number}"
                books.order(order_id, state, merchant_id=merchant, at=clock.of_day)
    done = connected.invoke("canary", "status")
    orders = ENOUGH * len(INSIDE)
    lacks = f"the canary has {orders} of the 200 orders and {len(INSIDE)} of the 5 merchants"
    assert f"of merchants healthy before, {lacks}" in done.stdout


def test_orders_without_a_consumer_abort_it(
    connected: Program, orders: Orders, books: Books, order: MakeOrder
) -> None:
    with orders.connection.Consumer([topology.canary_queue], on_message=lambda _: None):
        connected.invoke("canary", "set", "100")
    line = json.dumps(order()) + "\n"
    assert connected.invoke("enqueue", "-", stdin=line).output == "1 sent, 0 refused\n"
    done = connected.invoke("canary", "status", "--json", "--exit-code")
    status = json.loads(done.stdout)
    assert (done.exit_code, status["verdict"]) == (4, "abort")
    assert status["queues"]["orders.canary"] == {"ready": 1, "consumers": 0}
    assert status["figures"][-1] == {
        "name": "queue",
        "finding": "worse",
        "why": "no worker consumes the messages in orders.canary: 1",
    }
    assert (status["percent"], status["pins"], status["changed_by"]) == (100, [], "kim")


@pytest.mark.parametrize(
    ("pages", "said"),
    [
        (["canary"], "does not say whose metrics are where; canary=http://"),
        (["old=http://127.0.0.1:1/"], "does not say whose metrics are where"),
        (["canary=file:///etc/passwd"], "does not say whose metrics are where"),
        (["canary=http://kim:hun/ter2@127.0.0.1:1/"], "without a name and a password"),
        (["http://kim:hunter2@127.0.0.1:1/"], "without a name and a password"),
        (["canary=http://127.0.0.1:1/"], "name a page of canary= and one of stable= workers"),
        (
            ["canary=http://127.0.0.1:1/", "stable=http://127.0.0.1:1/"],
            "cannot read the metrics at http://127.0.0.1:1/: ",
        ),
    ],
)
def test_pages_of_metrics_that_will_not_do_are_said(
    connected: Program, canary: None, pages: list[str], said: str
) -> None:
    options = [part for page in pages for part in ("--metrics", page)]
    done = connected.invoke("canary", "status", *options)
    assert done.exit_code in (1, 2)
    assert said in " ".join(done.stderr.split())
    assert "hun" not in done.stderr
