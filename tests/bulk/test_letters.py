"""Bulk runs on thousands of letters of a real broker: none is lost, and none is acted on twice."""

import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection
from sqlalchemy import Engine, update

from pos_gateway.administration.bulk import letters as letter_work
from pos_gateway.administration.bulk import runner
from pos_gateway.administration.bulk.filter import BulkFilter
from pos_gateway.administration.bulk.options import BulkOptions
from pos_gateway.administration.bulk.run import BulkAction, RunState
from pos_gateway.broker import topology
from pos_gateway.broker.dead_letter_queue import DeadLetterQueue
from pos_gateway.database.schema import bulk_runs
from pos_gateway.domain.errors import AdminError
from testkit.servers.proxy import Proxy
from testkit.servers.rabbitmq import RabbitMQ
from tests.bulk.lab import FAST, PATIENCE, Desk, an_order, audited, dead_letter, depth, ids, publish

ROOT = Path(__file__).parents[2]
#: More than a run at its rate acts on until it is killed.
MANY = 1_500


def letters(count: int, *, code: str = "url", merchant_id: str = "m-1", first: int = 0) -> Any:
    """``count`` letters, with numbers as ids."""
    return (
        dead_letter(an_order(f"o-{number}", merchant_id), code=code)
        for number in range(first, first + count)
    )


def once(count: int, first: int = 0) -> Counter[str]:
    return Counter(f"o-{number}" for number in range(first, first + count))


def expire(engine: Engine) -> None:
    """The process that had a run has been gone for long."""
    with engine.begin() as connection:
        connection.execute(update(bulk_runs).values(lease_until=0.0))


def test_thousands_of_letters_are_replayed_and_the_others_stay(
    kim: Desk, books: Engine, broker_url: str
) -> None:
    """Those of another reason are in between, and are more than a consumer of a pass holds."""
    publish(broker_url, letters(400, code="certificate"))
    publish(broker_url, letters(300, first=400))
    publish(broker_url, letters(400, code="certificate", first=700))
    run = kim.preview(filter_=BulkFilter(codes=("url",)))
    assert (run.total, run.refused, run.state) == (300, 0, RunState.PREVIEWED)
    done = kim.run(run)
    assert (done.state, done.done, done.refused, done.gone) == (RunState.DONE, 300, 0, 0)
    assert ids(broker_url, "orders") == once(300, first=400)
    assert ids(broker_url, topology.DEAD_KEY) == once(400) + once(400, first=700)
    assert audited(books, "dead.replay") == once(300, first=400)


def test_a_run_that_is_killed_is_resumed_where_it_was(
    kim: Desk, books: Engine, broker_url: str, database_url: str, tmp_path: Path
) -> None:
    """The one letter at which it was killed may be on the queue twice; its order is sent once."""
    publish(broker_url, letters(MANY))
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "POS_GATEWAY_BROKER_URL": broker_url,
        "POS_GATEWAY_DATABASE_URL": database_url,
        "POS_GATEWAY_METRICS_PORT": "0",
        "USER": "kim",
    }
    command = ("dlq", "replay", "--reason", "url", "--yes", "--rate", "250")
    process = subprocess.Popen(
        [sys.executable, "-m", "pos_gateway", *command], cwd=tmp_path, env=environment
    )
    until = time.monotonic() + PATIENCE
    with Connection(broker_url) as connection:
        while depth(connection, "orders") < 150:
            assert time.monotonic() < until and process.poll() is None
            time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    [run] = kim.store.runs(10)
    assert run.state is RunState.RUNNING and 0 < run.done < MANY
    with pytest.raises(AdminError, match=r"run 1 of kim .* is at work already"):
        kim.run(run)
    expire(books)
    assert kim.store.run(run.id).is_interrupted
    # It would take minutes: the rest is stopped, and discarded instead.
    resumed = kim.run(run, is_stopped=lambda: kim.store.run(run.id).done > run.done + 200)
    assert resumed.state is RunState.STOPPED
    again = audited(books, "dead.replay")
    assert sorted(again.values(), reverse=True)[1] == 1, "more than one letter was replayed twice"
    queued, left = ids(broker_url, "orders"), ids(broker_url, topology.DEAD_KEY)
    assert queued.total() - len(queued) <= 1, "more than one order is queued twice"
    assert {*queued} | {*left} == {*once(MANY)}, "a letter is lost"
    assert max(left.values()) == 1
    # Audited before it is published: the one at which it was killed may still be a letter.
    assert {*queued} <= {*again} and len({*again} - {*queued}) <= 1
    assert resumed.done in (len(queued), len(queued) - 1)  # one is on the queue, and still a letter


