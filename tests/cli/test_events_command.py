"""``pos-gateway events``: a copy of them, none taken from the backend; again; no longer; alone."""

import itertools
import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.request import urlopen

import pytest
from kombu import Connection

from pos_gateway.broker import topology
from pos_gateway.broker.message import Message
from pos_gateway.broker.publisher import Publisher
from pos_gateway.domain.outcome import Kind, Reason
from pos_gateway.events.archive import Archive
from pos_gateway.events.hydration import Hydration
from pos_gateway.events.outbox import Outbox, Row
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Key, State
from pos_gateway.reports.fleet_view import FleetView
from pos_gateway.runtime.vault import Vault
from testkit.servers.process import free_port
from testkit.servers.rabbitmq import RabbitMQ
from tests.cli.books import Books
from tests.cli.conftest import PATIENCE, Program, on_terminal, press_ctrl_c

Publish = Callable[..., None]


@pytest.fixture
def publish(broker_url: str) -> Iterator[Publish]:
    """Publishes events as workers do."""
    publisher = Publisher(broker_url)
    hydration = Hydration(Payloads(Vault()))
    positions = itertools.count(1)

    def publish(
        kind: Kind = Kind.ACCEPTED, *, order: str = "o-1", merchant: str = "m-1", event_id: str = ""
    ) -> None:
        position = next(positions)
        row = Row(
            id=position,
            position=position,
            event_id=event_id or f"e-{position}",
            kind=kind,
            merchant_id=merchant,
            order_id=order,
            occurred_at=time.time(),
            external_id="x-1",
            reason_code="why",
            reason_message="because \x1b[31m",
            attempts=2,
            body=None,
            payload="{}",
            provider=None,
            adapter="rest",
        )
        publisher.publish(hydration.message(row))

    yield publish
    publisher.close()


@pytest.fixture
def queue(broker_url: str) -> Iterator[Callable[[str], list[dict[str, Any]]]]:
    """Takes the events from a queue that gets all of them, and is declared now."""
    with Connection(broker_url) as connection:
        topology.declare(connection)
        channel = connection.channel()

        def take(name: str = "order-events") -> list[dict[str, Any]]:
            found = []
            while (message := channel.basic_get(name, no_ack=True)) is not None:
                found.append(json.loads(message.body))
            return found

        yield take


