"""Leaders, helpers and a broker that are paused, die and recover, in any order.

Three pods share one database. Each pod's leader and helper stop between any two of their steps, and
go on when the machine says so, or never. In every history, the consumer acts on every committed
event once, in the order of the positions, without a gap, and on those of one order in their order.
"""

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from greenlet import getcurrent, greenlet
from hypothesis import HealthCheck, Phase
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sqlalchemy import text

from pos_gateway.database.engine import open_database
from pos_gateway.domain.errors import LedgerUnavailable
from pos_gateway.ledger.lease import LEASE
from pos_gateway.runtime.vault import Vault
from tests.events.lab import Broker, Events, Pod
from tests.ledger.lab import Clock
from tests.schema import make_tables

PODS = 3
WHICH = st.integers(0, PODS - 1)
VAULT = Vault("cGlwZWxpbmUgcGlwZWxpbmUgcGlwZWxpbmUgcGlwZSE=")
#: What an order's row may have instead of the order.
PAYLOADS = st.sampled_from(['{"a":1}', '{"a":1}', None, "{", "x.y"])


@dataclass
class Place:
    """A pod, and the step that it is in."""

    pod: Pod
    leading: greenlet | None = None
    helping: greenlet | None = None
    #: The reply to its next write is lost.
    loses: bool = False


