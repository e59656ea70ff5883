"""What is in ``orders.dead``, as it was last read: one read at a time, for all viewers.

A read holds all letters for seconds, in which another reader sees none: so a page reads only when what is
known is old, and never while a run acts on letters.
"""

import threading
import time
from dataclasses import dataclass, replace

from sqlalchemy import Engine

from pos_gateway.administration.bulk.filter import ONLY
from pos_gateway.administration.bulk.run import Subject
from pos_gateway.broker.dead_letter import DeadLetter
from pos_gateway.broker.dead_letter_queue import DeadLetterQueue
from pos_gateway.domain.errors import PosGatewayError
from pos_gateway.merchants.search import provider_of_each
from pos_gateway.runtime.clock import Clock
from pos_gateway.server.bulk_threads import BulkThreads

#: Seconds after which a page has letters read again, and at least between two reads.
OLD, PAUSE = 60.0, 5.0
#: Maximum letters that are kept; a preview has all.
KEPT = 50_000


@dataclass(frozen=True, slots=True)
class CountedLetters:
    """The letters at a moment, without their bodies."""

    at: float
    letters: tuple[DeadLetter, ...]
    #: All that there were, with those that are not kept.
    total: int
    providers: dict[str, str | None]
    #: Why not all came.
    problem: str | None = None


class LetterCount:
    """Reads the letters in the background. Safe from threads."""

    def __init__(
        self, broker_url: str, database: Engine, threads: BulkThreads, clock: Clock
    ) -> None:
        self._broker_url = broker_url
        self._database = database
        self._threads = threads
        self._clock = clock
        self._lock = threading.Lock()
        self._is_reading = False
        self._next_at = self._old_at = 0.0
        self._last: CountedLetters | None = None

    @property
    def last(self) -> CountedLetters | None:
        """What was read last; None: nothing yet."""
        return self._last

    @property
    def is_reading(self) -> bool:
        """Whether a read is at work."""
        return self._is_reading

    def look(self, *, again: bool = False) -> None:
        """Have the letters read if what is known is old, or it is asked for; returns at once."""
        store = self._threads.store
        # Several servers that count keep a preview from ever being alone with the letters.
        if store.active(Subject.LETTERS) or store.previews.is_being_made(Subject.LETTERS):
            return
        last, now = self._last, time.monotonic()
        is_old = last is None or now >= self._old_at
        with self._lock:
            if self._is_reading or now < self._next_at or not (is_old or again):
                return
            self._is_reading = True
        try:
            self._threads.in_background("count-letters", self._read)
        except BaseException:
            self._is_reading = False
            raise

    def _read(self) -> None:
        began = time.monotonic()
        try:
            with self._threads.reading() as is_free:
                if is_free:  # else a preview reads them
                    counted = self._counted()
                    if counted is not self._last:
                        self._last, self._old_at = counted, time.monotonic() + OLD
        finally:
            took = time.monotonic() - began
            with self._lock:
                self._next_at = time.monotonic() + max(PAUSE, took)
                self._is_reading = False

    def _counted(self) -> CountedLetters:
        kept: list[DeadLetter] = []
        total, problem = 0, None
        try:
            with DeadLetterQueue(self._broker_url) as queue:
                if queue.others:  # what they hold would be missed
                    if self._last is not None:
                        return self._last
                    problem = "another reader of orders.dead has letters at this moment"
                for letter in queue:
                    total += 1
                    if len(kept) < KEPT:
                        task = letter.headers.get("task")
                        known = {"task": task} if task in ONLY.values() else {}
                        kept.append(replace(letter, body=b"", headers=known, channel=None))
                    if self._threads.is_stopping:
                        break
        except PosGatewayError as error:
            problem = str(error)
        at = self._clock.now().timestamp()
        return CountedLetters(at, tuple(kept), total, provider_of_each(self._database), problem)
