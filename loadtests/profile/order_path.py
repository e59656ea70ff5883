"""The path of an accepted order from frame to acknowledgement: the functions that every order calls.

A worker gets a hundred orders at once, several times. What many orders share (a group commit, a turn of the
loop) is then less than a call of each, and what a clock starts is not in every burst: the machine's speed
hardly changes the counts.
"""

import json
import os
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from amqp.basic_message import Message
from kombu import Connection

from loadtests.bench import filling
from loadtests.bench.candidate import OURS
from loadtests.bench.orders import place_many
from loadtests.bench.servers import Servers
from loadtests.bench.waiting import InvalidRunError, wait_for_consumer, wait_until
from loadtests.bench.worker import Worker
from loadtests.bench.world import World, world
from loadtests.profile.counting import PRODUCT, SIGNAL
from pos_gateway.broker import topology

#: Orders at once: half of the slots, and two for each merchant, which no limit makes wait.
ORDERS, MERCHANTS = 100, 50
#: Seconds that merchants take: less than the worker over a burst, so that a turn of the loop finds several replies.
LATENCY = 0.02
#: Bursts that are counted, after others in which merchants become known and connections are made.
BURSTS, FIRST = 5, 2
#: Part of a call: nine calls for ten orders are one for each, and fewer are shared.
_SPARE = 0.1
#: Seconds for a burst on the slowest machine; and for the log's thread to write its lines, with which the list
#: would begin otherwise.
_PATIENCE, _REST = 120.0, 0.5
_COMMAND = ("-m", "loadtests.profile.counting")
_FLAGS = ("-A", "pos_gateway.gcelery", "worker", "--pool=gevent", "--loglevel", "INFO")

