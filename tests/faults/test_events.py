"""The backend receives every event in one order, whatever happens to the publishers.

``pos-gateway events run`` in several processes, on a real database and broker, and a consumer that
records what arrives, in order.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import pytest
from kombu import Connection, Queue
from sqlalchemy import Engine, delete, func, insert, select

from pos_gateway.broker import topology
from pos_gateway.database.engine import open_database
from pos_gateway.database.schema import events, pipeline, workers
from pos_gateway.events.outbox import Outbox
from pos_gateway.events.pipeline import BATCH
from pos_gateway.ledger.ledger import Ledger
from pos_gateway.runtime.failpoints import OF_EVENTS
from testkit.faults.backend import connection_errors
from testkit.servers.proxy import Proxy
from tests.cli import preloaded
from tests.events.lab import Events, row
from tests.schema import make_tables
from tests.worker.lab import PATIENCE, WorkerProcess

#: Orders whose events are published one after the other.
ORDERS = 40


class Consumer:
    """Records what arrives, in order, and reconnects to its broker."""

    def __init__(self, broker_url: str) -> None:
        self._url = broker_url
        self._news = threading.Condition()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        #: Event ids and positions, duplicates included, in the order of their arrival.
        self.heard: list[tuple[str, int]] = []
        self.orders: dict[str, str] = {}
        self._positions: set[int] = set()

    def __enter__(self) -> Self:
        with Connection(self._url) as connection:
            topology.declare(connection)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def wait_for(self, count: int) -> None:
        """Wait until this many different positions have arrived."""
        until = time.monotonic() + PATIENCE
        with self._news:
            while len(self._positions) < count:
                assert time.monotonic() < until, f"{len(self._positions)} of {count} events came"
                self._news.wait(1.0)

    def _listen(self) -> None:
        while not self._stopping.is_set():
            try:
                with Connection(self._url, connect_timeout=2) as connection:
                    self._hear(connection)
            except connection_errors():
                self._stopping.wait(0.2)

    def _hear(self, connection: Connection) -> None:
        consumer = connection.Consumer(
            [topology.events_queue], on_message=self._heard, auto_declare=False, prefetch_count=1
        )
        consumer.qos(prefetch_count=500)
        with consumer:
            while not self._stopping.is_set():
                try:
                    connection.drain_events(timeout=0.2)
                except TimeoutError:
                    continue

    def _heard(self, message: Any) -> None:
        event = json.loads(message.body)
        with self._news:
            self.heard.append((event["id"], event["position"]))
            self.orders[event["id"]] = event["order_id"]
            self._positions.add(event["position"])
            self._news.notify_all()
        message.ack()


class EventsLab:
    """Writes events, runs processes that publish them, and a consumer that receives them."""

    def __init__(self, broker_url: str, database_url: str, folder: Path) -> None:
        self.broker_url = broker_url
        self.database_url = database_url
        self.engine: Engine = open_database(database_url)
        make_tables(self.engine)
        told = Events(self.engine)
        with self.engine.begin() as connection:
            for number in range(ORDERS):
                told.keep(connection, f"o{number}", f'{{"order_id":"o{number}"}}')
        self.consumer = Consumer(broker_url)
        self._folder = folder
        self._stack = ExitStack()
        self._processes = 0
        self._written = 0

    def __enter__(self) -> Self:
        self._stack.callback(self.engine.dispose)
        self._stack.enter_context(self.consumer)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def process(self, failpoints: str = "", **urls: str) -> WorkerProcess:
        """Start ``pos-gateway events run``; stopped at the end if it still runs."""
        self._processes += 1
        variables = {
            **os.environ,
            "POS_GATEWAY_BROKER_URL": self.broker_url,
            "POS_GATEWAY_DATABASE_URL": self.database_url,
            "POS_GATEWAY_METRICS_PORT": "0",
            "POS_GATEWAY_FAILPOINTS": failpoints,
            **{f"POS_GATEWAY_{name.upper()}": url for name, url in urls.items()},
        }
        log = self._folder / f"events-{self._processes}.log"
        started = WorkerProcess(preloaded.start(["events", "run"], variables, log), log)
        self._stack.callback(started.stop)
        # A paused process receives no other signal.
        self._stack.callback(started.send, signal.SIGCONT)
        return started

    def leader(self, failpoints: str = "", **urls: str) -> WorkerProcess:
        """Start a process that leads, because no other one runs."""
        process = self.process(failpoints, **urls)
        process.wait_for_log("events.leading")
        return process

    def standby(self, failpoints: str = "", **urls: str) -> WorkerProcess:
        """Start a process while another leads."""
        process = self.process(failpoints, **urls)
        process.wait_for_log("events.standing_by")
        return process

    def write(self, count: int) -> None:
        """Events of all orders in turn, an order's later ones behind its earlier ones."""
        values = [self._row(number) for number in range(self._written, self._written + count)]
        self._written += count
        with self.engine.begin() as connection:
            connection.execute(insert(events), values)

    @staticmethod
    def _row(number: int) -> dict[str, Any]:
        return row(f"o{number % ORDERS}", f"e{number:06}")

    def wait_for_a_death(self, processes: list[WorkerProcess]) -> None:
        """Wait until one of these is killed, and expire its lease, which would take seconds."""
        until = time.monotonic() + PATIENCE
        while not (dead := [each for each in processes if each.process.poll() is not None]):
            assert time.monotonic() < until, "none was killed"
            time.sleep(0.02)
        assert dead[0].wait() == -signal.SIGKILL, dead[0].log[-2000:]
        processes.remove(dead[0])
        with self.engine.begin() as connection:
            connection.execute(
                delete(workers).where(workers.c.id.like(f"%-{dead[0].process.pid}-%"))
            )

    def wait_until_confirmed(self, count: int) -> None:
        """Wait until the leader has recorded this many confirmed events."""
        outbox, until = Outbox(self.engine), time.monotonic() + PATIENCE
        while (published := outbox.look()[0].published) < count:
            assert time.monotonic() < until, f"{published} of {count} events are confirmed"
            time.sleep(0.02)
        outbox.close()

    @contextmanager
    def idle_leader(self) -> Iterator[None]:
        """A leader that renews its lease, and does nothing, while the block lasts."""
        ledger, outbox = Ledger(self.engine), Outbox(self.engine)
        ledger.start()
        ledger.catch_up()
        assert outbox.take(ledger.lease.id, outbox.look()[0].epoch) is not None
        try:
            yield
        finally:
            outbox.close()
            ledger.close()

    def published(self) -> int:
        """The published position in the database."""
        with self.engine.connect() as connection:
            return connection.scalar(select(pipeline.c.published)) or 0

    def judge(self, *, refused: bool = False) -> None:
        """Check that no event is lost, and that a consumer can rely on the positions.

        Args:
            refused: the broker has refused some. Events behind these may have arrived early, and
            arrive again.
        """
        with self.engine.connect() as connection:
            self.consumer.wait_for(connection.scalar(select(func.count(events.c.id))) or 0)
            columns = select(events.c.event_id, events.c.position)
            written = {each.event_id: each.position for each in connection.execute(columns)}
        heard = list(self.consumer.heard)
        positions: dict[str, int] = {}
        for event_id, position in heard:
            assert positions.setdefault(event_id, position) == position, f"{event_id} has two"
        assert positions == written, "an event is lost, or was told with another position"
        assert sorted(positions.values()) == list(range(1, len(written) + 1)), "a gap"
        acted = self._acted(heard) if refused else list(dict.fromkeys(heard))
        assert [position for _, position in acted] == list(range(1, len(written) + 1)), "order"
        of_orders: dict[str, list[str]] = {}
        for event_id, _ in acted:
            of_orders.setdefault(self.consumer.orders[event_id], []).append(event_id)
        for ids in of_orders.values():
            assert ids == sorted(ids), "an order's events are not in their order"

    @staticmethod
    def _acted(heard: list[tuple[str, int]]) -> list[tuple[str, int]]:
        """The events that a consumer acts on that takes the next position only."""
        acted: list[tuple[str, int]] = []
        for event_id, position in heard:
            if position == len(acted) + 1:
                acted.append((event_id, position))
        return acted


