"""Whose orders go to the canary: said once to a real RabbitMQ, followed by every client."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest
from kombu import Connection, Queue

from pos_gateway.broker import session as sessions
from pos_gateway.broker import topology
from pos_gateway.broker.message import Message
from pos_gateway.broker.publisher import Publisher
from pos_gateway.client import OrderClient
from pos_gateway.domain.errors import BrokerUnavailable, InvalidSplit
from pos_gateway.domain.split import Split
from pos_gateway.routing import splits
from pos_gateway.routing.splits import SplitWatch
from testkit.servers.proxy import Proxy
from testkit.servers.rabbitmq import RabbitMQ
from tests.broker.test_order_client import queued
from tests.orders import an_order

READ_TIMEOUT = 20.0
#: Ends the process that runs it when patience is over.
ALARM = f"import signal; signal.alarm({READ_TIMEOUT:.0f})"
#: Has a program wait for what was said, however late it comes.
PATIENT = f"from pos_gateway.routing import splits; splits.PERHAPS = {READ_TIMEOUT}"


@pytest.fixture
def operator(broker_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator["Operator"]:
    """For tests in which something was said, and is waited for however late it comes."""
    monkeypatch.setattr(splits, "PERHAPS", READ_TIMEOUT)
    operator = Operator(broker_url)
    yield operator
    operator.publisher.close()


class Operator:
    """Says whose orders go to the canary."""

    def __init__(self, broker_url: str) -> None:
        self.publisher = Publisher(broker_url)

    def says(self, percent: float, *pins: str) -> None:
        split = Split().changed("kim", datetime.now(UTC), percent=percent, pins=pins)
        self.publisher.publish(splits.message_of(split))

    def says_nonsense(self, body: bytes) -> None:
        self.publisher.publish(Message("", "orders.canary.split", body, ""))


def wait_until(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + READ_TIMEOUT
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.005)


def test_until_something_was_said_it_is_the_environments(
    broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(splits, "THERE", 0.3)
    monkeypatch.setenv("POS_GATEWAY_CANARY_PERCENT", "25")
    assert splits.present(broker_url) is None
    with OrderClient(broker_url) as client:
        assert client.split == Split(percent=25)
    assert splits.in_force(broker_url, 25) == Split(percent=25)


def test_the_first_order_already_goes_where_was_said(
    broker_url: str, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POS_GATEWAY_CANARY_PERCENT", "100")
    operator.says(50)
    operator.says(0, "m-1")
    for merchant in ("m-1", "m-8"):
        with OrderClient(broker_url) as client:
            client.submit(an_order(merchant, merchant))
    assert queued(broker_url, "orders.canary") == ["m-1"]
    assert queued(broker_url, "orders") == ["m-8"]
    said = splits.in_force(broker_url, 100)
    assert (said.percent, said.pins, said.changed_by) == (0, {"m-1"}, "kim")


def test_a_client_at_work_follows(
    broker_url: str, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(splits, "PERHAPS", 0.0)  # nothing was said before its first order
    with OrderClient(broker_url) as client:
        client.submit(an_order("before", "m-8"))
        operator.says(10)
        wait_until(lambda: client.split.percent == 10)
        client.submit(an_order("in", "m-8"))
        client.cancel("in", "m-8")
        operator.says(0)
        wait_until(lambda: client.split.percent == 0)
        client.submit(an_order("after", "m-8"))
    assert queued(broker_url, "orders.canary") == ["in", "in"]
    assert queued(broker_url, "orders") == ["before", "after"]


def test_a_percentage_given_to_the_client_is_its_own(broker_url: str, operator: Operator) -> None:
    operator.says(0)
    with OrderClient(broker_url, canary_percent=100) as client:
        client.submit(an_order("o1"))
    assert queued(broker_url, "orders.canary") == ["o1"]


def test_what_is_no_split_changes_nothing(broker_url: str, operator: Operator) -> None:
    with OrderClient(broker_url) as client:
        operator.says(10)
        wait_until(lambda: client.split.percent == 10)
        for body in (b"", b"[]", b'{"percent": 101}', b'{"pins": ["a b"]}', b"\xff"):
            operator.says_nonsense(body)
        operator.says(20)
        wait_until(lambda: client.split.percent != 10)
        assert client.split.percent == 20


@pytest.mark.parametrize("body", [b"", b"null", b"50", b"\xff", b'{"percent": 1e400}'])
def test_a_last_message_that_is_no_split_is_not_taken_for_nothing_said(
    broker_url: str, operator: Operator, body: bytes
) -> None:
    operator.says(10, "m-1")
    operator.says_nonsense(body)
    with pytest.raises(InvalidSplit, match="its last message is no split; "):
        splits.in_force(broker_url, 0)
    operator.says(20)
    assert splits.in_force(broker_url, 0).percent == 20


def test_it_outlives_the_broker_and_is_followed_from_then_on(
    broker_url: str, operator: Operator, rabbitmq: RabbitMQ
) -> None:
    operator.says(10, "m-1")
    with OrderClient(broker_url) as client:
        assert client.split.percent == 10
        rabbitmq.kill()
        assert client.split.percent == 10
        rabbitmq.start()
        wait_until(lambda: _percent(broker_url) == 10)
        operator.says(0)
        wait_until(lambda: client.split.percent == 0)


def _percent(broker_url: str) -> float | None:
    try:
        return splits.in_force(broker_url, 0).percent
    except splits.BrokerUnavailable:
        return None


def test_a_connection_that_died_in_silence_is_replaced(
    broker_url: str, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "HEARTBEAT", 1)
    operator.says(10)
    with Proxy(broker_url) as proxy:
        watch = SplitWatch(proxy.url)
        assert watch.split() is not None
        dead = watch._session
        proxy.half_open("server")
        wait_until(lambda: watch._session is not dead)
        operator.says(20)
        assert watch.split().percent == 10  # type: ignore[union-attr]
        proxy.heal()
        wait_until(lambda: watch.split().percent == 20)  # type: ignore[union-attr]
        watch.close()


def test_who_may_not_read_it_goes_by_the_environment(
    broker_url: str, operator: Operator, rabbitmq: RabbitMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator.says(0)
    monkeypatch.setenv("POS_GATEWAY_CANARY_PERCENT", "100")
    url = rabbitmq.add_user(
        "shop", broker_url, configure="", write="^orders$", read="^order-events$"
    )
    with OrderClient(url, declare=False) as client:
        client.submit(an_order("o1"))
    assert queued(broker_url, "orders.canary") == ["o1"]


def test_what_was_said_just_now_is_waited_for_though_the_broker_does_not_count_it_yet(
    broker_url: str, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the pilots that an operator has named would be lost with the next ``canary set``."""
    consume, waiting = splits._consume, threading.Event()

    def consumed(*arguments: Any, **more: Any) -> bool:
        found = consume(*arguments, **more)
        waiting.set()
        return found

    monkeypatch.setattr(splits, "_consume", consumed)
    monkeypatch.setattr(splits, "THERE", READ_TIMEOUT)
    for name in ("PERHAPS", "_TOGETHER"):
        monkeypatch.setattr(splits, name, 0.0)
    with ThreadPoolExecutor(1) as pool:
        said = pool.submit(splits.in_force, broker_url, 0)
        assert waiting.wait(READ_TIMEOUT)
        operator.says(0, "m-1")
        assert said.result(2 * READ_TIMEOUT).pins == {"m-1"}


