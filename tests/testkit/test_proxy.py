"""The proxy breaks connections in the ways that it names, and heals."""

import queue
import socket
import socketserver
import threading
import time
from collections.abc import Iterator

import kombu
import pytest

from testkit.patience import PATIENCE
from testkit.servers.proxy import Proxy

SOON = 0.2  # seconds that silence is listened to


class Echo(socketserver.ThreadingTCPServer):
    """Sends back what it receives, and tells what that was; b"" is the end of a connection."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        self.received: queue.Queue[bytes] = queue.Queue()
        super().__init__(("127.0.0.1", 0), _EchoConnection)


class _EchoConnection(socketserver.BaseRequestHandler):
    server: Echo

    def handle(self) -> None:
        try:
            while data := self.request.recv(65536):
                self.server.received.put(data)
                self.request.sendall(data)
        except ConnectionError:
            pass
        self.server.received.put(b"")


@pytest.fixture
def echo() -> Iterator[Echo]:
    with Echo() as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy(f"tcp://127.0.0.1:{echo.server_address[1]}") as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Proxy, echo: Echo) -> Iterator[socket.socket]:
    """A connection that has been used, so that it is known to reach the server."""
    with connect(proxy) as client:
        assert exchange(client, b"hello") == b"hello"
        assert received(echo) == b"hello"
        yield client


def test_what_passes_a_healthy_proxy_is_unchanged(proxy: Proxy) -> None:
    data = bytes(range(256)) * 4096
    with connect(proxy) as client:
        threading.Thread(target=client.sendall, args=(data,), daemon=True).start()
        assert receive(client, len(data)) == data


def test_latency_delays_both_ways_without_adding_up(proxy: Proxy, client: socket.socket) -> None:
    proxy.latency(0.1)
    started = time.monotonic()
    for _ in range(50):
        client.sendall(b"a")

    assert receive(client, 50) == b"a" * 50
    assert 0.2 <= time.monotonic() - started < 2


def test_latency_can_be_put_on_one_direction(
    proxy: Proxy, client: socket.socket, echo: Echo
) -> None:
    proxy.latency(30, stream="downstream")
    client.sendall(b"arrives")

    assert received(echo) == b"arrives"
    assert silent(client)


def test_down_closes_what_there_is_and_refuses_what_comes_until_healed(
    proxy: Proxy, client: socket.socket
) -> None:
    proxy.down()

    assert ended(client)
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
    proxy.heal()
    with connect(proxy) as again:
        assert exchange(again, b"back") == b"back"


def test_timeout_accepts_and_delivers_nothing_until_healed(
    proxy: Proxy, client: socket.socket
) -> None:
    proxy.timeout()

    with connect(proxy) as another:
        client.sendall(b"one")
        another.sendall(b"two")
        assert silent(client)
        assert silent(another)
        proxy.heal()
        assert (receive(client, 3), receive(another, 3)) == (b"one", b"two")


def test_a_request_can_arrive_and_its_reply_be_lost(
    proxy: Proxy, client: socket.socket, echo: Echo
) -> None:
    proxy.timeout(stream="downstream")
    client.sendall(b"commit")
    assert received(echo) == b"commit"

    proxy.cut()

    assert ended(client)


def test_reset_peer_resets_present_and_new_connections(proxy: Proxy, client: socket.socket) -> None:
    proxy.reset_peer()

    with pytest.raises(ConnectionResetError):
        client.recv(1)
    with pytest.raises(ConnectionResetError), connect(proxy) as another:
        another.recv(1)


def test_bandwidth_bounds_the_bytes_a_second(proxy: Proxy, client: socket.socket) -> None:
    proxy.bandwidth(100_000, stream="upstream")
    started = time.monotonic()

    assert exchange(client, bytes(20_000)) == bytes(20_000)
    assert time.monotonic() - started >= 0.2


def test_slicer_delivers_in_small_pieces(proxy: Proxy, client: socket.socket, echo: Echo) -> None:
    proxy.slicer(2, delay=0.5, stream="upstream")  # enough to be read one by one
    client.sendall(b"abcdef")

    assert [received(echo) for _ in range(3)] == [b"ab", b"cd", b"ef"]


def test_cut_closes_present_connections_on_both_sides_and_lets_new_ones_pass(
    proxy: Proxy, client: socket.socket, echo: Echo
) -> None:
    assert proxy.connections() == 1

    proxy.cut()

    assert ended(client)
    assert received(echo) == b""
    assert proxy.connections() == 0
    with connect(proxy) as another:
        assert exchange(another, b"new") == b"new"


def test_half_open_leaves_the_client_alone_with_a_server_that_is_gone(
    proxy: Proxy, client: socket.socket, echo: Echo
) -> None:
    proxy.half_open()

    assert received(echo) == b""
    client.sendall(b"anybody there?")
    assert silent(client)
    assert proxy.connections() == 1
    proxy.reset_peer()
    with pytest.raises(ConnectionResetError):
        client.recv(1)


def test_half_open_leaves_the_server_alone_with_a_client_that_is_gone(
    proxy: Proxy, client: socket.socket, echo: Echo
) -> None:
    proxy.half_open(gone="client")

    assert ended(client)
    with pytest.raises(queue.Empty):
        echo.received.get(timeout=SOON)
    proxy.cut()
    assert received(echo) == b""


def test_without_a_server_behind_it_a_connection_ends_at_once(proxy: Proxy, echo: Echo) -> None:
    echo.shutdown()
    echo.server_close()

    with connect(proxy) as client:
        assert ended(client)


def test_celery_s_kind_of_url_leads_through_the_proxy_to_the_same_virtual_host(
    broker_url: str,
) -> None:
    with Proxy(broker_url) as proxy, kombu.Connection(proxy.url) as connection:
        connection.connect()
        assert proxy.url.rpartition("/")[2] == broker_url.rpartition("/")[2]
        assert proxy.connections() == 1


def connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE)


def exchange(client: socket.socket, data: bytes) -> bytes:
    client.sendall(data)
    return receive(client, len(data))


def receive(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = client.recv(size - len(data))
        assert piece, "the connection ended"
        data += piece
    return data


def received(echo: Echo) -> bytes:
    return echo.received.get(timeout=PATIENCE)


def ended(client: socket.socket) -> bool:
    return client.recv(1) == b""


def silent(client: socket.socket) -> bool:
    client.settimeout(SOON)
    try:
        return client.recv(1) is None
    except TimeoutError:
        return True
    finally:
        client.settimeout(PATIENCE)