@pytest.fixture
def events_lab(broker_url: str, postgres_url: str, tmp_path: Path) -> Iterator[EventsLab]:
    with EventsLab(broker_url, postgres_url, tmp_path) as lab:
        yield lab


def test_leaders_killed_at_every_failpoint_lose_no_event(events_lab: EventsLab) -> None:
    """One after the other, each within a backlog; the last one finishes it."""
    events_lab.write(1500)
    places = sorted(OF_EVENTS - {"events.leased"})
    leaders = [events_lab.process(f"{place}=kill:2") for place in places]
    for _ in places:
        events_lab.wait_for_a_death(leaders)
        events_lab.write(600)
    assert events_lab.published() < 1500 + 600 * len(places)
    events_lab.process()
    events_lab.judge()


def test_a_paused_leader_that_goes_on_after_a_takeover_changes_nothing(
    events_lab: EventsLab,
) -> None:
    """It is paused within a batch, and publishes that one at most."""
    early = events_lab.leader("events.hydrated=stop:2")
    events_lab.write(2 * BATCH)
    early.wait_until_paused()
    late = events_lab.standby()
    late.wait_for_log("events.leading")
    events_lab.write(BATCH)
    events_lab.consumer.wait_for(3 * BATCH)
    early.send(signal.SIGCONT)
    early.wait_for_log("events.standing_by")
    events_lab.write(100)
    events_lab.judge()
    assert len(events_lab.consumer.heard) <= 4 * BATCH + 100


