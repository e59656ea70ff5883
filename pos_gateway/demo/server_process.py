"""The demo's HTTP server, as seen by the process that starts it."""

import json
import subprocess
import sys
from types import TracebackType
from typing import Any, Self

import gevent

from pos_gateway.broker import wire
from pos_gateway.broker.publisher import Publisher
from pos_gateway.demo import shovel

#: Seconds for its requests in flight when it stops, and some.
_GRACE = 15.0


class ServerProcess:
    """The server while the context is open; what it takes is published in this process.

    Args:
        port: 0 is a free one.
        publisher: publishes on the worker's in-memory broker.
    """

    def __init__(self, port: int, publisher: Publisher) -> None:
        self.url = ""
        #: Orders that it has put on its broker; one that is submitted twice counts twice.
        self.submitted = 0
        self._port = port
        self._publisher = publisher
        self._process: Any = None
        self._moving: Any = None

    def __enter__(self) -> Self:
        """Start it. SystemExit with its exit code if it does not; it has said why."""
        command = [sys.executable, "-m", "pos_gateway.demo.server", str(self._port)]
        # In a session of its own: a terminal's Ctrl-C would be the first of two signals.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        first = self._process.stdout.readline()
        if not first:
            raise SystemExit(self._process.wait())
        self.url = json.loads(first)["url"]
        self._moving = gevent.spawn(self._move)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def stop(self) -> None:
        """Stop it, and publish the last of what it took. Idempotent."""
        self._process.terminate()
        try:
            self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._moving.join()

    def _move(self) -> None:
        for line in self._process.stdout:
            message = shovel.message_in(line)
            self._publisher.publish(message)
            self.submitted += message.headers["task"] == wire.SUBMIT_ORDER
