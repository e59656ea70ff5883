"""What sessions with a deadline use of urllib3 and requests, beyond their documentation."""

import json
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
import trustme
from urllib3.exceptions import HTTPError
from urllib3.util.ssltransport import SSLTransport

from pos_gateway.transport import urllib3_internals as subject
from tests.server.lab import SOON
from tests.server.scripted import Scripted, drip, tunnel

OK = (200, {}, b"OK")
HEAD = b"HTTP/1.1 200 OK\r\nX: "
BODY = b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n"

#: Asks all URLs at once, and prints what came, and after how long. A live server has seconds, of which a
#: dead address takes its part; the others have half of one.
PROGRAM = """
import json, socket, sys, threading, time
import requests
from urllib3.exceptions import HTTPError
from pos_gateway.transport.urllib3_internals import content_of, deadline, new_session, send

job = json.load(sys.stdin)
resolve = socket.getaddrinfo

def resolved(host, port, *arguments, **options):
    addresses = job["addresses"].get(host)
    if addresses is None:
        return resolve(host, port, *arguments, **options)
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", tuple(each)) for each in addresses]

socket.getaddrinfo = resolved

def ask(name, url, proxy, size):
    began = time.monotonic()
    connect, whole = job["live"] if name in job["replies"] else (0.4, 0.5)
    with new_session(url) as session:
        session.proxies = {"https": proxy} if proxy else {}
        request = requests.Request("POST", url, data=b"x" * size)
        try:
            with deadline(whole), send(session, request, (connect, 60.0), job["authority"]) as reply:
                came = content_of(reply, 99).decode()
        except (OSError, HTTPError) as error:
            came = type(error).__name__
    results[name] = came, time.monotonic() - began

results = {}
threads = [threading.Thread(target=ask, args=each) for each in job["cases"]]
for each in threads:
    each.start()
for each in threads:
    each.join()
print(json.dumps(results))
"""
GREEN = "from gevent import monkey\nmonkey.patch_all()\n"


@contextmanager
def listening(backlog: int = 64) -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=backlog) as server:
        yield server


@contextmanager
def dead() -> Iterator[tuple[str, int]]:
    """An address where no connection is accepted, nor refused."""
    with listening(0) as server, ExitStack() as fill:
        for _ in range(3):
            waiting = fill.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        yield server.getsockname()


@contextmanager
def raw(drop: bytes = b"", sip: int = 0) -> Iterator[int]:
    """The port of a server that reads and writes a few bytes every 0.05 s."""
    stop = threading.Event()

    def write(client: socket.socket) -> None:
        with client:
            while not stop.wait(0.05):
                try:
                    client.sendall(drop)
                    sip and client.recv(sip)
                except OSError:
                    return

    def accept() -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=write, args=(client,), daemon=True).start()

    with listening() as server:
        threading.Thread(target=accept, daemon=True).start()
        try:
            yield server.getsockname()[1]
        finally:
            stop.set()
            server.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def authority(tmp_path: Path) -> tuple[str, ssl.SSLContext]:
    made = trustme.CA()
    made.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.issue_cert("127.0.0.1").configure_cert(context)
    return str(tmp_path / "ca.pem"), context