def test_letters_are_discarded(kim: Desk, books: Engine, broker_url: str) -> None:
    """Nothing is published for them."""
    publish(broker_url, letters(300, code="invalid_order"))
    done = kim.run(kim.preview(BulkAction.DISCARD))
    assert (done.state, done.done) == (RunState.DONE, 300)
    assert ids(broker_url, topology.DEAD_KEY) == Counter()
    assert audited(books, "dead.discard") == once(300)


def test_two_runs_at_once_are_one(kim: Desk, sam: Desk, broker_url: str) -> None:
    """A second operator, or a second click, is told whose run it is, and does nothing."""
    publish(broker_url, letters(40))
    mine, theirs = kim.preview(), sam.preview()
    refused: list[str] = []

    def interfere(*_: Any) -> None:
        if not refused:
            for run in (mine, theirs):
                with pytest.raises(AdminError, match=f"run {mine.id} of kim") as raised:
                    sam.run(run)
                refused.append(str(raised.value))
            with pytest.raises(AdminError, match=f"run {mine.id} of kim"):
                sam.preview()

    assert kim.run(mine, on_item=interfere).done == 40
    assert len(refused) == 2
    assert ids(broker_url, "orders") == once(40)
    late = sam.run(theirs)
    assert (late.state, late.done, late.gone) == (RunState.DONE, 0, 40)
    assert ids(broker_url, "orders") == once(40)
    with pytest.raises(AdminError, match="has ended"):
        kim.run(mine)


def test_a_letter_that_arrives_during_the_run_is_not_part_of_it(kim: Desk, broker_url: str) -> None:
    """Not even that of an order which was replayed, and failed again within the same second."""
    at = time.time()
    both = [dead_letter(an_order(f"o-{number}"), code="url", at=at) for number in range(2)]
    publish(broker_url, both)
    run = kim.preview()
    another = dead_letter(an_order("o-7"), code="url")
    arrived: list[Any] = []

    def arrives(*_: Any) -> None:
        if not arrived:
            arrived.append(True)
            publish(broker_url, [both[0], another], is_idle=False)

    done = kim.run(run, on_item=arrives)
    assert (done.state, done.done, done.gone) == (RunState.DONE, 2, 0)
    assert ids(broker_url, "orders") == Counter({"o-0": 1, "o-1": 1})
    assert ids(broker_url, topology.DEAD_KEY) == Counter({"o-0": 1, "o-7": 1})


