"""What ``uvicorn_internals.py`` relies on: on an upgrade this fails before a server does."""

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from pos_gateway.server import uvicorn_internals
from pos_gateway.server.uvicorn_internals import HttpServer, Protocol

SOON = 20.0


class Patient(Protocol):
    """As the server's, with less time for a request."""

    request_timeout = 0.2


async def echo(scope: Any, receive: Any, send: Any) -> None:
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return
        body, more = body + message["body"], message["more_body"]
    length = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": length})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
def stops() -> list[str]:
    return []


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch, stops: list[str]) -> Iterator[tuple[str, int]]:
    monkeypatch.setattr(uvicorn_internals, "_SWEEP", 0.02)
    config = uvicorn.Config(echo, http=Patient, ws="none", lifespan="off", log_config=None)
    server = HttpServer(config, on_stop=lambda: stops.append("told"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        where = listener.getsockname()[:2]
        running = threading.Thread(
            target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True
        )
        running.start()
        yield where
        server.should_exit = True
        running.join(SOON)
    assert stops == ["told"]


def exchanged(address: tuple[str, int], *sent: bytes) -> bytes:
    """All that the server sends until it closes the connection."""
    received = b""
    with socket.create_connection(address, SOON) as connection:
        for each in sent:
            connection.sendall(each)
        while more := connection.recv(65536):
            received += more
    return received


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HT",
        b"GET / HTTP/1.1\r\nHost: x\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n",
        b"GET / HTTP/1.1\r\n\r\nGET / HT",
    ],
)
def test_a_request_that_does_not_come_completely_is_ended(
    address: tuple[str, int], sent: bytes
) -> None:
    replies = exchanged(address, sent).split(b"HTTP/1.1 ")[1:]
    assert [each[:3] for each in replies] == [b"200"] * sent.count(b"\r\n\r\nG") + [b"408"]


def test_a_head_is_bounded_before_it_is_whole(address: tuple[str, int]) -> None:
    line = b"A: " + b"b" * 1000 + b"\r\n"
    assert exchanged(address, b"GET / HTTP/1.1\r\n", line * 100).startswith(b"HTTP/1.1 431 ")


def test_requests_of_one_connection_are_counted_each_by_itself(address: tuple[str, int]) -> None:
    request = b"POST / HTTP/1.1\r\nA: " + b"b" * 20_000 + b"\r\nContent-Length: 3\r\n\r\nabc"
    last = b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n"
    assert exchanged(address, request * 5 + last).count(b"HTTP/1.1 200 ") == 6


def test_a_refusal_is_not_taken_for_the_reply_to_an_earlier_request(
    address: tuple[str, int],
) -> None:
    replies = exchanged(address, b"GET / HTTP/1.1\r\n\r\n" * 20 + b"nonsense\r\n\r\n")
    assert b"HTTP/1.1 400 " not in replies or replies.count(b"HTTP/1.1 200 ") == 20


def test_a_request_to_upgrade_is_refused_with_its_body(address: tuple[str, int]) -> None:
    sent = b"POST / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 3\r\n\r\nabc"
    replies = exchanged(address, sent, b"GET / HTTP/1.1\r\n\r\n")
    assert replies.startswith(b"HTTP/1.1 400 ") and replies.count(b"HTTP/1.1 4") == 1


def test_the_first_signal_stops_it_and_the_second_has_its_default_effect() -> None:
    code = """
import asyncio, socket, sys, uvicorn
from pos_gateway.server.uvicorn_internals import Protocol, Server
async def hang(scope, receive, send):
    print("in", flush=True)
    await asyncio.sleep(60)
config = uvicorn.Config(hang, http=Protocol, ws="none", lifespan="off", log_config=None)
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
asyncio.run(Server(config, lambda: print("told", flush=True)).serve(sockets=[listener]))
"""
    import subprocess
    import sys

    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with socket.create_connection(("127.0.0.1", port), SOON) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert process.stdout.readline() == b"in\n"
            os.kill(process.pid, signal.SIGTERM)
            assert process.stdout.readline() == b"told\n"
            os.kill(process.pid, signal.SIGTERM)
            assert process.wait(SOON) == -signal.SIGTERM
