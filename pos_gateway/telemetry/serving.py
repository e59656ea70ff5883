"""A small HTTP server for monitoring: pages by path, GET and HEAD only."""

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from socketserver import TCPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import structlog

log = structlog.get_logger(__name__)

#: Reachable from this machine only.
LOOPBACK = "127.0.0.1"
#: Seconds for a client's whole request, and for its whole reply.
CLIENT_TIMEOUT = 5.0
#: Maximum bytes of a request: reading more would delay orders.
LONGEST = 16_384
#: Maximum connections: each takes a file descriptor that an order may need. Past the maximum the
#: oldest connection is closed.
MAX_CLIENTS = 64
#: Maximum clients of a slow page, waiting or being served.
PLACES = 8
#: Seconds between checks for a stop, and after a failed accept.
POLL, _PAUSE = 0.5, 0.5


@dataclass(frozen=True, slots=True)
class PageReply:
    """A page's response."""

    status: int
    body: bytes
    content_type: str = "application/json"

    @classmethod
    def of(cls, content: object, status: int = 200) -> "PageReply":
        """A response with ``content`` as JSON."""
        return cls(status, json.dumps(content, separators=(",", ":")).encode() + b"\n")


#: Renders a page from the query's parameters. Called on a thread per client, green in a green worker.
Page = Callable[[Mapping[str, str]], PageReply]


def one_at_a_time(page: Page) -> Page:
    """The same page, rendered for a single client at a time: orders get most of the loop.

    ``PLACES`` clients may wait; further clients get a 503.
    """
    lock, places = threading.Lock(), threading.Semaphore(PLACES)

    def made(query: Mapping[str, str]) -> PageReply:
        if not places.acquire(blocking=False):
            return PageReply.of({"error": "too many ask for this at once"}, 503)
        try:
            with lock:
                return page(query)
        finally:
            places.release()

    return made


class PageServer(ThreadingHTTPServer):
    """Serves pages by path, on a thread per client; more pages may be added at any time."""

    def __init__(self, host: str, port: int, pages: Mapping[str, Page]) -> None:
        self.pages = pages
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        #: Oldest first.
        self._clients: dict[Any, None] = {}
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        # HTTPServer's method looks up the name of this host, and may block on DNS.
        TCPServer.server_bind(self)

    def get_request(self) -> tuple[Any, Any]:
        try:
            return super().get_request()
        except OSError:
            # Out of file descriptors, say: without a pause the server would retry at once.
            time.sleep(_PAUSE)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        if len(self._clients) >= MAX_CLIENTS:
            oldest = next(iter(self._clients))
            self._clients.pop(oldest, None)
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # the client's thread closes the socket
        self._clients[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._clients.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, *_: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # a client that disconnects is normal
            log.exception("metrics.page_failed")


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    client_timeout = CLIENT_TIMEOUT
    server_version, sys_version = "pos-gateway", ""

    def setup(self) -> None:
        super().setup()
        self.rfile = BytesIO(self._head())
        self.connection.settimeout(self.client_timeout)

    def _head(self) -> bytes:
        """The request's head. Raises OSError: the client is too slow, or the head too long."""
        head, until = b"", time.monotonic() + self.client_timeout
        while not (b"\n\r\n" in head or b"\n\n" in head):
            self.connection.settimeout(max(0.001, until - time.monotonic()))
            more = self.connection.recv(LONGEST)
            if not more or len(head) + len(more) > LONGEST:
                raise ConnectionError
            head += more
        return head

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        page = self.server.pages.get(url.path)
        if page is None:
            known = {"error": "there is no such page", "pages": sorted(self.server.pages)}
            answer = PageReply.of(known, 404)
        else:
            answer = page(dict(parse_qsl(url.query, keep_blank_values=True)))
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def do_HEAD(self) -> None:
        """As GET without a body: some load balancers use HEAD."""
        self.do_GET()

    def log_message(self, *_: Any) -> None:
        """Nothing: probes and scrapes are constant."""