#: Calls by file and qualified name, in the order of the first call.
Counts = dict[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the product, and how often each order calls it."""

    file: str
    name: str
    calls: int

    @property
    def package(self) -> str:
        return self.file.partition("/")[0]

    @property
    def stateful_class(self) -> str | None:
        """The class with state that it is a method of, or defined in a method of."""
        found: Any = import_module(
            f"{PRODUCT.name}.{self.file.removesuffix('.py').replace('/', '.')}"
        )
        owner = None
        for name in self.name.split(".<locals>")[0].split("."):
            found = getattr(found, name, None)
            owner = found if isinstance(found, type) else owner
        return None if owner is None or _is_value(owner) else f"{self.file} {owner.__qualname__}"


@dataclass(frozen=True)
class OrderPath:
    """Functions that every accepted order calls, in the order of the first call."""

    functions: Sequence[Function]
    #: Further files on the path of an order that comes alone; the orders of a burst share their calls.
    shared: Sequence[str]

    @classmethod
    def of(cls, bursts: Sequence[Counts], orders: int, alone: Counts) -> "OrderPath":
        """The path by the least counts of bursts of as many orders, in the sequence of an order that came alone."""
        least = {key: min(each.get(key, 0) for each in bursts) / orders for key in alone}
        functions = [
            Function(*key, whole) for key, calls in least.items() if (whole := int(calls + _SPARE))
        ]
        own = {each.file for each in functions}
        return cls(
            functions, [file for file in dict.fromkeys(f for f, _ in alone) if file not in own]
        )

    @cached_property
    def figures(self) -> dict[str, int]:
        """What the path's budget is of."""
        return {
            "files": len({each.file for each in self.functions}),
            "classes with state": len({each.stateful_class for each in self.functions} - {None}),
            "calls": sum(each.calls for each in self.functions),
        }

    def __str__(self) -> str:
        figures = ", ".join(f"{what} {number}" for what, number in self.figures.items())
        return "\n".join(
            [
                f"Each accepted order's path: {figures}",
                *self._listed(),
                "",
                *_filled("Orders that come together share calls of ", self.shared),
            ]
        )

    def _listed(self) -> Iterator[str]:
        for package, functions in _grouped(self.functions, "package"):
            yield f"\n{package}: {sum(each.calls for each in functions)} calls"
            for file, own in _grouped(functions, "file"):
                names = [
                    each.name if each.calls == 1 else f"{each.name} ({each.calls})" for each in own
                ]
                yield from _filled(f"  {file.removeprefix(f'{package}/')}: ", names)


def trace(servers: Servers) -> OrderPath:
    """Count the calls of accepted orders in a worker of its own.

    Raises:
        InvalidRunError: an order was not accepted, or not in time.
        WorkerEndedError: as it says.
    """
    ids = [f"quick-{number}" for number in range(MERCHANTS)]
    with world(servers, ids, {"quick": {"latency": LATENCY}}) as place:
        filling.declare(place.broker_url)
        counts = place.folder / "calls.json"
        command = (*_COMMAND, str(counts), *_FLAGS)
        environment = OURS.environment(place, timeout=10.0)
        with Worker(command, environment, place.folder, is_alone=False) as worker:
            wait_for_consumer(place.broker_url, worker)
            run = _Run(place, worker, counts)
            bursts = [run.burst(ids * (ORDERS // MERCHANTS)) for _ in range(FIRST + BURSTS)]
            time.sleep(_REST)
            run.counts()
            alone = run.burst(ids[:1])
    return OrderPath.of(bursts[FIRST:], ORDERS + 1, alone)


@dataclass
class _Run:
    """Gives a worker orders, and has the calls counted."""

    place: World
    worker: Worker
    into: Path
    orders: int = 0

    def burst(self, merchant_ids: Sequence[str]) -> Counts:
        """The calls for orders that come together, and for one that follows: all is done for them by then."""
        self._deliver(merchant_ids)
        self._deliver(merchant_ids[:1])
        return self.counts()

    def counts(self) -> Counts:
        """The calls since the last time."""
        os.kill(self.worker.pid, SIGNAL)
        if not wait_until(self.into.exists, time.monotonic() + _PATIENCE, look=0.01):
            raise InvalidRunError("the worker wrote no counts")
        found: Counts = {}
        for file, name, calls in json.loads(self.into.read_text()):
            found[file, name] = found.get((file, name), 0) + calls  # lambdas share a name
        self.into.unlink()
        return found

    def _deliver(self, merchant_ids: Sequence[str]) -> None:
        """Publish an order to each merchant, and return when all have been accepted."""
        placed = list(place_many(merchant_ids, first=self.orders))
        self.orders += len(placed)
        filling.put(self.place.broker_url, [OURS.message(each) for each in placed])
        missing = {each.order_id for each in placed}

        def heard(message: Message) -> None:
            event = json.loads(message.body)
            if event["type"] == "order.accepted":
                missing.discard(event["order_id"])  # an event may come twice

        with Connection(self.place.broker_url) as connection:
            queue = topology.events_queue.name
            connection.default_channel.basic_consume(queue, no_ack=True, callback=heard)
            while missing:
                self.worker.check()
                try:
                    connection.drain_events(timeout=_PATIENCE)
                except TimeoutError as error:
                    raise InvalidRunError(f"{len(missing)} orders were not accepted") from error


def _is_value(owner: type) -> bool:
    """Whether an instance stays as it was made."""
    dataclass_ = getattr(owner, "__dataclass_params__", None)
    return (
        issubclass(owner, tuple | Enum)
        or getattr(dataclass_, "frozen", False)
        or getattr(owner, "model_config", {}).get("frozen", False)
    )


def _grouped(functions: Iterable[Function], by: str) -> Iterable[tuple[str, list[Function]]]:
    """Functions by package or by file, in the sequence of the first of each."""
    places: dict[str, list[Function]] = {}
    for each in functions:
        places.setdefault(getattr(each, by), []).append(each)
    return places.items()


def _filled(title: str, words: Iterable[str]) -> list[str]:
    return textwrap.wrap(title + ", ".join(words), 100, subsequent_indent="    ")
