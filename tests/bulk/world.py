"""A broker in memory, and processes that run bulk runs and are killed, cut off and overtaken.

Everything happens at numbered points; a plan says what goes wrong at which.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

from sqlalchemy import Engine, update

from pos_gateway.administration.bulk.letters import LetterWork
from pos_gateway.administration.bulk.run import BulkAction, BulkRun
from pos_gateway.administration.bulk.runner import BulkRunner, Watcher
from pos_gateway.administration.bulk.store import BulkStore
from pos_gateway.administration.refusal import Refusal
from pos_gateway.broker.dead_letter import DeadLetter
from pos_gateway.broker.dead_letter_queue import Incomplete
from pos_gateway.database.schema import bulk_runs
from pos_gateway.domain.errors import AdminError, BrokerUnavailable

#: What may go wrong at a point.
MISHAPS = ("kill", "lose connection", "overtake", "stop", "by hand", "arrive again", "arrive")


class Killed(BaseException):
    """The process does nothing after it, not even in its ``finally``."""


def a_letter(letter_id: str, tag: int) -> DeadLetter:
    """A letter; all that have one id have one digest. Those whose id begins with r are refused."""
    return DeadLetter(letter_id, letter_id, "m", "url", "x", 1.0, {}, b"", tag, None)


class World:
    """One broker, one database, one run, and one plan."""

    def __init__(self, engine: Engine, ids: list[str], plan: Mapping[int, str]) -> None:
        self.engine = engine
        self.plan: dict[int, str] = {}
        self._plan = dict(plan)
        self.points = 0
        self.ready = [a_letter(each, number) for number, each in enumerate(ids)]
        self.queues: list[Queue] = []
        #: How often each id was published; letters removed by hand; those that arrived later.
        self.published: Counter[str] = Counter()
        self.by_hand: Counter[str] = Counter()
        self.arrived: Counter[str] = Counter()
        #: Kills and lost connections: after each, one letter may be acted on again.
        self.faults = 0
        self._tags = 1_000
        self._run: BulkRun | None = None

    @property
    def store(self) -> BulkStore:
        return BulkStore(self.engine)

    def left(self) -> Counter[str]:
        """The letters in the queue."""
        return Counter(each.id for each in self.ready)

    def prepare(self) -> BulkRun:
        """The run, previewed."""
        self.expire()
        work = self._work(Process(self))
        previews = self.store.previews
        run_id = previews.prepare(BulkAction.REPLAY, operator="kim", filter_={}, options={})
        previews.fill(run_id, filter(None, work.found()))
        self._run = self.store.run(run_id)
        self.plan, self.points = self._plan, 0
        return self._run

    def go(self, operator: str = "kim") -> BulkRun | None:
        """Have a process run the run, or resume it; None: it ended otherwise than by itself."""
        assert self._run is not None
        process = Process(self)
        try:
            claim = self.store.take(self._run.id, operator=operator)
            watcher = Watcher(is_stopped=lambda: process.is_stopped)
            store: Any = process
            work = self._work(process)
            return BulkRunner(store, claim, work, rate=1e6, watcher=watcher).run()
        except (Killed, AdminError, BrokerUnavailable):
            return None

    def expire(self) -> None:
        """Every lease is over."""
        with self.engine.begin() as connection:
            connection.execute(update(bulk_runs).values(lease_until=0.0))

    def point(self, process: "Process", queue: "Queue | None" = None) -> None:
        """Something may go wrong here."""
        process.require_alive()
        self.points += 1
        match self.plan.pop(self.points, None):
            case "kill":
                self.faults += 1
                process.is_dead = True
                raise Killed
            case "lose connection" if queue is not None and not queue.is_lost:
                self.faults += 1
                queue.lose()
            case "overtake":  # it was paused for longer than its lease
                self.faults += 1
                self.expire()
                self.go("sam")
            case "stop":
                process.is_stopped = True
            case "by hand" if self.ready:
                self.by_hand[self.ready.pop(0).id] += 1
            case "arrive again" if self.published:
                self._arrive(next(iter(self.published)))
            case "arrive":
                self._arrive("new")

    def _arrive(self, letter_id: str) -> None:
        self._tags += 1
        self.arrived[letter_id] += 1
        self.ready.append(a_letter(letter_id, self._tags))

    def _work(self, process: "Process") -> LetterWork:
        def acting(
            queue: Any, _operator: str, _note: str
        ) -> Callable[[DeadLetter], Refusal | None]:
            def act(letter: DeadLetter) -> Refusal | None:
                if letter.id.startswith("x"):  # it has changed since the preview
                    return Refusal("changed", "changed")
                self.point(process, queue)
                self.published[letter.id] += 1
                self.point(process, queue)
                queue.acknowledge(letter)
                self.point(process, queue)
                return None

            return act

        def judge(letter: DeadLetter) -> Refusal | None:
            return Refusal("no", "no") if letter.id.startswith("r") else None

        def queue(*_: Any, **__: Any) -> Any:
            return Queue(self, process)

        made: Any = queue
        return LetterWork("", is_selected=lambda _: True, judge=judge, acting=acting, queue=made)


class Process:
    """A process, and its view of the store: once it is dead it writes nothing."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.is_dead = self.is_stopped = False

    def require_alive(self) -> None:
        if self.is_dead:
            raise Killed

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._world.store, name)

        def call(*arguments: Any, **named: Any) -> Any:
            self._world.point(self)
            result = method(*arguments, **named)
            self._world.point(self)
            return result

        return call


class Queue:
    """The queue's letters, as one consumer of a process gets them."""

    def __init__(self, world: World, process: Process) -> None:
        self._world, self._process = world, process
        self._held: dict[int, DeadLetter] = {}
        self.is_lost = False

    def __enter__(self) -> Self:
        self._count = len(self._world.ready)
        return self

    def __exit__(self, *_: object) -> None:
        self.lose()

    def __iter__(self) -> Iterator[DeadLetter]:
        self._world.queues.append(self)
        for _ in range(self._count):
            self._require_connection()
            if not self._world.ready:
                raise Incomplete("fewer came")
            letter = self._world.ready.pop(0)
            self._held[letter.tag] = letter
            yield letter
            self._world.point(self._process, self)

    @property
    def others(self) -> int:
        """As many consumers as there were when it was entered."""
        return 0

    def consumers(self) -> int:
        self._require_connection()
        return len(self._world.queues)

    def acknowledge(self, letter: DeadLetter) -> None:
        self._require_connection()
        del self._held[letter.tag]

    def wait(self, _seconds: float) -> None: ...

    def lose(self) -> None:
        """The broker requeues what it holds, in no order that can be relied on."""
        self.is_lost = True
        self._world.ready += self._held.values()
        self._held = {}
        if self in self._world.queues:
            self._world.queues.remove(self)

    def _require_connection(self) -> None:
        if self.is_lost:
            raise BrokerUnavailable("lost")
