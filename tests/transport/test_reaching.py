"""Connecting to a POS without a request: the diagnosis, and that nothing is sent."""

import gc
import socket
import ssl
import threading
import weakref
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
import trustme

from pos_gateway.runtime import tls as contexts
from pos_gateway.transport import dial, endpoint
from pos_gateway.transport.errors import Misconfigured, NotSent
from pos_gateway.transport.exchange import Request, Transport
from pos_gateway.transport.guard import Guard
from testkit.hostile.peer import Script, peer
from testkit.patience import PATIENCE
from tests.transport.test_catalogue import Green


class Silent:
    """Waits for a request, and keeps the bytes that arrived."""

    def __init__(self) -> None:
        self.came: list[bytes] = []
        self.over = threading.Event()

    def __call__(self, connection: socket.socket) -> None:
        self.came.append(connection.recv(65536))
        self.over.set()


def reach(port: int, scheme: str = "http", guard: Guard | None = None, **identity: Any) -> None:
    whole = {"authority": None, "chain": None, **identity}
    Transport(guard=guard or Guard(allow_all=True)).reach(
        f"{scheme}://127.0.0.1:{port}/api",
        identity=SimpleNamespace(**whole) if identity else None,
    )


@pytest.fixture
def ca() -> trustme.CA:
    return trustme.CA()


def serving(ca: trustme.CA, *, host: str = "127.0.0.1", wants_ours: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert(host).configure_cert(context)
    if wants_ours:
        ca.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def pem(ca: trustme.CA) -> str:
    return ca.cert_pem.bytes().decode()


def test_a_waiting_pos_is_reached_and_gets_no_request(ca: trustme.CA) -> None:
    for tls in (None, serving(ca)):
        silent = Silent()
        with peer(silent, tls=tls) as seen:
            reach(seen.port, "http" if tls is None else "https", authority=pem(ca))
            assert silent.over.wait(PATIENCE)
        assert silent.came == [b""]
        assert seen.connections == 1


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_pos_that_requires_a_client_certificate_is_reached_with_one(
    ca: trustme.CA, version: ssl.TLSVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = serving(ca, wants_ours=True)
    tls.minimum_version = tls.maximum_version = version
    ours = ca.issue_cert("gateway.example").private_key_and_cert_chain_pem.bytes().decode()
    strangers = trustme.CA().issue_cert("gateway.example")
    foreign = strangers.private_key_and_cert_chain_pem.bytes().decode()
    with peer(Silent(), tls=tls) as seen:
        reach(seen.port, "https", authority=pem(ca), chain=ours)
        monkeypatch.setattr(endpoint, "LISTEN", PATIENCE)
        for chain in (None, foreign):
            with pytest.raises(Misconfigured) as caught:
                reach(seen.port, "https", authority=pem(ca), chain=chain)
            assert caught.value.code == "tls"


def test_a_pos_with_the_wrong_certificate_is_not_reached(ca: trustme.CA) -> None:
    for authority, host in ((trustme.CA(), "127.0.0.1"), (ca, "pos.example.com")):
        with (
            peer(Silent(), tls=serving(ca, host=host)) as seen,
            pytest.raises(Misconfigured) as caught,
        ):
            reach(seen.port, "https", authority=pem(authority))
        assert caught.value.code == "certificate"


def closes(_: socket.socket) -> None:
    """At once."""


def speaks(connection: socket.socket) -> None:
    connection.sendall(b"220 ready\r\n")
    connection.recv(1)


@pytest.mark.parametrize(("script", "code"), [(closes, "broken_off"), (speaks, "invalid_reply")])
def test_a_peer_that_does_not_wait_for_a_request_is_no_pos(
    ca: trustme.CA, script: Script, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "LISTEN", PATIENCE)
    for tls in (None, serving(ca)):
        with peer(script, tls=tls) as seen, pytest.raises(NotSent) as caught:
            reach(seen.port, "http" if tls is None else "https", authority=pem(ca))
        assert caught.value.code == code


def test_an_absent_pos_is_not_reached() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as gone:
        port = gone.getsockname()[1]
    with pytest.raises(NotSent, match="refused"):
        reach(port)


def drips(connection: socket.socket) -> None:
    """An endless handshake: a byte of a record at a time."""
    connection.recv(65536)
    connection.sendall(b"\x16\x03\x03\x40\x00")
    ended = threading.Event()
    while not ended.wait(0.02):  # the peer's behaviour, not a wait of the test
        connection.sendall(b"\x02")


def holds(connection: socket.socket) -> None:
    connection.recv(65536)
    connection.recv(1)


@pytest.mark.parametrize("script", [holds, drips])
def test_an_endless_handshake_ends_with_the_budget(
    monkeypatch: pytest.MonkeyPatch, script: Script
) -> None:
    monkeypatch.setattr(dial, "CONNECT_BUDGET", 0.2)
    with peer(script) as seen, pytest.raises(NotSent, match="handshake") as caught:
        reach(seen.port, "https")
    assert caught.value.code == "timeout"


@pytest.mark.parametrize("script", [holds, drips])
def test_an_endless_handshake_ends_with_the_budget_on_green_threads(script: Script) -> None:
    green = Green()
    with peer(script) as seen:
        came_of_it = green.play(seen.url(scheme="https"), 1, budget=0.2)["came_of_them"]
    green.close()
    assert came_of_it == {"NotSent timeout": 1}


def test_an_address_that_the_guard_refuses_is_not_connected_to() -> None:
    with peer(Silent()) as seen:
        refusals = ((Guard(ports=frozenset({seen.port})), "https"), (Guard(), "http"))
        for guard, scheme in refusals:
            with pytest.raises(Misconfigured) as caught:
                reach(seen.port, scheme, guard)
            assert caught.value.code == "security"
        assert seen.connections == 0


def test_an_invalid_url_is_reported(ca: trustme.CA) -> None:
    for url in ("ftp://pos.example.com", "https://", "https://[::1"):
        with pytest.raises(Misconfigured) as caught:
            Transport(guard=Guard(allow_all=True)).reach(url)
        assert caught.value.code == "url"


def test_merchants_with_one_certificate_share_a_tls_context_while_one_of_them_is_called(
    ca: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A context holds the system's authorities: 50 ms of the loop and a megabyte each."""
    made: list[weakref.ref[ssl.SSLContext]] = []
    real = contexts.context

    def context(**terms: Any) -> ssl.SSLContext:
        context = real(**terms)
        made.append(weakref.ref(context))
        return context

    monkeypatch.setattr(contexts, "context", context)
    transport = Transport(guard=Guard(allow_all=True))
    made.clear()  # for merchants without an identity
    with closing(socket.create_server(("127.0.0.1", 0))) as gone:
        url = f"https://127.0.0.1:{gone.getsockname()[1]}/"

    def call(key: str, chain: str, authority: str | None) -> None:
        # Another object each time, as each record's.
        identity = SimpleNamespace(chain="".join(chain), authority=authority)
        request = Request("POST", url, b"")
        with pytest.raises(NotSent):
            transport.send(request, key=key, connections=1, seconds=5, identity=identity)

    ours, others = (
        ca.issue_cert(name).private_key_and_cert_chain_pem.bytes().decode() for name in "ab"
    )
    for number in range(200):
        call(f"merchant {number}", ours, None)
    assert len(made) == 1
    call("another certificate", others, None)
    call("another authority", ours, pem(ca))
    assert len(made) == 3
    transport.close()
    gc.collect()
    assert [each() for each in made] == [None] * 3
    call("merchant 0", ours, None)
    assert len(made) == 4
