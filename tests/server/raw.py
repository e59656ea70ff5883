"""A client that sends bytes as they are: none of them is tidied, and none is withheld."""

import json
import socket
import ssl
import struct
from typing import Any, NamedTuple

from tests.server.conformance import require_known
from tests.server.lab import SOON, Server


class Reply(NamedTuple):
    """A reply as it came."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        """The problem's code; empty: it is no problem."""
        if self.headers.get("content-type") != "application/problem+json":
            return ""
        problem: dict[str, Any] = json.loads(self.body)
        assert problem["status"] == self.status
        assert problem["detail"]
        require_known(self.status, problem["code"], self.headers)
        return str(problem["code"])


class Raw:
    """A connection. What cannot be sent any more, since the server has closed it, is dropped."""

    def __init__(
        self, server: Server, *, seconds: float = SOON, tls: ssl.SSLContext | None = None
    ) -> None:
        self.socket = socket.create_connection(server.address, seconds)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="127.0.0.1")
        self._came = b""
        self.sent = 0

    def __enter__(self) -> "Raw":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> bool:
        """Whether it was taken."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return False
        self.sent += len(data)
        return True

    def end(self) -> None:
        """End this side: the server sees the end of what is sent."""
        self.socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Close with a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def line(self) -> bytes:
        """The next line; empty: the connection has ended."""
        while b"\n" not in self._came and self._receive():
            pass
        line, newline, self._came = self._came.partition(b"\n")
        return line + newline

    def reply(self) -> Reply | None:
        """The next reply; None: the connection has ended before one began."""
        first = self.line()
        if not first:
            return None
        version, status, _ = first.split(b" ", 2)
        assert version == b"HTTP/1.1", first
        headers: dict[str, str] = {}
        while (line := self.line().decode("latin-1").strip()) != "":
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        if int(status) == 100:
            return Reply(100, headers, b"")
        if "content-length" in headers:
            body = self._exactly(int(headers["content-length"]))
        else:
            body = b""
            while (size := int(self.line() or b"0", 16)) != 0:
                body += self._exactly(size)
                self.line()
            self.line()
        return Reply(int(status), headers, body)

    def replies(self) -> list[Reply]:
        """All until the connection ends."""
        found = []
        while (reply := self.reply()) is not None:
            found.append(reply)
        return found

    def has_ended(self) -> bool:
        """Wait for the end of the connection; False: bytes came."""
        return not self._came and not self._receive()

    def _exactly(self, count: int) -> bytes:
        while len(self._came) < count and self._receive():
            pass
        assert len(self._came) >= count, "the reply was cut short"
        found, self._came = self._came[:count], self._came[count:]
        return found

    def _receive(self) -> bool:
        try:
            data = self.socket.recv(65536)
        except ConnectionResetError:
            return False
        self._came += data
        return bool(data)