def test_what_another_operator_replays_by_hand_meanwhile_is_gone(
    kim: Desk, broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run holds a few letters only, so the other operator gets that one."""
    monkeypatch.setattr(letter_work, "FIRST_WINDOW", 4)
    publish(broker_url, letters(30))
    run = kim.preview()
    taken: list[str] = []

    def by_hand(*_: Any) -> None:
        if not taken:
            with Connection(broker_url) as connection, connection.channel() as channel:
                message = channel.basic_get(topology.DEAD_KEY)
                taken.append(message.properties["message_id"])
                channel.basic_ack(message.delivery_tag)

    done = kim.run(run, on_item=by_hand)
    assert (done.state, done.done, done.gone) == (RunState.DONE, 29, 1)
    assert ids(broker_url, "orders") == once(30) - Counter(taken)


def test_letters_that_another_consumer_holds_are_not_gone(
    kim: Desk, broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run stops and says so; once they are back it is resumed."""
    monkeypatch.setattr(letter_work, "HINDERED", 3)
    publish(broker_url, letters(20))
    run = kim.preview()
    with DeadLetterQueue(broker_url) as held:
        next(iter(held))
        with pytest.raises(AdminError, match="another consumer"):
            kim.run(run)
    stopped = kim.store.run(run.id)
    assert (stopped.state, stopped.done, stopped.left) == (RunState.STOPPED, 0, 20)
    assert stopped.problem is not None and "another consumer" in stopped.problem
    assert kim.run(run).done == 20
    assert ids(broker_url, "orders") == once(20)


def test_a_run_goes_on_when_the_broker_is_back(
    kim: Desk, rabbitmq: RabbitMQ, broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "RECONNECT_AFTER", 0.05)
    publish(broker_url, letters(60))
    broken: list[Any] = []

    def breaks(*_: Any) -> None:
        broken.append(True)
        if len(broken) in (10, 30):
            rabbitmq.drop_connections()

    done = kim.run(kim.preview(), on_item=breaks)
    assert (done.state, done.left, done.gone) == (RunState.DONE, 0, 0)
    queued = ids(broker_url, "orders")
    assert {*queued} == {*once(60)}
    assert queued.total() <= 62  # those at which it was lost may be there twice
    assert ids(broker_url, topology.DEAD_KEY) == Counter()


def test_a_run_stops_when_the_broker_stays_away(
    kim: Desk, books: Engine, broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "RECONNECT_AFTER", 0.05)
    monkeypatch.setattr(runner, "BROKER_TIMEOUT", 0.5)
    publish(broker_url, letters(10))
    run = kim.preview()
    acted: list[Any] = []
    with Proxy(broker_url) as proxy:

        def breaks(*_: Any) -> None:
            acted.append(True)
            if len(acted) == 4:
                proxy.down()

        with pytest.raises(Exception, match="broker"):
            Desk(books, proxy.url, "kim").run(run, on_item=breaks)
    stopped = kim.store.run(run.id)
    assert stopped.state is RunState.STOPPED and stopped.problem is not None
    assert 0 < stopped.left < 10
    assert kim.run(run).left == 0
    assert {*ids(broker_url, "orders")} == {*once(10)}
    assert ids(broker_url, topology.DEAD_KEY) == Counter()


def test_a_stop_is_noticed_between_two_letters_and_the_run_resumed(
    kim: Desk, sam: Desk, broker_url: str
) -> None:
    publish(broker_url, letters(20))
    run = kim.preview()
    acted: list[Any] = []

    def stop(*_: Any) -> None:
        acted.append(True)
        if len(acted) == 5:
            assert sam.store.stop(run.id, operator="sam").said == "stopping"

    stopped = kim.run(run, on_item=stop)
    assert (stopped.state, stopped.done, stopped.left) == (RunState.STOPPED, 5, 15)
    assert stopped.stopped_by == "sam"
    assert sam.run(run).operator == "sam"
    assert ids(broker_url, "orders") == once(20)


def test_the_rate_is_kept(kim: Desk, broker_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(broker_url, letters(3))
    waits: list[float] = []
    monkeypatch.setattr(DeadLetterQueue, "wait", lambda _, seconds: waits.append(seconds) or time.sleep(seconds))  # fmt: skip
    began = time.monotonic()
    kim.run(kim.preview(options=BulkOptions(rate=2.0)))
    assert time.monotonic() - began >= 2 / 2
    assert waits


def test_a_pass_that_takes_long_is_followed_by_another(
    kim: Desk, broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RabbitMQ ends a consumer that holds a message for half an hour."""
    monkeypatch.setattr(letter_work, "PASS", 0.0)
    publish(broker_url, letters(8))
    publish(broker_url, letters(2, code="certificate", first=8))
    done = kim.run(kim.preview(filter_=BulkFilter(codes=("url",))))
    assert (done.done, done.gone) == (8, 0)
    assert ids(broker_url, topology.DEAD_KEY) == once(2, first=8)


def test_the_same_letter_twice_is_acted_on_twice(kim: Desk, broker_url: str) -> None:
    twin = dead_letter(an_order("o-1"), code="url")
    publish(broker_url, [twin, twin])
    assert kim.run(kim.preview(options=FAST)).done == 2
    assert ids(broker_url, topology.DEAD_KEY) == Counter()


def test_a_pass_that_ends_early_warns_of_nothing(
    kim: Desk, broker_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Letters that are on their way are the library's to ignore, and no line on a terminal each."""
    publish(broker_url, letters(1_000))
    with DeadLetterQueue(broker_url, first_window=700) as queue:
        next(iter(queue))
    assert caplog.messages == []
    assert ids(broker_url, topology.DEAD_KEY) == once(1_000)
