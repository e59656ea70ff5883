"""Compares orders with those that came before, and waits for no database that takes long.

The caller's thread asks the database itself where that ends soon: handing a group to another thread and
back is two waits for a core. Connecting, and all that SQLite does, may take long: a thread does it.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import structlog

from pos_gateway.domain.errors import LedgerUnavailable
from pos_gateway.ledger.submissions import ANSWER, Known, Submissions, Submitting
from pos_gateway.runtime.clock import Clock

log = structlog.get_logger(__name__)

#: Seconds that a group waits for the database. Orders are taken without it, uncompared.
LOOK_UP_TIMEOUT = ANSWER


class Comparing:
    """Writes and compares submissions. For one thread.

    Args:
        submissions: of its own.
    """

    def __init__(self, submissions: Submissions, clock: Clock) -> None:
        self._submissions = submissions
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "submissions")
        #: What the database has not answered in time, or the connection that is made after that.
        self._late: Future[Any] | None = None
        #: The last removal; until it has ended, the submissions are the thread's.
        self._forgetting: Future[None] | None = None

    def known(self, orders: Sequence[Submitting]) -> list[Known] | None:
        """What is known of these, which are written; None: the database does not say in time."""
        if not orders:
            return []
        if self._late is not None and not self._late.done():
            return None
        self._late = None
        now, began = self._clock.now().timestamp(), time.monotonic()
        try:
            if self._is_prompt():
                return self._submissions.write(orders, now)
            looking = self._thread.submit(self._submissions.write, orders, now)
            try:
                return looking.result(LOOK_UP_TIMEOUT)
            except TimeoutError:
                self._late = looking
                log.warning("submissions.unavailable", error=f"no answer in {LOOK_UP_TIMEOUT:g} s")
        except LedgerUnavailable as error:
            log.warning("submissions.unavailable", error=str(error))
            if time.monotonic() - began >= LOOK_UP_TIMEOUT:  # the next group is not to wait as long
                self._late = self._thread.submit(self._submissions.connect)
        return None

    def forget(self, orders: Callable[[], Sequence[Submitting]], then: Callable[[], None]) -> None:
        """Free the ids of orders that were not published, on the thread, and only then call ``then``.

        A retry at another server needs its row.

        Args:
            orders: which ones, as it is known when they are removed.
        """
        self._forgetting = self._thread.submit(self._forget, orders, then)

    def close(self) -> None:
        """End. What has begun goes on."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._submissions.close()

    def _is_prompt(self) -> bool:
        if self._forgetting is not None and not self._forgetting.done():
            return False
        return self._submissions.is_prompt

    def _forget(self, orders: Callable[[], Sequence[Submitting]], then: Callable[[], None]) -> None:
        try:
            self._submissions.forget(orders())
        except LedgerUnavailable as error:
            log.warning("submissions.unavailable", error=str(error))
        finally:
            then()