def test_what_was_said_and_does_not_come_is_not_taken_for_nothing_said(
    broker_url: str, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator.says(0, "m-1")
    with Connection(broker_url) as connection:
        stream = topology.splits_stream.bind(connection.default_channel)
        wait_until(lambda: stream.queue_declare(passive=True).message_count == 1)
    monkeypatch.setattr(splits, "THERE", 0.0)
    with pytest.raises(BrokerUnavailable, match=r"its last message has not come within 0 s$"):
        splits.in_force(broker_url, 0)


@pytest.mark.parametrize(
    ("there", "why"), [(True, "PRECONDITION_FAILED"), (False, "NOT_FOUND")], ids=["other", "none"]
)
def test_a_stream_that_is_none_or_is_not_there_is_said_and_asked_for_ever_later(
    broker_url: str,
    there: bool,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if there:
        with Connection(broker_url) as connection:
            arguments = {"x-queue-type": "quorum"}
            other = Queue(topology.splits_stream.name, queue_arguments=arguments)
            other.bind(connection.default_channel).queue_declare()
    pauses: list[float] = []
    watch = SplitWatch(broker_url, declare=there)
    monkeypatch.setattr(
        watch._stopping, "wait", lambda pause: pauses.append(pause) or len(pauses) > 8
    )
    assert watch.split() is None
    wait_until(lambda: len(pauses) == 9)
    assert pauses == [0, 1, 2, 4, 8, 16, 32, 60, 60]
    assert [
        (said.startswith("canary.split_refused: "), why in said) for said in caplog.messages
    ] == [(True, True)] * 8


def test_a_mistake_is_said_and_it_is_followed_all_the_same(
    broker_url: str,
    operator: Operator,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(splits, "_RETRY_AFTER", 0.0)
    mistakes = [ValueError("oh"), KeyError("my")]

    def once_right(url: str) -> sessions.BrokerSession:
        if mistakes:
            raise mistakes.pop()
        return sessions.BrokerSession(url)

    operator.says(10)
    monkeypatch.setattr(splits, "BrokerSession", once_right)
    watch = SplitWatch(broker_url)
    watch.split()
    wait_until(lambda: watch.split() is not None)
    assert caplog.messages == ["canary.split_mistake"] * 2
    watch.close()


def test_a_thread_that_cannot_be_had_is_asked_for_again(
    broker_url: str,
    operator: Operator,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def no_more(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    operator.says(10)
    watch = SplitWatch(broker_url)
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", no_more)
        assert watch.split() is None
    assert caplog.messages == ["canary.split_not_followed: can't start new thread"]
    wait_until(lambda: watch.split() is not None)
    watch.close()


def test_after_close_a_caller_does_not_wait(broker_url: str, operator: Operator) -> None:
    operator.says(10)
    never_asked, asked = SplitWatch(broker_url), SplitWatch(broker_url)
    wait_until(lambda: asked.split() is not None)
    for watch in (never_asked, asked):
        watch.close()
    assert never_asked.split() is None
    assert never_asked._thread is None
    assert asked.split().percent == 10  # type: ignore[union-attr]


def followed_by(program: str, operator: Operator, processes: int) -> None:
    """The program, in several processes, sees 10 % change to 20 %, and ends.

    So it does without a change or a read: an alarm ends each of them, for which a child
    has to set its own.
    """
    operator.says(10)
    command = [sys.executable, "-c", f"{ALARM}\n{program}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert [process.stdout.readline() for _ in range(processes)] == ["10.0\n"] * processes
            operator.says(20)
            assert process.wait(READ_TIMEOUT) == 0
        finally:
            process.kill()


def test_a_child_follows_by_itself_after_a_fork(broker_url: str, operator: Operator) -> None:
    program = f"""
import os, sys, time
from pos_gateway.client import OrderClient
{PATIENT}
client = OrderClient({broker_url!r})
assert client.split.percent == 10
child = os.fork()
{ALARM}
os.write(1, f"{{client.split.percent}}\\n".encode())
while client.split.percent != 20:
    time.sleep(0.01)
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    followed_by(program, operator, processes=2)


def test_a_process_that_gevent_has_patched_follows(broker_url: str, operator: Operator) -> None:
    program = f"""
from gevent import monkey; monkey.patch_all()
import time
from pos_gateway.client import OrderClient
{PATIENT}
client = OrderClient({broker_url!r})
print(client.split.percent, flush=True)
while client.split.percent != 20:
    time.sleep(0.01)
"""
    followed_by(program, operator, processes=1)


def test_it_says_goodbye_to_the_broker(rabbitmq: RabbitMQ) -> None:
    """A process that ends at once leaves no lost client in the broker's log."""
    broker_url = rabbitmq.add_vhost("goodbye")  # no other test's lines in the log
    program = (
        "from pos_gateway.routing.splits import SplitWatch\n"
        f"watch = SplitWatch({broker_url!r}); watch.split(); watch.close()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=READ_TIMEOUT
    )
    assert done.returncode == 0, done.stderr
    here = "vhost: 'goodbye'"

    def ended() -> list[str]:
        log = (rabbitmq.folder / "log" / "rabbitmq.log").read_text().splitlines()
        return [line for line in log if "closing AMQP connection" in line and here in line]

    wait_until(lambda: len(ended()) == 1)
    assert "[info]" in ended()[0]
    rabbitmq.delete_vhost(broker_url)
