"""Wakes a relay when a transaction on PostgreSQL commits orders (LISTEN, NOTIFY)."""

import logging
import threading
from collections.abc import Callable
from contextlib import closing, suppress

from pos_gateway.client.outbox.connections import PlainConnection
from pos_gateway.client.outbox.opening import Connect
from pos_gateway.client.outbox.table import CHANNEL

logger = logging.getLogger(__name__)

#: Seconds between two looks at whether to stop, and until another connection is tried.
_POLL, _RECONNECT_AFTER = 1.0, 5.0


class Listener:
    """A thread with a connection of its own. Where there are no notifications the relay polls."""

    def __init__(self, connect: Connect, wake: Callable[[], None]) -> None:
        self._connect = connect
        self._wake = wake
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="outbox-listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._stopping.set()
        self._thread.join(_POLL * 2)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                with closing(self._connect()) as connection:
                    if not callable(getattr(connection, "notifies", None)):
                        return  # not psycopg 3's
                    self._listen(connection)
            except Exception as error:  # noqa: BLE001
                # Any error of the driver's: the relay polls meanwhile.
                logger.debug("the outbox is polled: %s", error)
            self._stopping.wait(_RECONNECT_AFTER)

    def _listen(self, connection: object) -> None:
        driver = PlainConnection(connection).driver
        driver.autocommit = True
        driver.execute(f"listen {CHANNEL}")
        self._wake()  # what was committed before it listened
        while not self._stopping.is_set():
            for _ in driver.notifies(timeout=_POLL, stop_after=1):
                self._wake()
        with suppress(Exception):  # it is closed anyway
            driver.execute(f"unlisten {CHANNEL}")
