"""What a consumer of ``order-events`` receives, and when."""

import json
import re
import time
from datetime import datetime
from typing import Any

from kombu import Connection

from loadtests.bench.waiting import InvalidRunError
from pos_gateway.broker import topology
from testkit.background import Background

_POSITION = re.compile(r'"position":(\d+)')


class Stream(Background):
    """Takes events off the queue on a thread of its own while its block lasts."""

    def __init__(self, broker_url: str) -> None:
        super().__init__()
        self._broker_url = broker_url
        #: When each was received first, by its id; of those that are no bulk's, since their outcome.
        self.received: dict[str, float] = {}
        self.latencies: list[float] = []
        #: Of the same, by their orders: when their outcome was, and when it was received.
        self.outcomes: dict[str, tuple[float, float]] = {}
        #: The highest position so far, and whether each was the one behind the last, or a repeat.
        self._last = 0
        self._is_in_order = True

    def wait_for(self, name: str, count: int, *, seconds: float) -> list[float]:
        """When each event of a bulk was received, once all were.

        Raises:
            InvalidRunError: they were not, in time.
        """
        last, until = [f"{name}-{n}" for n in range(1, count + 1)], time.monotonic() + seconds
        while not all(each in self.received for each in reversed(last)):
            if time.monotonic() >= until:
                missing = sum(each not in self.received for each in last)
                raise InvalidRunError(f"{missing:,} of {count:,} events had not come in time")
            time.sleep(0.02)
        return [self.received[each] for each in last]

    def check_order(self) -> None:
        """Raises InvalidRunError unless positions came one after the other, but for repeats."""
        if not self._is_in_order:
            raise InvalidRunError("positions did not ascend one by one")

    def _run(self) -> None:
        with Connection(self._broker_url) as connection:
            topology.declare(connection)
            consumer = connection.Consumer(
                [topology.events_queue], no_ack=True, on_message=self._take, auto_declare=False
            )
            with consumer:
                while not self._over.is_set():
                    try:
                        connection.drain_events(timeout=0.5)
                    except TimeoutError:
                        continue

    def _take(self, message: Any) -> None:
        now = time.time()
        event_id = message.properties["message_id"]
        if event_id not in self.received:
            self.received[event_id] = now
            if "-" in event_id and len(event_id) == 36:  # a worker's own
                event = json.loads(message.body)
                occurred = datetime.fromisoformat(event["occurred_at"]).timestamp()
                self.latencies.append(now - occurred)
                self.outcomes[event["order_id"]] = occurred, now
        found = _POSITION.search(str(message.body[:200]))
        if found is not None:
            position = int(found[1])
            self._is_in_order &= position <= self._last + 1
            self._last = max(self._last, position)
