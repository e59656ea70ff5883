"""A TCP proxy that breaks connections the way networks do, with toxiproxy's vocabulary."""

import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from testkit.servers.forwarder import Side, Stream
from testkit.servers.process import ServerFailedError, end, free_port

_ROOT = Path(__file__).parents[2]


class Proxy:
    """Listens on loopback and forwards to one server, in a process of its own.

    A toxic is in force when its method returns, and until `heal()`. It applies to the connections
    there are and to those to come, in both directions unless a `stream` is named.

    A client is accepted before the server is called, so with no server behind it a connection
    ends at once instead of being refused; `down()` refuses.
    """

    def __init__(self, url: str) -> None:
        """`url` is the server's own: any URL with a host and a port."""
        self.port = 0
        self._server_url = url
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """The server's URL, by way of this proxy."""
        netloc = urlsplit(self._server_url).netloc
        credentials, at, _ = netloc.rpartition("@")
        ours = f"{credentials}{at}127.0.0.1:{self.port}"
        return self._server_url.replace(netloc, ours, 1)

    def start(self) -> None:
        """Start listening; the port stays the same for as long as it runs."""
        if self._process is not None:
            return
        server = urlsplit(self._server_url)
        self.port = free_port()
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "testkit.servers.forwarder"),
                *(str(self.port), str(server.hostname), str(server.port)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=_ROOT,
            start_new_session=True,
        )
        self.heal()  # answered once it listens

    def stop(self) -> None:
        """Close every connection and stop listening."""
        process, self._process = self._process, None
        if process is not None:
            end(process)

    def latency(self, seconds: float, *, jitter: float = 0.0, stream: Stream | None = None) -> None:
        """Deliver everything late by ``seconds``, more or less by up to `jitter`."""
        self._toxic(stream, latency=seconds, jitter=jitter)

    def timeout(self, *, stream: Stream | None = None) -> None:
        """Accept connections and data, and deliver nothing; what was held back flows on healing."""
        self._toxic(stream, stalled=True)

    def bandwidth(self, bytes_per_second: float, *, stream: Stream | None = None) -> None:
        """Deliver no faster than this."""
        self._toxic(stream, bandwidth=bytes_per_second)

    def slicer(self, size: int, *, delay: float = 0.0, stream: Stream | None = None) -> None:
        """Deliver in pieces of this many bytes, with a pause before each."""
        self._toxic(stream, slice_size=size, slice_delay=delay)

    def down(self) -> None:
        """Close every connection, and refuse new ones."""
        self._do("down")

    def reset_peer(self) -> None:
        """Reset every connection (RST), present and new."""
        self._do("reset_peer")

    def heal(self) -> None:
        """End every toxic. Connections that were closed stay closed, half-open ones half-open."""
        self._do("heal")

    def cut(self) -> None:
        """Close the connections there are; new ones pass."""
        self._do("cut")

    def half_open(self, gone: Side = "server") -> None:
        """Take one side of every present connection away, without the other being told.

        What the one that is left sends is taken and goes nowhere, until it closes or `cut()`.
        """
        self._do("half_open", gone=gone)

    def connections(self) -> int:
        """How many connections there are, half-open ones included."""
        return self._do("count")

    def _toxic(self, stream: Stream | None, **settings: float) -> None:
        self._do("toxic", streams=[stream] if stream else ["upstream", "downstream"], **settings)

    def _do(self, command: str, **arguments: object) -> int:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise ServerFailedError("The proxy has not been started.")
        process.stdin.write(json.dumps({"command": command, **arguments}) + "\n")
        process.stdin.flush()
        if not (reply := process.stdout.readline()):
            raise ServerFailedError("The proxy's process ended; it says why on standard error.")
        return int(reply)