def test_helpers_killed_with_leased_chunks_delay_no_event(
    events_lab: EventsLab,
) -> None:
    with events_lab.idle_leader():
        events_lab.write(3000)
        helpers = [events_lab.process(f"events.leased=kill:{visit}") for visit in (1, 4)]
        while helpers:
            events_lab.wait_for_a_death(helpers)
    with events_lab.engine.connect() as connection:
        helped = connection.scalar(select(func.count(events.c.body)))
        leased = connection.scalar(select(func.count(events.c.helper)))
    assert 0 < helped < leased
    events_lab.process()
    events_lab.judge()


def test_an_event_committed_late_with_a_low_id_is_published_later(
    events_lab: EventsLab,
) -> None:
    events_lab.leader()
    with events_lab.engine.connect() as late:
        late.execute(insert(events).values(row("late", "late")))
        events_lab.write(700)
        events_lab.consumer.wait_for(700)
        late.commit()
    events_lab.judge()
    assert events_lab.consumer.heard[-1] == ("late", 701)


def test_a_batch_refused_halfway_keeps_the_order_of_events(
    events_lab: EventsLab,
) -> None:
    """A queue beside the backend's takes a few and refuses the others, until it is deleted."""
    with Connection(events_lab.broker_url) as connection:
        full = Queue(
            "full",
            topology.events_exchange,
            routing_key="#",
            queue_arguments={"x-max-length": 120, "x-overflow": "reject-publish"},
        ).bind(connection.channel())
        full.declare()
        leader = events_lab.leader()
        events_lab.write(700)
        leader.wait_for_log("events.refused")
        full.delete()
    events_lab.judge(refused=True)
    assert len(events_lab.consumer.heard) > 700


def test_a_leader_goes_on_when_a_vanished_broker_is_back(
    events_lab: EventsLab,
) -> None:
    with Proxy(events_lab.broker_url) as proxy:
        leader = events_lab.leader(broker_url=proxy.url)
        events_lab.write(600)
        events_lab.consumer.wait_for(600)
        # Otherwise it waits for a confirm, and stores nothing more.
        events_lab.wait_until_confirmed(600)
        proxy.timeout(stream="downstream")  # publishes are not confirmed from now on
        events_lab.write(600)
        events_lab.consumer.wait_for(600 + BATCH)
        proxy.down()
        leader.wait_for_log("events.broker_unavailable")
        events_lab.write(100)
        proxy.heal()
        events_lab.judge()
        assert len(events_lab.consumer.heard) > 1300
        proxy.timeout()
        leader.send(signal.SIGTERM)
        assert leader.wait() == 0
