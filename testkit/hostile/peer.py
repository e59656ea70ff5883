"""A scripted peer on a raw socket: it does one thing to every connection, and keeps what it saw."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

Script = Callable[[socket.socket], object]


@dataclass
class Peer:
    """Where the peer listens, and what came to it."""

    port: int
    connections: int = 0
    received: list[bytes] = field(default_factory=list)

    def url(self, path: str = "/orders", scheme: str = "http", host: str = "127.0.0.1") -> str:
        return f"{scheme}://{host}:{self.port}{path}"


@contextmanager
def peer(
    script: Script, *, tls: ssl.SSLContext | None = None, buffer: int | None = None
) -> Iterator[Peer]:
    """Listen, and play the script to each connection in a thread of its own.

    Args:
        script: what it does.
        tls: over TLS.
        buffer: bytes that its kernel takes before the script reads them.
    """
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    if buffer is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    seen = Peer(listener.getsockname()[1])

    def serve(connection: socket.socket) -> None:
        with suppress(OSError), connection:
            if tls is not None:
                connection = _in_tls(connection, tls)
            script(connection)

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                seen.connections += 1
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield seen
    finally:
        # A plain close would leave the accepting thread where it is.
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _in_tls(connection: socket.socket, tls: ssl.SSLContext) -> ssl.SSLSocket:
    wrapped = tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
    try:
        wrapped.do_handshake()
    except ssl.SSLError:
        # With bytes unread a close would be a reset, and the alert would not arrive.
        socket.socket.shutdown(wrapped, socket.SHUT_WR)
        while socket.socket.recv(wrapped, 65536):
            pass
        raise
    return wrapped


def read_request(connection: socket.socket) -> bytes:
    """One request with its body; empty when the client has gone."""
    data = b""
    while b"\r\n\r\n" not in data:
        chunk = connection.recv(65536)
        if not chunk:
            return b""
        data += chunk
    head, _, body = data.partition(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    while len(body) < length:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


def answers(*replies: bytes) -> Script:
    """Answer each request on a connection with these bytes, the same ones again and again."""

    def script(connection: socket.socket) -> None:
        while read_request(connection):
            for reply in replies:
                connection.sendall(reply)

    return script


def hangs(connection: socket.socket) -> None:
    """Read a request and never answer."""
    read_request(connection)
    connection.recv(1)


def a_reply(
    body: bytes = b'{"status":"accepted"}', status: str = "200 OK", **headers: str
) -> bytes:
    """A complete reply; header names with ``_`` for ``-``."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
