"""Viewers that are made for loads look as a browser does, and notice when they are not served."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from loadtests.viewers import logged_in, viewers
from testkit.patience import PATIENCE

MANY = 5


class Page(BaseHTTPRequestHandler):
    """What a viewer meets of the operations page."""

    protocol_version = "HTTP/1.1"
    ends: ClassVar[threading.Event]
    looked: ClassVar[threading.Semaphore]

    def do_GET(self) -> None:
        """The form, the first view, and its live parts for who is logged in."""
        if self.path.startswith("/live"):
            assert (self.path, self.headers["cookie"]) == ("/live?a=1&b=2", "session=s")
            self._reply(b": begun\n\n", length=1_000_000)
            self.looked.release()
            self.ends.wait()
            self.close_connection = True
        elif self.path == "/login":
            self._reply(b'<input name="csrf" value="c">')
        else:
            self._reply(b'<body data-live="/live?a=1&amp;b=2">')

    def do_POST(self) -> None:
        """Log in."""
        form = self.rfile.read(int(self.headers["content-length"]))
        assert form == b"token=t&csrf=c" and self.headers["origin"]
        self._reply(b"", 303, ("set-cookie", "session=s"))

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""

    def _reply(
        self, body: bytes, status: int = 200, *headers: tuple[str, str], length: int | None = None
    ) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body) if length is None else length))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def page() -> Iterator[type[Page]]:
    """With state of its own."""

    class Fresh(Page):
        ends, looked = threading.Event(), threading.Semaphore(0)

    yield Fresh
    Fresh.ends.set()


@contextmanager
def served(page: type[Page]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), page) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        page.ends.set()
        server.shutdown()


def test_viewers_look_at_the_live_parts_of_the_first_view(page: type[Page]) -> None:
    """Logged in once, each on a connection of its own."""
    with served(page) as url, logged_in(url, "t") as session, viewers(url, session, MANY):
        assert all(page.looked.acquire(timeout=PATIENCE) for _ in range(MANY))
        assert not page.looked.acquire(blocking=False)


def test_viewers_that_are_not_served_are_no_measurement(page: type[Page]) -> None:
    """The server ends their streams while they look."""
    with (
        served(page) as url,
        logged_in(url, "t") as session,
        pytest.raises(RuntimeError, match=f"ended the streams of {MANY} of {MANY} viewers"),
        viewers(url, session, MANY) as gone,
    ):
        page.ends.set()
        until = time.monotonic() + PATIENCE
        while len(gone) < MANY:
            assert time.monotonic() < until
            time.sleep(0.002)
