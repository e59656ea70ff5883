"""The backend's client over HTTP: on a real server, and against one that is scripted."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from pos_gateway.domain.errors import (
    BrokerUnavailable,
    InvalidOrder,
    InvalidSettings,
    OrderDiffers,
    PosGatewayError,
    Unauthorized,
)
from pos_gateway.http_client import HttpOrderClient
from testkit.servers.rabbitmq import RabbitMQ
from tests.server.lab import Server, migrated, order, serving


@pytest.fixture
def client(server: Server) -> Iterator[HttpOrderClient]:
    with HttpOrderClient(server.url, server.token) as client:
        yield client


def test_an_order_is_submitted_found_and_cancelled(client: HttpOrderClient, order_id: str) -> None:
    same = order(order_id)
    assert client.find(order_id, "m1") is None
    assert client.submit(same) == "submitted"
    assert client.submit(same, again=True) == "submitted"
    found = client.find(order_id, "m1")
    assert found is not None and found["state"] == "submitted"
    client.cancel(order_id, "m1")
    client.cancel("a/b", "m%")


def test_refusals_have_the_types_of_the_other_client(
    client: HttpOrderClient, server: Server, order_id: str
) -> None:
    with pytest.raises(InvalidOrder) as caught:
        client.submit(order(order_id, currency="euro"))
    assert caught.value.field == "currency"
    with pytest.raises(InvalidOrder, match="order_id"):
        client.cancel("..", "m1")
    client.submit(order(order_id))
    with pytest.raises(OrderDiffers, match=order_id):
        client.submit(order(order_id, total=1))
    with pytest.raises(Unauthorized, match="begins with pgw_"):
        HttpOrderClient(server.url, "nonsense").submit(order(order_id))


def test_many_orders_have_a_result_each(client: HttpOrderClient, order_id: str) -> None:
    ids = [f"{order_id}-{n}" for n in range(1100)]
    orders = [order(each) for each in ids]
    orders[3] = {"order_id": "wrong"}
    orders[5] = {**orders[4], "total": 1}
    results = client.submit_many(orders)
    assert len(results) == len(orders)
    assert [n for n, each in enumerate(results) if each.error is not None] == [3, 5]
    assert isinstance(results[3].error, InvalidOrder)
    assert isinstance(results[5].error, OrderDiffers)
    assert results[1099].state == "submitted" and results[1099].order_id == ids[1099]


def test_a_broker_that_is_away_is_a_503_in_time_and_back_a_202(
    rabbitmq: RabbitMQ, tmp_path: Path, order_id: str
) -> None:
    with RabbitMQ() as broker:
        database = migrated(f"sqlite:///{tmp_path}/gateway.db")
        with serving(broker.url, database, tmp_path / "log") as server:
            assert server.post("/v1/orders", order(order_id)).status_code == 202
            broker.kill()
            second = order(order_id + "-2")
            refused = server.post("/v1/orders", second)
            assert (refused.status_code, refused.json()["code"]) == (503, "broker_unavailable")
            assert refused.headers["retry-after"] == "1"
            assert server.get("/readyz").status_code == 503
            with pytest.raises(BrokerUnavailable, match="submit the same again"):
                HttpOrderClient(server.url, server.token, timeout=1).submit(second)
            broker.start()
            server.wait_until_ready()  # without a request that would notice
            patient = HttpOrderClient(server.url, server.token, timeout=60)
            assert patient.submit(second) == "submitted"


class Scripted:
    """An HTTP server that replies as it is told, and keeps what it was sent."""

    def __init__(self, replies: list[tuple[int, dict[str, str], bytes]]) -> None:
        self.replies = replies
        self.requests: list[tuple[str, dict[str, str]]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.requests.append((self.path, dict(self.headers)))
                self.rfile.read(int(self.headers["Content-Length"]))
                status, headers, body = outer.replies.pop(0)
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def scripted() -> Iterator[Callable[..., Scripted]]:
    servers: list[Scripted] = []

    def make(*replies: tuple[int, dict[str, str], bytes]) -> Scripted:
        servers.append(Scripted(list(replies)))
        return servers[-1]

    yield make
    for each in servers:
        each.server.shutdown()
        each.server.server_close()


TAKEN = (202, {}, json.dumps({"order_id": "o", "merchant_id": "m", "state": "submitted"}).encode())


class Time:
    """A clock that goes on when one sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def test_it_tries_again_as_it_is_asked_to(scripted: Callable[..., Scripted]) -> None:
    server = scripted(
        (429, {"Retry-After": "3"}, b"{}"), (503, {}, b"<html>"), (502, {}, b""), TAKEN
    )
    time = Time()
    client = HttpOrderClient(server.url, "pgw_x", monotonic=lambda: time.now, sleep=time.sleep)
    assert client.submit(order()) == "submitted"
    assert len(server.requests) == 4
    assert time.slept[0] >= 3


def test_it_stops_in_time(scripted: Callable[..., Scripted]) -> None:
    server = scripted(*[(503, {"Retry-After": "4"}, b"{}")] * 10)
    time = Time()
    client = HttpOrderClient(server.url, "pgw_x", monotonic=lambda: time.now, sleep=time.sleep)
    with pytest.raises(BrokerUnavailable):
        client.submit(order())
    assert time.now <= 10
    nowhere = HttpOrderClient(
        "http://127.0.0.1:9", "pgw_x", monotonic=lambda: time.now, sleep=time.sleep
    )
    with pytest.raises(BrokerUnavailable, match="cannot be reached"):
        nowhere.submit(order())


@pytest.mark.parametrize(
    "reply",
    [
        (200, {"Content-Type": "text/html"}, b"<html>welcome</html>"),
        (301, {"Location": "http://127.0.0.1:9/"}, b""),
        (404, {}, b"not here"),
    ],
)
def test_a_reply_that_is_not_the_gateways_is_told(
    scripted: Callable[..., Scripted], reply: Any
) -> None:
    client = HttpOrderClient(scripted(reply).url, "pgw_secret")
    with pytest.raises(PosGatewayError, match="not the gateway's") as caught:
        client.submit(order())
    assert "pgw_secret" not in str(caught.value) + repr(client) + repr(vars(caught.value))


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidSettings, match="POS_GATEWAY_HTTP_URL"):
        HttpOrderClient()
    monkeypatch.setenv("POS_GATEWAY_HTTP_URL", "ftp://x")
    with pytest.raises(InvalidSettings, match="http://"):
        HttpOrderClient()
    monkeypatch.setenv("POS_GATEWAY_HTTP_URL", "http://127.0.0.1:1")
    with pytest.raises(InvalidSettings, match="POS_GATEWAY_TOKEN"):
        HttpOrderClient()
