"""A server of pages."""

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from loadtests.servers.process import free_port
from pos_gateway.telemetry import serving
from pos_gateway.telemetry.serving import Answer, Page, Server
from tests.telemetry.lab import get, get_json

Serve = Callable[[Mapping[str, Page]], int]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves pages, and returns at which port."""
    servers: list[Server] = []

    def serve(pages: Mapping[str, Page]) -> int:
        port = free_port()
        servers.append(Server(port, pages))
        servers[-1].start()
        return port

    yield serve
    for each in servers:
        each.stop()


def test_a_page_is_given_the_query_and_says_what_it_likes(serve: Serve) -> None:
    port = serve({"/page": lambda query: Answer.of({"asked": dict(query)}, 418)})
    assert get_json(port, "/page?a=1&b=&a=2") == (418, {"asked": {"a": "2", "b": ""}})


def test_any_other_path_is_told_which_there_are(serve: Serve) -> None:
    port = serve({"/b": lambda _: Answer.of(1), "/a": lambda _: Answer.of(1)})
    status, said = get_json(port, "/c")
    assert (status, said["pages"]) == (404, ["/a", "/b"])


def test_a_client_that_says_nothing_is_let_go_of(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving._Handler, "timeout", 0.05)
    port = serve({"/page": lambda _: Answer.of(1)})
    with closing(socket.create_connection(("127.0.0.1", port), timeout=60)) as silent:
        assert silent.recv(1) == b""
        assert get(port, "/page")[0] == 200


def test_a_mistake_in_a_page_is_logged_and_ends_that_request_only(serve: Serve) -> None:
    def broken(_query: Mapping[str, str]) -> Answer:
        raise ZeroDivisionError

    port = serve({"/broken": broken, "/page": lambda _: Answer.of(1)})
    with capture_logs() as logs:
        with pytest.raises(OSError):
            get(port, "/broken")
        assert get(port, "/page")[0] == 200
    assert [each["event"] for each in logs] == ["metrics.page_failed"]


def test_a_port_that_is_taken_is_said_and_no_more() -> None:
    with closing(socket.create_server(("", 0))) as taken:
        server = Server(taken.getsockname()[1], {})
        with capture_logs() as logs:
            server.start()
        server.stop()
    assert [each["event"] for each in logs] == ["metrics.port_taken"]


def test_stopped_it_leaves_the_port_to_others() -> None:
    port = free_port()
    for _ in range(2):
        server = Server(port, {"/page": lambda _: Answer.of(1)})
        server.start()
        server.start()
        assert get(port, "/page")[0] == 200
        server.stop()
        server.stop()
    with pytest.raises(OSError):
        get(port, "/page")


def test_a_connection_that_cannot_be_taken_is_not_tried_again_without_a_pause(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused: list[float] = []
    tried: list[object] = []

    def accept(server: serving._HTTPServer) -> tuple[socket.socket, object]:
        tried.append(server)
        if len(tried) < 3:
            raise OSError("Too many open files")
        return server.socket.accept()

    monkeypatch.setattr(serving.ThreadingHTTPServer, "get_request", accept)
    monkeypatch.setattr(serving, "time", SimpleNamespace(sleep=paused.append))
    port = serve({"/page": lambda _: Answer.of(1)})
    assert get(port, "/page")[0] == 200
    assert len(tried) == 3
    assert paused == [serving._PAUSE] * 2