class Machine(RuleBasedStateMachine):
    template: Path | None = None

    @initialize(refuses=st.booleans())
    def begin(self, refuses: bool) -> None:
        memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
        self.folder = Path(tempfile.mkdtemp(prefix="events-", dir=memory))
        if Machine.template is None:
            Machine.template = Path(tempfile.mkdtemp(prefix="events-")) / "template.db"
            engine = open_database(f"sqlite:///{Machine.template}")
            make_tables(engine)
            engine.dispose()
        shutil.copy(Machine.template, self.folder / "ledger.db")
        self.engine = open_database(f"sqlite:///{self.folder / 'ledger.db'}")
        self.clock, self.broker = Clock(), Broker()
        self.recorded = Events(self.engine)
        self.refuses = refuses
        self.next_id = 1
        self.reserved: list[int] = []
        self.of_orders: dict[str, list[str]] = {}
        self.places = [Place(self.new_pod()) for _ in range(PODS)]
        for number in range(PODS):
            self.listen(number)

    def new_pod(self) -> Pod:
        return Pod(self.engine, self.clock, self.broker, batch=3, chunk=2, behind=2, vault=VAULT)

    def listen(self, which: int) -> None:
        place = self.places[which]

        def reach(name: str) -> None:
            if place.loses and name in ("assigned", "taken"):
                place.loses = False
                raise LedgerUnavailable("the answer was lost")
            if getcurrent().parent is not None:
                getcurrent().parent.switch()

        place.pod.at = reach

    # Events are committed in the order of their ids, or late.

    @rule(order=st.sampled_from("abc"), count=st.integers(1, 4), payload=PAYLOADS)
    def commit(self, order: str, count: int, payload: str | None) -> None:
        for _ in range(count):
            self.write(order, self.new_id(), payload)

    @rule()
    def begin_a_transaction(self) -> None:
        self.reserved.append(self.new_id())

    @precondition(lambda self: self.reserved)
    @rule(data=st.data())
    def commit_late(self, data: st.DataObject) -> None:
        row_id = self.reserved.pop(data.draw(st.integers(0, len(self.reserved) - 1)))
        self.write(f"late{row_id}", row_id, '{"a":1}')

    def new_id(self) -> int:
        self.next_id += 1
        return self.next_id - 1

    def write(self, order: str, row_id: int, payload: str | None) -> None:
        event_id = self.recorded.write_one(
            order, event_id=f"e{row_id}", id=row_id, order_payload=payload
        )
        self.of_orders.setdefault(order, []).append(event_id)

    # Pods.

    @rule(which=WHICH, places=st.integers(1, 40), beats=st.sampled_from([True, True, False]))
    def lead(self, which: int, places: int, beats: bool) -> None:
        place = self.places[which]
        if beats:
            place.pod.beat()
        place.pod.leadership._look_at = 0.0
        for _ in range(places):
            place.leading = self.go_on(place.leading, place.pod.pipeline.step)

    @rule(places=st.integers(20, 60))
    def all_go_on(self, places: int) -> None:
        for which in range(PODS):
            self.lead(which, places, beats=True)

    @rule(which=WHICH, places=st.integers(1, 3))
    def help_out(self, which: int, places: int) -> None:
        place = self.places[which]
        for _ in range(places):
            place.helping = self.go_on(place.helping, place.pod.helping.step)

    @staticmethod
    def go_on(running: greenlet | None, step: Callable[[], int]) -> greenlet | None:
        def work() -> None:
            with suppress(LedgerUnavailable):
                step()

        if running is None:
            running = greenlet(work)
        running.switch()
        return None if running.dead else running

    @rule(which=WHICH)
    def beat(self, which: int) -> None:
        self.places[which].pod.beat()

    @rule(seconds=st.sampled_from([0.5, 2.0, LEASE]), beating=st.sets(WHICH))
    def wait(self, seconds: float, beating: set[int]) -> None:
        for _ in range(4):
            self.clock.advance(seconds / 4)
            for which in beating:
                self.places[which].pod.beat()

    @rule(which=WHICH)
    def die(self, which: int) -> None:
        place = self.places[which]
        for each in (place.leading, place.helping):
            if each is not None:
                each.throw()
        place.pod.close()
        self.places[which] = Place(self.new_pod())
        self.listen(which)

    @rule(which=WHICH)
    def lose_an_answer(self, which: int) -> None:
        self.places[which].loses = True

    # The broker.

    @precondition(lambda self: self.refuses)
    @rule(after=st.integers(0, 5))
    def refuse(self, after: int) -> None:
        self.broker.refused.add(after)

    @precondition(lambda self: self.broker.bodies)
    @rule()
    def go_down(self) -> None:
        self.broker.is_down = True

    @rule(places=st.integers(1, 40))
    def come_up(self, places: int) -> None:
        self.broker.is_down = False
        self.all_go_on(places)

    @precondition(lambda self: self.broker.in_flight)
    @rule(data=st.data(), count=st.integers(1, 3))
    def arrive_late(self, data: st.DataObject, count: int) -> None:
        link = data.draw(st.sampled_from(range(len(self.broker.in_flight))))
        messages = self.broker.in_flight[link]
        for _ in range(min(count, len(messages))):
            self.broker.arrive(messages.pop(0))
        if not messages:
            del self.broker.in_flight[link]

    # What holds all the time.

    @invariant()
    def only_published_events_are_recorded_as_such(self) -> None:
        with self.engine.connect() as connection:
            row = connection.execute(text("select assigned, published from pipeline")).first()
            given = connection.execute(
                text("select count(position), max(position) from events")
            ).one()
        if row is not None:
            assert row.published <= len(self.broker.consumer.acted)
            assert (row.assigned, row.assigned or None) == tuple(given)

    @invariant()
    def first_copies_ascend(self) -> None:
        if not self.broker.was_refused:
            assert not self.broker.consumer.early

    def teardown(self) -> None:
        if not hasattr(self, "places"):
            return
        try:
            self.heal()
            consumer = self.broker.consumer
            assert sorted(consumer.ids) == sorted(self.recorded.ids)
            for order, ids in self.of_orders.items():
                assert [e["id"] for e in consumer.acted if e["order_id"] == order] == ids
            assert len({e["position"] for e in consumer.acted}) == len(self.recorded.ids)
        finally:
            self.engine.dispose()
            shutil.rmtree(self.folder)

    def heal(self) -> None:
        self.broker.is_down, self.broker.refused = False, set()
        for place in self.places:
            while place.leading is not None:
                place.leading = self.go_on(place.leading, place.pod.pipeline.step)
            while place.helping is not None:
                place.helping = self.go_on(place.helping, place.pod.helping.step)
            place.pod.at = lambda _: None
        for _ in range(int(2 * LEASE) + len(self.recorded.ids)):
            self.clock.advance(1.0)
            for place in self.places:
                place.pod.step()
        for messages in self.broker.in_flight:
            for message in messages:
                self.broker.arrive(message)
        for place in self.places:
            place.pod.close()


TestPipeline = Machine.TestCase
TestPipeline.settings = hypothesis_settings(
    max_examples=int(os.environ.get("EXAMPLES", "40")),
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=list(Phase) if "SHRINK" in os.environ else [Phase.generate],
    derandomize=bool(os.environ.get("HUNT")),
    database=None,
)
