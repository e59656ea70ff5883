"""The HTTP server of the metrics port."""

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing, suppress
from time import monotonic
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from pos_gateway.telemetry import serving
from pos_gateway.telemetry.port import MetricsPort
from pos_gateway.telemetry.serving import Page, PageReply
from testkit.patience import PATIENCE
from testkit.servers.process import free_port
from tests.telemetry.lab import get, get_json

Serve = Callable[[Mapping[str, Page]], int]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves pages; returns the port."""
    servers: list[MetricsPort] = []

    def serve(pages: Mapping[str, Page]) -> int:
        port = free_port()
        servers.append(MetricsPort(port))
        servers[-1].pages = dict(pages)
        servers[-1].start()
        return port

    yield serve
    for each in servers:
        each.stop()


def test_a_page_gets_the_query_and_returns_its_answer(serve: Serve) -> None:
    port = serve({"/page": lambda query: PageReply.of({"asked": dict(query)}, 418)})
    assert get_json(port, "/page?a=1&b=&a=2") == (418, {"asked": {"a": "2", "b": ""}})


def test_a_head_has_the_pages_headers_alone(serve: Serve) -> None:
    port = serve({"/page": lambda _: PageReply.of({"a": 1}, 418)})
    with closing(socket.create_connection(("127.0.0.1", port), 10)) as client:
        client.sendall(b"HEAD /page HTTP/1.1\r\nHost: a\r\n\r\n")
        came = b"".join(iter(lambda: client.recv(4096), b""))
    head, _, body = came.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 418 ")
    assert b"Content-Length: 8" in head
    assert body == b""


def test_an_unknown_path_lists_the_known_ones(serve: Serve) -> None:
    port = serve({"/b": lambda _: PageReply.of(1), "/a": lambda _: PageReply.of(1)})
    status, said = get_json(port, "/c")
    assert (status, said["pages"]) == (404, ["/a", "/b"])


def test_a_silent_client_is_disconnected(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving._Handler, "client_timeout", 0.05)
    port = serve({"/page": lambda _: PageReply.of(1)})
    with closing(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)) as silent:
        assert silent.recv(1) == b""
        assert get(port, "/page")[0] == 200


def test_a_slow_client_is_disconnected(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving._Handler, "client_timeout", 0.5)
    port = serve({"/page": lambda _: PageReply.of(1)})
    with closing(socket.create_connection(("127.0.0.1", port), timeout=0.05)) as dripping:
        dripping.sendall(b"GET /page HTTP/1.1\r\nX: ")
        with pytest.raises(ConnectionError):  # otherwise it would go on for ever
            while True:
                dripping.sendall(b"x")
                with suppress(TimeoutError):
                    if dripping.recv(1) == b"":
                        raise ConnectionError


def test_a_too_long_request_is_not_read_to_its_end(serve: Serve) -> None:
    port = serve({"/page": lambda _: PageReply.of(1)})
    long = b"GET /page HTTP/1.1\r\nX: " + b"x" * serving.LONGEST + b"\r\n\r\n"
    with closing(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)) as client:
        client.sendall(long[:-1])
        with suppress(ConnectionError):
            assert client.recv(1) == b""


def test_idle_connections_are_closed_for_new_ones(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "MAX_CLIENTS", 3)
    port = serve({"/page": lambda _: PageReply.of(1)})
    with ExitStack() as stack:
        silent = []
        for _ in range(4):
            client = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
            silent.append(stack.enter_context(closing(client)))
            client.sendall(b"GET ")
        assert silent[0].recv(1) == b""
        assert get(port, "/page")[0] == 200
        assert silent[1].recv(1) == b""
        silent[3].sendall(b"/page HTTP/1.0\r\n\r\n")
        assert silent[3].recv(1) == b"H"


def test_a_page_is_rendered_one_at_a_time_with_a_bounded_queue(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "PLACES", 2)
    begun, go_on, at_once = threading.Semaphore(0), threading.Semaphore(0), []

    def page(_query: Mapping[str, str]) -> PageReply:
        at_once.append(len(at_once))
        begun.release()
        assert go_on.acquire(timeout=PATIENCE)
        return PageReply.of(len(at_once))

    port = serve({"/page": serving.one_at_a_time(page), "/other": lambda _: PageReply.of(1)})
    with ThreadPoolExecutor(3) as clients:
        first = clients.submit(get, port, "/page")
        assert begun.acquire(timeout=PATIENCE)
        others = [clients.submit(get, port, "/page") for _ in range(2)]
        refused = next(as_completed(others, timeout=PATIENCE)).result()
        assert (refused[0], len(at_once)) == (503, 1)
        assert get(port, "/other")[0] == 200
        go_on.release(2)
        assert [first.result()[0], *sorted(each.result()[0] for each in others)] == [200, 200, 503]
    assert len(at_once) == 2


def test_an_exception_in_a_page_is_logged_and_ends_that_request_only(serve: Serve) -> None:
    def broken(_query: Mapping[str, str]) -> PageReply:
        raise ZeroDivisionError

    port = serve({"/broken": broken, "/page": lambda _: PageReply.of(1)})
    with capture_logs() as logs:
        with pytest.raises(OSError):
            get(port, "/broken")
        assert get(port, "/page")[0] == 200
    assert [each["event"] for each in logs] == ["metrics.page_failed"]


def test_a_taken_port_is_logged_and_not_fatal() -> None:
    with closing(socket.create_server(("", 0))) as taken:
        server = MetricsPort(taken.getsockname()[1])
        with capture_logs() as logs:
            server.start()
        server.stop()
    assert [each["event"] for each in logs] == ["metrics.port_taken"]


def test_a_stopped_server_frees_the_port() -> None:
    port = free_port()
    for _ in range(2):
        server = MetricsPort(port)
        server.start()
        server.start()
        assert get(port, "/healthz")[0] == 200
        server.stop()
        server.stop()
    with pytest.raises(OSError):
        get(port, "/healthz")


def test_a_failed_accept_is_retried_after_a_pause(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused: list[float] = []
    tried: list[object] = []

    def accept(server: serving.PageServer) -> tuple[socket.socket, object]:
        tried.append(server)
        if len(tried) < 3:
            raise OSError("Too many open files")
        return server.socket.accept()

    monkeypatch.setattr(serving.ThreadingHTTPServer, "get_request", accept)
    monkeypatch.setattr(serving, "time", SimpleNamespace(sleep=paused.append, monotonic=monotonic))
    port = serve({"/page": lambda _: PageReply.of(1)})
    assert get(port, "/page")[0] == 200
    assert len(tried) == 3
    assert paused == [serving._PAUSE] * 2
