"""Streams that do what streams do: stand still, refuse, fill up."""

import fcntl
import json
import os
import threading
from itertools import dropwhile
from typing import Any

#: Seconds that anything may take here before it counts as never coming.
PATIENCE = 30.0


class Gate:
    """Takes nothing until it is opened."""

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
    """Refuses so many writes, then takes everything."""

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
    """A pipe as short as pipes can be, which nobody reads until told to."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, 4096)
        self._read = b""

    def fill(self) -> None:
        """Leave no room in it. Whoever has the other end sees nothing of how."""
        again = os.open(f"/proc/self/fd/{self.writer}", os.O_WRONLY | os.O_NONBLOCK)
        for size in (4096, 1):
            try:
                while True:
                    os.write(again, b"\n" * size)
            except BlockingIOError:
                continue
        os.close(again)

    def give_away(self) -> None:
        """The process that was started with it has the only end now."""
        os.close(self.writer)

    def read_until(self, text: str) -> None:
        """Read until this has come."""
        while text.encode() not in self._read:
            more = os.read(self._reader, 65536)
            assert more, f"{text!r} is not in\n{self._read.decode()[-2000:]}"
            self._read += more

    def read_all(self) -> list[dict[str, Any]]:
        """Every line, up to the end."""
        while more := os.read(self._reader, 65536):
            self._read += more
        os.close(self._reader)
        return self.lines

    @property
    def lines(self) -> list[dict[str, Any]]:
        """What has been read so far, from the first one on; what is no JSON object after it fails."""
        whole = self._read[: self._read.rfind(b"\n") + 1].splitlines()
        # What Celery warns of before there is a log is text.
        logged = dropwhile(lambda line: not line.startswith(b"{"), whole)
        return [json.loads(line) for line in logged if line]
