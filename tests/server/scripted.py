"""An HTTP server in a thread that replies as it is told: well, badly, or not at all."""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from tests.server.lab import SOON


class Asked(NamedTuple):
    """A request, as it came."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    #: The client's port: its connection.
    port: int


#: Status, headers and body; or something that writes to the connection by itself.
Reply = tuple[int, dict[str, str], bytes] | Callable[[BaseHTTPRequestHandler], None]


class Scripted:
    """Replies in turn; the last one for ever."""

    def __init__(self, *replies: Reply, tls: ssl.SSLContext | None = None) -> None:
        self._replies = list(replies)
        self.asked: list[Asked] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # one write a reply

            def do_POST(self) -> None:
                outer.reply(self)

            do_GET = do_CONNECT = do_POST  # noqa: N815

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: Any) -> None:
                """Clients that go away are a part of the play."""

        self._server = Server(("127.0.0.1", 0), Handler)
        if tls is not None:
            # The handshake waits for a client, and must not be the accepting thread's.
            self._server.socket = tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def reply(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        asked = Asked(
            handler.command, handler.path, handler.headers, body, handler.client_address[1]
        )
        self.asked.append(asked)
        reply = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
        if callable(reply):
            reply(handler)
            return
        status, headers, content = reply
        handler.send_response_only(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(content)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def nothing(handler: BaseHTTPRequestHandler) -> None:
    """Close the connection without a reply."""
    handler.close_connection = True


def silence(handler: BaseHTTPRequestHandler) -> None:
    """Neither reply nor close, until the client goes."""
    handler.rfile.read(1)
    handler.close_connection = True


def drip(head: bytes, drop: bytes = b" ", pause: float = 0.05) -> Reply:
    """A reply that goes on drop by drop, for longer than a test waits."""

    def write(handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        handler.wfile.write(head)
        ends = time.monotonic() + SOON + 5
        while time.monotonic() < ends:
            handler.wfile.write(drop)
            handler.wfile.flush()
            time.sleep(pause)

    return write


def endless(head: bytes, part: bytes) -> Reply:
    """A reply as fast as the client reads it, for as long."""
    return drip(head, part, 0.0)


def tunnel(handler: BaseHTTPRequestHandler) -> None:
    """What a proxy does for CONNECT."""
    host, _, port = handler.path.rpartition(":")
    handler.close_connection = True
    with socket.create_connection((host, int(port))) as server:
        handler.wfile.write(b"HTTP/1.1 200 Connected\r\n\r\n")
        handler.wfile.flush()
        back = threading.Thread(target=_copy, args=(server, handler.connection), daemon=True)
        back.start()
        _copy(handler.connection, server)
        back.join(SOON)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
