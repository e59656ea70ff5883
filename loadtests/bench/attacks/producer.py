"""An open-model producer: publishes at a schedule, and never waits for an outcome.

A process of its own, so that neither the worker nor its observer delays an order.
"""

import gc
import json
import math
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from kombu import Connection

from loadtests.bench import orders
from loadtests.bench.candidate import BY_NAME, Candidate
from loadtests.bench.filling import Confirms
from loadtests.bench.waiting import InvalidRunError
from loadtests.bench.worker import child
from loadtests.load.histogram import percentile

#: Seconds for the broker to confirm what is still open when the last order has been published.
_PATIENCE = 30.0
#: Seconds by which one order in a hundred may come late; a producer that is worse fell behind.
TOLERANCE = 0.05


@dataclass(frozen=True, slots=True)
class Schedule:
    """A steady rate."""

    #: Orders a second.
    rate: float
    seconds: float

    @property
    def orders(self) -> int:
        """How many there are."""
        return math.floor(self.rate * self.seconds + 1e-9)

    def due(self, number: int) -> float:
        """Seconds from the beginning to the order of that number; the first is number 0."""
        return number / self.rate


def lateness(schedule: Schedule, began: float, published: Sequence[float]) -> float:
    """Seconds by which the latest hundredth of the orders came late, or more."""
    late = sorted(
        max(0.0, moment - began - schedule.due(number)) for number, moment in enumerate(published)
    )
    return percentile(late, 0.99) if late else 0.0


@dataclass(frozen=True, slots=True)
class Production:
    """What was published when."""

    began: float
    #: The wall-clock time at which each order was published, by its id.
    published: Mapping[str, float]
    #: Seconds by which the latest hundredth of the orders came late, or more.
    late: float

    @property
    def fell_behind(self) -> bool:
        """The orders did not come as scheduled: what was measured is not what was asked."""
        return self.late > TOLERANCE


class Producer:
    """Publishes an order for each of ``whose``, numbered from ``first``, while its block lasts."""

    def __init__(
        self,
        broker_url: str,
        candidate: Candidate,
        schedule: Schedule,
        whose: Sequence[str],
        folder: Path,
        *,
        first: int = 0,
    ) -> None:
        self._schedule, self._first = schedule, first
        self._plan, self._done = folder / "plan.json", folder / "production.json"
        plan = {
            "broker_url": broker_url,
            "candidate": candidate.name,
            "rate": schedule.rate,
            "seconds": schedule.seconds,
            "whose": list(whose),
            "first": first,
        }
        self._plan.write_text(json.dumps(plan))
        self._child = child(
            [sys.executable, "-m", __name__, self._plan, self._done],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        #: Its process, which stays until the block ends.
        self.pid = 0
        self.began = 0.0

    def __enter__(self) -> Self:
        """Have it prepare the orders; returns when the first one goes, at ``began``."""
        process = self._child.__enter__()
        assert process.stdout is not None
        self.pid, self._said = process.pid, process.stdout
        self.began = float(self._line())
        return self

    def __exit__(self, *raised: Any) -> None:
        self._child.__exit__(*raised)

    def finish(self) -> Production:
        """Wait for the last order; it comes at its time, however busy the gateway is."""
        self._line()
        published: list[float] = json.loads(self._done.read_text())
        return Production(
            self.began,
            {f"order-{number}": at for number, at in enumerate(published, self._first)},
            lateness(self._schedule, self.began, published),
        )

    def _line(self) -> bytes:
        line = self._said.readline()
        if not line:
            raise InvalidRunError("the producer ended before its last order")
        return line


def main(plan: Path, done: Path) -> None:
    """Publish as planned, write down when, and stay until standard input ends."""
    published = _publish(json.loads(plan.read_text()))
    done.write_text(json.dumps(published))
    print("done", flush=True)
    sys.stdin.buffer.read()


def _publish(plan: Mapping[str, Any]) -> list[float]:
    schedule = Schedule(plan["rate"], plan["seconds"])
    candidate = BY_NAME[plan["candidate"]]
    placed = orders.place_many(plan["whose"], first=plan["first"])
    messages = [candidate.message(order) for order in placed]
    gc.freeze()  # a collection would walk them all, and be late with the next one
    published: list[float] = []
    with Connection(plan["broker_url"]) as connection:
        confirms = Confirms(connection)
        began = time.time() + 0.1
        print(began, flush=True)
        for number, message in enumerate(messages):
            due = began + schedule.due(number)
            while (left := due - time.time()) > 0:
                confirms.read(left)
            published.append(time.time())
            confirms.publish(message)
        confirms.settle(_PATIENCE)
    return published


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