@contextmanager
def listening(program: Program, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """The command, once it would see an event."""
    process = program.start("events", "tail", *arguments)
    assert process.stderr is not None
    assert process.stderr.readline() == "listening; Ctrl-C ends\n"
    yield process


def told(books: Books, order_id: str, state: State = State.ACCEPTED, **options: Any) -> None:
    """An event that is published, as the pipeline has it."""
    books.order(order_id, state, **options)
    books.publish()


def events(process: "subprocess.Popen[str]", count: int) -> list[dict[str, Any]]:
    assert process.stdout is not None
    return [json.loads(process.stdout.readline()) for _ in range(count)]


def test_an_event_is_a_line_of_json_in_a_pipe_and_the_backend_gets_it_too(
    connected: Program, publish: Publish, broker_url: str
) -> None:
    with listening(connected) as tail:
        publish(Kind.REJECTED, order="o-7")
        [event] = events(tail, 1)
        assert (event["type"], event["order_id"], event["position"]) == ("order.rejected", "o-7", 1)
        assert press_ctrl_c(tail) == ("", "")
        assert tail.returncode == 0
    with Connection(broker_url) as connection:
        queue = topology.events_queue.bind(connection.channel())
        assert queue.queue_declare(passive=True)[1] == 1


def test_types_are_filtered_and_a_limit_ends_it(connected: Program, publish: Publish) -> None:
    types = ("--type", "failed", "--type", "order.in_doubt")
    with listening(connected, "--json", "--limit", "2", *types) as tail:
        for kind in (Kind.ACCEPTED, Kind.FAILED, Kind.PENDING, Kind.IN_DOUBT):
            publish(kind)
        assert [e["type"] for e in events(tail, 2)] == ["order.failed", "order.in_doubt"]
        assert tail.wait(PATIENCE) == 0


def test_merchants_and_orders_are_filtered(connected: Program, publish: Publish) -> None:
    merchants, orders = ("--merchant", "m-2", "--merchant", "m-3"), ("--order", "b", "--order", "c")
    with listening(connected, *merchants, *orders) as tail:
        for merchant, order in (("m-1", "b"), ("m-2", "a"), ("m-2", "b"), ("m-3", "c")):
            publish(merchant=merchant, order=order)
        found = [(event["merchant_id"], event["order_id"]) for event in events(tail, 2)]
        assert found == [("m-2", "b"), ("m-3", "c")]


def test_an_event_is_a_readable_line_on_a_terminal(connected: Program, books: Books) -> None:
    told(books, "o-7", State.REJECTED, reason=Reason("why", "because \x1b[31m"))
    shown = on_terminal(connected, "events", "tail", "-n", "1", "--limit", "1")
    assert "\x1b[31mrejected \x1b[0m  merchant m-1  order o-7  attempts 1" in shown
    plain = on_terminal(connected, "events", "tail", "-n", "1", "--limit", "1", NO_COLOR="1")
    assert "position 1" in plain
    assert "  why: because [31m" in plain
    assert "\x1b[31m" not in plain


def test_the_last_ones_come_first_and_none_of_them_twice(
    connected: Program, any_books: Books, publish: Publish
) -> None:
    for number in range(4):
        told(any_books, f"o-{number}", merchant_id="m-1" if number else "m-2")
    last = any_books.order_admin.events(Key("m-1", "o-3"))[0]["event_id"]
    with listening(connected, "-n", "2", "--merchant", "m-1") as tail:
        earlier = events(tail, 2)
        assert [event["order_id"] for event in earlier] == ["o-2", "o-3"]
        assert [event["position"] for event in earlier] == [3, 4]
        assert earlier[0]["order"]["order_id"] == "o-2"
        publish(order="o-3", event_id=last)  # as if it were published while that was read
        publish(order="o-4")
        publish(order="o-3", event_id=last)  # replayed
        assert [event["order_id"] for event in events(tail, 2)] == ["o-4", "o-3"]


def test_what_is_longer_ago_is_not_shown(connected: Program, books: Books) -> None:
    told(books, "old", at=time.time() - 7200)
    told(books, "new", State.FAILED)
    told(books, "newer")
    since = ("--since", "1h", "--type", "failed", "--limit", "1")
    done = connected.run("events", "tail", *since)
    assert [json.loads(line)["order_id"] for line in done.stdout.splitlines()] == ["new"]


def test_it_connects_again_after_a_lost_connection(
    connected: Program, publish: Publish, rabbitmq: RabbitMQ
) -> None:
    with listening(connected, "--json") as tail:
        rabbitmq.drop_connections()
        assert tail.stderr is not None
        assert "the broker is gone, events may be missed" in tail.stderr.readline()
        assert tail.stderr.readline() == "listening again\n"
        publish(order="after")
        assert events(tail, 1)[0]["order_id"] == "after"


def test_a_broker_that_is_down_is_one_sentence(program: Program) -> None:
    done = program.run("events", "tail")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("pos-gateway: cannot follow the events at amqp://")
    assert len(done.stderr.splitlines()) == 1


def test_a_type_that_is_none_is_refused(program: Program) -> None:
    done = program.run("events", "tail", "--type", "retry")
    assert done.returncode == 2
    assert "in_doubt" in done.stderr


Queue = Callable[..., list[dict[str, Any]]]


def test_events_are_published_again_as_they_were(
    connected: Program, any_books: Books, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pos_gateway.cli.events.BATCH", 2)
    for number in range(7):
        told(any_books, f"o-{number}")
    dry = connected.invoke("events", "replay", "--from", "2", "--to", "6", "--dry-run")
    assert (dry.exit_code, dry.stdout) == (0, "5 would be published again\n")
    assert (queue(), any_books.audit(Key("", ""))) == ([], [])
    done = connected.invoke("events", "replay", "--from", "2", "--to", "6")
    assert (done.exit_code, done.stdout) == (0, "5 published again\n")
    again = queue()
    assert [event["position"] for event in again] == [2, 3, 4, 5, 6]
    for event in again:
        [row] = any_books.order_admin.events(Key("m-1", event["order_id"]))
        assert (event["id"], event["type"]) == (row["event_id"], "order.accepted")
        assert event["order"]["order_id"] == event["order_id"]
    [line] = any_books.order_admin.audit(Key("", ""))
    assert (line["operator"], line["what"]) == ("kim", "events.replay")
    assert line["details"] == "positions 2 to 6"


def test_a_replay_that_is_interrupted_says_where_to_go_on(
    connected: Program, books: Books, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pos_gateway.cli.events.BATCH", 2)
    publish_batch, batches = Publisher.publish_batch, itertools.count(1)

    def interrupted(*arguments: Any, **named: Any) -> int:
        if next(batches) == 2:
            signal.raise_signal(signal.SIGINT)
        return publish_batch(*arguments, **named)

    monkeypatch.setattr(Publisher, "publish_batch", interrupted)
    for number in range(7):
        told(books, f"o-{number}")
    done = connected.invoke("events", "replay", "--from", "1", "--to", "7")
    assert (done.exit_code, done.stdout) == (130, "4 published again\n")
    assert "go on with --from 5" in done.stderr
    assert [event["position"] for event in queue()] == [1, 2, 3, 4]


def test_a_replay_shows_its_progress_on_a_terminal(
    connected: Program, books: Books, queue: Queue
) -> None:
    told(books, "o-1")
    shown = on_terminal(connected, "events", "replay", "--from", "1", "--to", "1")
    assert "100%" in shown
    assert "1 of 1" in shown


def test_events_are_published_again_to_one_queue_alone(
    connected: Program, books: Books, queue: Queue, broker_url: str
) -> None:
    told(books, "o-1")
    with Connection(broker_url) as connection, connection.channel() as channel:
        channel.queue_declare("audit", durable=True, auto_delete=False)
    done = connected.invoke("events", "replay", "--from", "1", "--to", "1", "--queue", "audit")
    assert done.exit_code == 0
    assert [event["order_id"] for event in queue("audit")] == ["o-1"]
    assert queue() == []
    done = connected.invoke("events", "replay", "--from", "1", "--to", "1", "--queue", "adit")
    assert done.exit_code == 1
    assert "no queue takes messages" in done.stderr
    assert "0 published again, go on with --from 1" in done.stderr


def test_what_is_pruned_of_a_range_is_said(
    connected: Program, any_books: Books, queue: Queue
) -> None:
    for number in range(4):
        told(any_books, f"o-{number}", at=time.time() - 3600 * (4 - number))
    dry = connected.invoke("events", "prune", "--older-than", "150m", "--dry-run")
    assert dry.stdout.startswith("2 events would be removed, from before 20")
    done = connected.invoke("events", "prune", "--older-than", "150m")
    assert done.stdout.startswith("2 events removed")
    done = connected.invoke("events", "replay", "--from", "1", "--to", "4")
    assert "2 of the positions 1 to 4 are pruned (the lowest kept is 3)" in done.stderr
    assert [event["position"] for event in queue()] == [3, 4]
    done = connected.invoke("events", "replay", "--from", "1", "--to", "2")
    assert (done.exit_code, queue()) == (1, [])
    assert "there is nothing to publish" in done.stderr


def test_what_is_pruned_meanwhile_is_said_and_nothing_was_broken_off(
    connected: Program, books: Books, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        told(books, f"o-{number}", at=time.time() - 3600 * (4 - number))
    count = Archive.count

    def counted(archive: Archive, first: int, last: int) -> int:
        found = count(archive, first, last)
        connected.invoke("events", "prune", "--older-than", "150m")
        return found

    monkeypatch.setattr(Archive, "count", counted)
    done = connected.invoke("events", "replay", "--from", "1", "--to", "4")
    assert (done.exit_code, done.stdout) == (0, "2 published again\n")
    assert done.stderr.splitlines() == ["2 were pruned meanwhile"]
    assert [event["position"] for event in queue()] == [3, 4]


def test_a_replay_goes_on_behind_a_batch_that_was_pruned_as_it_was_read(
    connected: Program, books: Books, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        told(books, f"o-{number}", at=time.time() - 3600 * (4 - number))
    hydrated = Archive._hydrated

    def pruned_first(archive: Archive, ids: Sequence[int]) -> list[tuple[int, Message]]:
        connected.invoke("events", "prune", "--older-than", "150m")
        return hydrated(archive, ids)

    monkeypatch.setattr(Archive, "_hydrated", pruned_first)
    monkeypatch.setattr("pos_gateway.cli.events.BATCH", 2)
    done = connected.invoke("events", "replay", "--from", "1", "--to", "4")
    assert (done.exit_code, done.stdout) == (0, "2 published again\n")
    assert done.stderr.splitlines() == ["2 were pruned meanwhile"]
    assert [event["position"] for event in queue()] == [3, 4]


def test_what_is_not_published_is_neither_pruned_nor_replayed(
    connected: Program, books: Books, queue: Queue
) -> None:
    """To replay it would be to publish it out of its order."""
    books.order("o-1", State.ACCEPTED, at=1.0)
    done = connected.invoke("events", "replay", "--from", "1", "--to", "1")
    assert (done.exit_code, "no event is published yet" in done.stderr) == (1, True)
    books.publish()
    books.order("o-2", State.ACCEPTED, at=2.0)
    outbox = Outbox(books.engine)
    term = outbox.take("leader", outbox.look()[0].epoch)
    assert term is not None
    assert outbox.assign(term, 1) is not None
    outbox.close()
    done = connected.invoke("events", "replay", "--from", "1", "--to", "2")
    assert (done.exit_code, queue()) == (1, [])
    assert "--to 2: events are published up to position 1" in done.stderr
    done = connected.invoke("events", "prune", "--older-than", "1s")
    assert done.stdout.startswith("1 events removed")
    assert books.told(Key("m-1", "o-2")) == ["accepted"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--from", "3", "--to", "2"], "--from 3 is after --to 2"),
        (["--from", "0", "--to", "2"], "0 is not in the range 1<=x<="),
        (["--from", "1"], "Missing option '--to'"),
    ],
)
def test_a_range_that_makes_no_sense_is_refused(
    program: Program, arguments: list[str], why: str
) -> None:
    done = program.invoke("events", "replay", *arguments)
    assert (done.exit_code, why in done.stderr) == (2, True)


def test_a_replay_without_a_broker_is_one_sentence(program: Program, books: Books) -> None:
    told(books, "o-1")
    done = program.invoke("events", "replay", "--from", "1", "--to", "1")
    assert done.exit_code == 1
    assert len(done.stderr.splitlines()) == 1
    assert books.audit(Key("", "")) == []


class Runs:
    """``events run`` in processes of their own, and what they log."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def start(self) -> "subprocess.Popen[str]":
        return self._program.start("events", "run")

    def until(self, process: "subprocess.Popen[str]", event: str) -> None:
        """Read its log up to this."""
        assert process.stderr is not None
        for line in process.stderr:
            if json.loads(line)["event"] == event:
                return
        raise AssertionError(f"it ended without {event}")

    def end(self, process: "subprocess.Popen[str]", how: int) -> list[str]:
        """Send it a signal; what it logs until it has ended."""
        process.send_signal(how)
        _, log = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, log
        return [json.loads(line)["event"] for line in log.splitlines()]


def consumed(broker_url: str, count: int) -> list[int]:
    """The positions of the next events in the backend's queue, once they are there."""
    found: list[int] = []
    with Connection(broker_url) as connection:
        consumer = connection.Consumer(
            [topology.events_queue],
            no_ack=True,
            callbacks=[lambda body, _: found.append(body["position"])],
        )
        with consumer:
            while len(found) < count:
                connection.drain_events(timeout=PATIENCE)
    return found


def test_one_publishes_and_the_next_one_does_when_it_is_told_to_stop(
    connected: Program, any_books: Books, broker_url: str
) -> None:
    runs = Runs(connected)
    for number in range(3):
        any_books.order(f"o-{number}", State.ACCEPTED)
    one = runs.start()
    runs.until(one, "events.leading")
    assert consumed(broker_url, 3) == [1, 2, 3]
    until = (
        time.monotonic() + PATIENCE
    )  # beside synchronous workers this process alone asks the broker
    while (fleet := FleetView(any_books.engine).now()).unknown_queues or fleet.consumers is None:
        assert time.monotonic() < until, "it has not reported the queues"
        time.sleep(0.05)
    two = runs.start()
    runs.until(two, "events.standing_by")
    assert runs.end(one, signal.SIGTERM) == []
    runs.until(two, "events.leading")
    any_books.order("o-3", State.ACCEPTED)
    assert consumed(broker_url, 1) == [4]
    assert runs.end(two, signal.SIGINT) == []


def test_it_begins_without_a_broker_and_goes_on_when_there_is_one(
    connected: Program, books: Books, rabbitmq: RabbitMQ, broker_url: str
) -> None:
    later = connected.settings["POS_GATEWAY_BROKER_URL"] = f"{broker_url}-later"
    runs = Runs(connected)
    one = runs.start()
    runs.until(one, "broker.unavailable")
    books.order("o-1", State.ACCEPTED)
    runs.until(one, "events.broker_unavailable")
    rabbitmq.add_vhost(later.rpartition("/")[2])
    assert consumed(later, 1) == [1]
    one.send_signal(signal.SIGTERM)
    assert one.wait(PATIENCE) == 0
    rabbitmq.delete_vhost(later)


def test_metrics_are_served(connected: Program, books: Books) -> None:
    port = free_port()
    connected.settings["POS_GATEWAY_METRICS_PORT"] = str(port)
    runs = Runs(connected)
    one = runs.start()
    runs.until(one, "events.leading")
    with urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
        assert b"pos_gateway_event_seconds" in reply.read()
    assert runs.end(one, signal.SIGTERM) == []


def test_a_database_without_tables_is_one_sentence(program: Program) -> None:
    done = program.run("events", "run")
    assert done.returncode == 1
    assert done.stderr.endswith("run: pos-gateway db upgrade\n")
    assert len(done.stderr.splitlines()) == 1