@pytest.fixture
def made() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize("begin", ["", GREEN], ids=["threads", "gevent"])
def test_an_exchange_ends_at_its_deadline_whatever_the_peer_does(
    made: ExitStack, authority: tuple[str, ssl.SSLContext], begin: str
) -> None:
    pem, context = authority

    def scripted(reply: Any, tls: ssl.SSLContext | None = None) -> str:
        server = Scripted(reply, tls=tls)
        made.callback(server.close)
        return server.url

    nowhere, live = made.enter_context(dead()), scripted(OK)
    silent, sips = made.enter_context(raw()), made.enter_context(raw(sip=1 << 16))
    record = made.enter_context(raw(b"\x16\x03\x03\x40\x00a"))
    port = int(live.rpartition(":")[2])
    cases: list[tuple[str, str, str | None, int]] = [
        ("plain", live, None, 9),
        ("TLS", scripted(OK, context), None, 9),
        ("a dead address before a live one", "http://half.example", None, 9),
        ("dead addresses", "http://dead.example", None, 9),
        ("head", scripted(drip(HEAD)), None, 9),
        ("head, TLS", scripted(drip(HEAD), context), None, 9),
        ("body", scripted(drip(BODY)), None, 9),
        ("body, TLS", scripted(drip(BODY), context), None, 9),
        ("handshake", f"https://127.0.0.1:{record}", None, 9),
        ("a proxy's head", "https://live.example", scripted(drip(HEAD)), 9),
        ("body through a proxy", scripted(drip(BODY), context), scripted(tunnel), 9),
        ("a request that is not read", f"http://127.0.0.1:{silent}", None, 1 << 25),
        ("a request that is read slowly", f"http://127.0.0.1:{sips}", None, 1 << 25),
    ]
    replies = {"plain", "TLS", "a dead address before a live one"}
    job = {
        "authority": pem,
        "cases": cases,
        "live": (SOON / 10, SOON / 4),
        "replies": sorted(replies),
        "addresses": {
            "dead.example": [nowhere] * 64,
            "half.example": [nowhere, ("127.0.0.1", port)],
        },
    }
    done = subprocess.run(
        [sys.executable, "-c", begin + PROGRAM],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        timeout=SOON * 2,
    )
    assert done.returncode == 0, done.stderr
    came: dict[str, tuple[str, float]] = json.loads(done.stdout)
    assert {name for name, (what, _) in came.items() if what == "OK"} == replies
    assert len(came) == len(cases)
    assert max(took for _, took in came.values()) < SOON / 2, came


def test_a_connection_has_a_socket_with_a_deadline(
    made: ExitStack, authority: tuple[str, ssl.SSLContext]
) -> None:
    """Also below TLS, and again when it is used again."""
    pem, context = authority
    for tls in (None, context):
        server = Scripted(OK, tls=tls)
        made.callback(server.close)
        session = made.enter_context(subject.new_session(server.url))
        for _ in range(2):
            request = requests.Request("GET", server.url)
            with subject.deadline(SOON), subject.send(session, request, (SOON, SOON), pem) as reply:
                used = reply.raw.connection.sock
                assert isinstance(used, SSLTransport) is (tls is not None)
                assert isinstance(getattr(used, "socket", used), subject._Socket)
                assert subject.content_of(reply, 2) == b"OK"
        assert len({each.port for each in server.asked}) == 1


def test_connecting_leaves_time_for_another_try(made: ExitStack) -> None:
    """TLS counts as a part of it."""
    url = f"https://127.0.0.1:{made.enter_context(raw())}"
    request, began = requests.Request("GET", url), time.monotonic()
    with (
        subject.new_session(url) as session,
        subject.deadline(SOON),
        pytest.raises(requests.Timeout),
    ):
        subject.send(session, request, (0.2, SOON))
    assert time.monotonic() - began < SOON / 2


def test_a_request_may_take_longer_than_connecting(made: ExitStack) -> None:
    server = made.enter_context(listening())

    def reply() -> None:
        client, _ = server.accept()
        with client, client.makefile("rb") as lines:
            time.sleep(0.6)
            while (line := lines.readline()) != b"\r\n":
                assert line
            lines.read(1 << 25)
            client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    thread = threading.Thread(target=reply)
    thread.start()
    url = f"http://127.0.0.1:{server.getsockname()[1]}"
    request = requests.Request("POST", url, data=b"x" * (1 << 25))
    with (
        subject.new_session(url) as session,
        subject.deadline(SOON),
        subject.send(session, request, (0.2, SOON)) as replied,
    ):
        assert replied.status_code == 200
    thread.join(SOON)


def test_what_is_no_host_is_an_error_of_requests_or_urllib3() -> None:
    for host in ("nowhere.invalid", "a" * 70 + ".example"):
        with subject.new_session("http://x") as session, pytest.raises((OSError, HTTPError)):
            request = requests.Request("GET", f"http://{host}")
            with subject.deadline(SOON):
                subject.send(session, request, (SOON, SOON))


def test_a_certificate_is_checked_by_default(
    made: ExitStack, authority: tuple[str, ssl.SSLContext]
) -> None:
    pem, context = authority
    server = Scripted(OK, tls=context)
    made.callback(server.close)
    for verify, url in ((None, server.url), (pem, server.url.replace("127.0.0.1", "localhost"))):
        request = requests.Request("GET", url)
        with (
            subject.new_session(url) as session,
            subject.deadline(SOON),
            pytest.raises(requests.exceptions.SSLError),
        ):
            subject.send(session, request, (SOON, SOON), verify)
    assert server.asked == []
