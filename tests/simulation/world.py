"""One run: a seed's backend, workers and troubles, until everything has ended."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from math import inf
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import structlog
from celery.worker.state import reset_state
from greenlet import GreenletExit

from pos_gateway.adapters.steps import steps_of
from pos_gateway.attempt import poison
from pos_gateway.broker import wire
from pos_gateway.broker.message import Message
from pos_gateway.domain import retry
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import CancelRequest, Order
from pos_gateway.ledger import commits, lease, ledger
from pos_gateway.runtime import failpoints
from tests.simulation import invariants
from tests.simulation.adapters import ADAPTERS
from tests.simulation.broker import Broker, Publisher
from tests.simulation.callbacks import Callbacks
from tests.simulation.clock import SKEW, MachineClock
from tests.simulation.database import Database
from tests.simulation.operators import Operators
from tests.simulation.pos import Pos, Record, Transport
from tests.simulation.scheduler import Process, Scheduler
from tests.simulation.stepped_pos import SteppedPos
from tests.simulation.threads import Threading, Time
from tests.simulation.worker import Directory, Worker

#: Seconds in which orders are submitted, and in which there is trouble; and those after which
#: everything must have ended.
SUBMITTED, STORM, LIMIT = 20.0, 45.0, 5400.0
#: Troubles at a switch point, and how often in a thousand times each happens.
TROUBLES = {
    "kill": 5,
    "stop": 2,
    "pause": 6,
    "cut": 5,
    "green": 8,
    "database": 5,
    "broker": 2,
    "clock": 10,
    "confirm": 60,
    "operator": 80,
}
#: How often at most in a run.
MOST = 6
#: How often operators look for rows of broken-off commands: each command may break off, again.
SWEEPS = 8


@dataclass(frozen=True)
class Report:
    seed: int
    violations: list[str]
    trace: list[tuple[float, str, str]]
    steps: int

    def text(self) -> str:
        lines = [f"{at:10.3f}  {who:<24} {what}" for at, who, what in self.trace]
        return "\n".join(lines + [f"VIOLATED: {each}" for each in self.violations])


class World:
    """A run and all its parts."""

    def __init__(self, seed: int) -> None:
        self.scheduler = scheduler = Scheduler(seed)
        random = scheduler.random
        #: Whether only POSes and chance decide the order of events.
        self.is_calm = random.random() < 0.15
        self.troubles = {name for name in TROUBLES if random.random() < 0.5 and not self.is_calm}
        self._happened = dict.fromkeys(TROUBLES, 0)
        self.database = Database(scheduler)
        self.broker = Broker(scheduler)
        trouble = random.choice((0, 0.2, 0.5, 0.8))
        self.callbacks = Callbacks(self, seed)
        self.poses: dict[str, Pos] = {}
        #: Each merchant's records, with the time from which on they hold.
        self.merchants: dict[str, list[tuple[float, Merchant]]] = {}
        for name, adapter in ADAPTERS.items():
            for host in (name, f"{name}-2"):
                is_slow = random.random() < 0.3
                kind = Pos if len(steps_of(adapter)) == 1 else SteppedPos
                self.poses[host] = kind(scheduler, adapter, trouble, is_slow, self.callbacks)
            merchant = Merchant(id=name, adapter=name, base_url=f"https://{name}/pos")
            self.merchants[name] = [(-inf, merchant)]
        self.workers: list[Worker] = []
        self.submitted: dict[str, Order] = {}
        #: Cancel requests: when each was stored, and its deadline (Unix time).
        self.cancelled: dict[str, list[tuple[float, float]]] = {}
        #: When orders were reopened.
        self.reopened: dict[str, float] = {}
        #: Poison orders: each kills the worker that sends it.
        self.poison: set[str] = set()
        self.poisoned: Counter[Any] = Counter()
        #: Violations seen during the run.
        self.violations: list[str] = []
        self.transport = Transport(
            scheduler, self.database, self.poses, self._is_over_for_some, self.violations.append
        )
        self._numbers = count(1)
        self._backend = Process("backend")
        self._unsent = 0
        self._set_back = 0.0
        self.is_storm = True
        self.operators = Operators(self, seed)

    def play(self) -> bool:
        """Run it; whether everything ended."""
        random = self.scheduler.random
        self._twice = random.random() < 0.6 and not self.is_calm
        for _ in range(random.choice((1, 2, 3))):
            self._start_worker()
        for number in range(random.randint(2, 10)):
            self._place(f"o{number}")
        if random.random() < 0.1 and not self.is_calm:
            self.poison.add("o0")
        self.operators.plan()
        self.scheduler.at_point = self._trouble
        self.scheduler.spawn(self._backend, "weather", self._calm_down)
        for _ in range(SWEEPS):
            if not self.scheduler.run(self._is_over, self._latest):
                return False
            if self.violations or not self.operators.sweep():
                return True
        return self.scheduler.run(self._is_over, self._latest)

    def _latest(self) -> float:
        return LIMIT + SKEW + self._set_back + self.operators.until

    def _is_over(self) -> bool:
        is_quiet = not (self._unsent or self.operators.busy or self.callbacks.open)
        is_quiet = is_quiet and self.broker.is_empty
        is_done = is_quiet and not self.is_storm and not self._is_claimed
        return is_done or bool(self.violations)

    @property
    def _is_claimed(self) -> bool:
        """Whether a worker has claims for which no message arrives: to release, or of an attempt whose
        message another worker has acknowledged meanwhile.
        """
        alive = [each for each in self.workers if each.process.is_alive]
        return any(
            each.delivering or (each.ledger is not None and each.ledger._abandoned)
            for each in alive
        )

    def records(self, order_id: str) -> list[Record]:
        """The POSes' records of an order, at all of its merchant's endpoints."""
        return [record for pos in self.poses.values() for record in pos.of(order_id)]

    def _is_over_for_some(self, lease_id: str) -> bool:
        """Whether a worker that read the leases now would find this one expired."""
        rows = self.database.rows("select id, beat, lease from workers where id = ?", lease_id)
        if not rows:
            return True
        for worker in self.workers:
            if worker.process.is_alive and worker.ledger is not None:
                seen = worker.ledger._peers._seen.get(lease_id)
                if seen is None or seen.beat != rows[0][1]:
                    continue
                if worker.clock.monotonic() - seen.since >= seen.seconds:
                    return True
        return False

    def _start_worker(self) -> None:
        scheduler, random = self.scheduler, self.scheduler.random
        publisher = Publisher(self.broker, lambda: self.happens("confirm"))
        is_odd = "clock" in self.troubles
        clock = MachineClock(
            scheduler,
            zero=random.uniform(0, 1e6),
            skew=random.uniform(-SKEW, SKEW) if is_odd else 0.0,
            stands_still=random.random() < 0.3,
        )
        self.workers.append(
            Worker(
                f"worker-{next(self._numbers)}",
                scheduler=scheduler,
                broker=self.broker,
                database=self.database,
                directory=Directory(scheduler, self.merchants),
                transport=self.transport,
                publisher=publisher,
                clock=clock,
                secret_keys=self.operators.secret_keys(),
            )
        )

    def _place(self, order_id: str) -> None:
        """The backend submits an order at some time, perhaps twice, and perhaps cancels it."""
        random, now = self.scheduler.random, self.scheduler.now()
        merchant_id = random.choice([*self.merchants, "queryable"])
        at = random.uniform(0, SUBMITTED)
        placed = now + timedelta(seconds=at)
        patience = random.choice((random.uniform(3, 20), random.uniform(60, 600)))
        order = Order.parse(
            {
                "order_id": order_id,
                "merchant_id": merchant_id,
                "placed_at": placed.isoformat(),
                "deliver_by": (placed + timedelta(seconds=patience)).isoformat(),
                "currency": "EUR",
                "items": [{"sku": "b", "name": "Burger", "quantity": 1, "unit_price": 850}],
                "total": 850,
            }
        )
        self.submitted[order_id] = order
        submit = wire.submit_message(order_id, order.to_json(), routing_key="orders")
        self._send(at, submit)
        if self._twice and random.random() < 0.5:
            self._send(at + random.choice((0, random.uniform(0, 15))), submit)
        if random.random() < 0.4:
            when = at + random.choice((random.uniform(-2, 0.2), random.uniform(0, 4), 20))
            until = now + timedelta(seconds=when + random.choice((5, 120)))
            cancel = CancelRequest(order_id=order_id, merchant_id=merchant_id, deliver_by=until)
            message = wire.cancel_message(order_id, cancel.to_json(), routing_key="orders")
            for _ in range(1 + (self._twice and random.random() < 0.2)):
                self._send(max(0.0, when), message)
            self.note_cancel_request(cancel, max(0.0, when))

    def note_cancel_request(self, request: CancelRequest, at: float) -> None:
        """Record that it is to be cancelled."""
        wishes = self.cancelled.setdefault(request.order_id, [])
        wishes.append((at, request.deliver_by.timestamp()))

    def _send(self, at: float, message: Message) -> None:
        def send() -> None:
            self.scheduler.sleep(at)
            while self.broker.is_away:
                self.scheduler.sleep(0.5)
            self.broker.store(message)
            self._unsent -= 1

        self._unsent += 1
        self.scheduler.spawn(self._backend, "backend", send)

    def _calm_down(self) -> None:
        self.scheduler.sleep(STORM)
        self.is_storm = False
        self.scheduler.say("CALM from now on")
        for pos in self.poses.values():
            pos.has_trouble = False

    # Troubles.

    def happens(self, trouble: str) -> bool:
        is_time = self.is_storm or trouble == "operator"
        if trouble not in self.troubles or not is_time:
            return False
        if self.scheduler.random.random() * 1000 >= TROUBLES[trouble]:
            return False
        self._happened[trouble] += 1
        return self._happened[trouble] <= MOST

    def _trouble(self, place: str) -> None:
        """What may happen at a switch point."""
        scheduler, random = self.scheduler, self.scheduler.random
        here = scheduler.current.process
        if any(command.process is here for command in self.operators.running):
            if self.happens("operator"):
                self._later(0.0, lambda: self.operators.killed(here))
                scheduler.kill(here)
            if self.happens("pause"):
                scheduler.pause(here, random.uniform(1, 60))
            return
        worker = next((w for w in self.workers if w.process is here), None)
        if worker is None:
            return
        if place == "byte.first" and any(
            f"submit {order_id}" in scheduler.current.name for order_id in self.poison
        ):
            scheduler.say("POISON")
            # Whatever an operator does to it, it starts anew.
            told = "select count(*) from audit where order_id = 'o0'"
            self.poisoned[self.database.rows(told)[0]] += self._has(worker, "o0")
            if max(self.poisoned.values()) > poison.POISONOUS:
                self.violations.append(f"o0 has killed {self.poisoned} workers")
            self._kill(worker)
        if not self.is_storm:
            return
        if self.happens("database"):
            scheduler.say("DATABASE away")
            self.database.away_until = scheduler.time + random.uniform(0.2, 12)
        if self.happens("broker"):
            scheduler.say("BROKER away")
            self.broker.go_away(random.uniform(0.2, 12))
        # Stepped by just as much as it stood still, a clock would not show that.
        if not worker.clock.stands_still and self.happens("clock"):
            seconds = random.choice((-300.0, -20.0, 20.0, 3600.0))
            scheduler.say(f"CLOCK stepped by {seconds:.0f} s")
            worker.clock.step(seconds)
            self._set_back -= min(0.0, seconds)  # every order expires later by this much
        if self.happens("cut"):
            scheduler.say("CUT from the broker")
            self.broker.cut(worker.process)
        if self.happens("pause"):
            seconds = random.choice((random.uniform(0.5, 6), random.uniform(6, 25)))
            if random.random() < 0.5:
                self._later(random.uniform(0, seconds), lambda: self.broker.cut(worker.process))
            worker.clock.suspend(seconds)
            scheduler.pause(worker.process, seconds)
        if self.happens("green") and worker.delivering:
            scheduler.throw(random.choice(worker.delivering), GreenletExit())
            scheduler.sleep(0)
        if self.happens("stop"):
            scheduler.say("STOP")
            worker.stop()
            self._later(random.uniform(0.1, 5), self._start_worker)
        if self.happens("kill"):
            self._kill(worker)

    def _has(self, worker: Worker, order_id: str) -> bool:
        """Whether the order is under the worker's current lease.

        If not, the worker was paused and goes on under another: nothing would have been sent, and
        its death then is not the order's.
        """
        found = self.database.rows(
            "select owner from orders where order_id = ? and action = 'submit'", order_id
        )
        return worker.ledger is not None and found == [(worker.ledger.lease.id,)]

    def _kill(self, worker: Worker) -> None:
        random = self.scheduler.random
        self._later(0.0, lambda: self.broker.cut(worker.process))
        self._later(random.uniform(0.1, 12), self._start_worker)
        self.scheduler.kill(worker.process)

    def _later(self, seconds: float, do: Any) -> None:
        def wait() -> None:
            self.scheduler.sleep(seconds)
            do()

        self.scheduler.spawn(self._backend, "later", wait)


def run(seed: int) -> Report:
    """Play a seed, and check its invariants."""
    crashes: list[str] = []
    with _virtual(World(seed), crashes) as world:
        came_to_its_end = world.play()
        violations = [*world.violations, *world.scheduler.crashes, *crashes]
        if not came_to_its_end:
            violations.append("it does not come to its end")
        elif not violations:
            violations += invariants.violated(world)
        return Report(seed, violations, world.scheduler.trace, world.scheduler.steps)


@contextmanager
def _virtual(world: World, crashes: list[str]) -> Iterator[World]:
    """The product's modules take time, threads and chance from the world."""
    scheduler = world.scheduler
    threading, ids = Threading(scheduler), count(1)

    def note(_logger: object, _method: str, said: Any) -> Any:
        if said["event"].endswith(".crashed"):
            crashes.append(f"{said['event']}: {said}")
        raise structlog.DropEvent

    with ExitStack() as stack:
        stack.callback(world.database.close)
        for module in (commits, ledger, poison):
            stack.enter_context(patch.object(module, "threading", threading))
        stack.enter_context(patch.object(commits, "time", Time(scheduler)))
        chance = SimpleNamespace(uniform=scheduler.random.uniform)
        stack.enter_context(patch.object(retry, "random", chance))
        stack.enter_context(patch.object(lease, "_new_id", lambda: f"lease-{next(ids)}"))
        before = structlog.get_config()
        structlog.configure(processors=[note], cache_logger_on_first_use=False)
        stack.callback(lambda: structlog.configure(**before))
        stack.callback(failpoints.disarm)
        for name in failpoints.NAMES:
            failpoints.arm(name, lambda name=name: scheduler.point(name))
        stack.callback(reset_state)  # requests of killed workers, and with them their world
        stack.enter_context(scheduler.cleaning_up())
        yield world
