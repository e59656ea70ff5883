"""Streams that fail as streams do: block, refuse, fill up."""

import fcntl
import json
import os
import threading
from itertools import dropwhile
from typing import Any

from testkit.patience import PATIENCE


class Gate:
    """Blocks until it is opened."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self.reached = threading.Event()
        self.data = b""

    def write(self, data: bytes) -> None:
        self.reached.set()
        assert self._open.wait(PATIENCE)
        self.data += data

    def open(self) -> None:
        self._open.set()

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.data.splitlines()]


class Refusing(Gate):
    """Refuses this many writes, then takes everything."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.open()
        self.left = times

    def write(self, data: bytes) -> None:
        if self.left:
            self.left -= 1
            raise BrokenPipeError
        super().write(data)


class Pipe:
    """A pipe of the smallest size, which is not read until the test does."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, 4096)
        self._read = b""

    def fill(self) -> None:
        """Fill the buffer. The other end sees no trace of it."""
        again = os.open(f"/proc/self/fd/{self.writer}", os.O_WRONLY | os.O_NONBLOCK)
        for size in (4096, 1):
            try:
                while True:
                    os.write(again, b"\n" * size)
            except BlockingIOError:
                continue
        os.close(again)

    def give_away(self) -> None:
        """The process that was started with it has the only write end now."""
        os.close(self.writer)

    def read_until(self, text: str) -> None:
        """Read until this text has arrived."""
        while text.encode() not in self._read:
            more = os.read(self._reader, 65536)
            assert more, f"{text!r} is not in\n{self._read.decode()[-2000:]}"
            self._read += more

    def read_all(self) -> list[dict[str, Any]]:
        """Every line, up to the end of the stream."""
        while more := os.read(self._reader, 65536):
            self._read += more
        os.close(self._reader)
        return self.lines

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The lines read so far, from the first JSON object on; a later line that is none fails."""
        whole = self._read[: self._read.rfind(b"\n") + 1].splitlines()
        # Celery's warnings before there is a log are text.
        logged = dropwhile(lambda line: not line.startswith(b"{"), whole)
        return [json.loads(line) for line in logged if line]
