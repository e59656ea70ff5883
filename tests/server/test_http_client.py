"""The backend's client over HTTP: on a real server, and against one that is scripted."""

import gc
import gzip
import json
import logging
import os
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import requests
import trustme
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pos_gateway.domain.errors import (
    BrokerUnavailable,
    InvalidOrder,
    InvalidSettings,
    OrderDiffers,
    PosGatewayError,
    Unauthorized,
)
from pos_gateway.domain.http_limits import PAGE, REPLY_BYTES
from pos_gateway.events.hydration import LARGEST
from pos_gateway.http_client import HttpOrderClient, orders, replies
from pos_gateway.server.following import PAGE_BYTES
from pos_gateway.telemetry import tracing
from testkit.servers.proxy import Proxy
from tests.server.lab import SOON, Server, migrated, order, serving
from tests.server.scripted import Scripted, drip, endless, nothing, silence, tunnel

TOKEN = "pgw_secret"
SUBMITTED = {"order_id": "o1", "merchant_id": "m1", "state": "submitted"}
TAKEN = (202, {}, json.dumps(SUBMITTED).encode())
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def client(server: Server) -> Iterator[HttpOrderClient]:
    with HttpOrderClient(server.url, server.token) as client:
        yield client


@pytest.fixture
def scripted() -> Iterator[Callable[..., Scripted]]:
    servers: list[Scripted] = []

    def make(*replies: Any, **others: Any) -> Scripted:
        servers.append(Scripted(*replies, **others))
        return servers[-1]

    yield make
    for each in servers:
        each.close()


class Authority(NamedTuple):
    """Certificates: its own, and a server's."""

    pem: Path
    context: ssl.SSLContext


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = trustme.CA()
    made.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.issue_cert("127.0.0.1").configure_cert(context)
    return Authority(tmp_path / "ca.pem", context)


class Time:
    """A clock that goes on when one sleeps."""

    def __init__(self) -> None:
        self.at = 0.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.at

    def now(self) -> datetime:
        return datetime(2026, 1, 31, 12, 0, tzinfo=UTC)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.at += seconds


def problem(status: int, code: str, detail: str = "it is so", **others: Any) -> dict[str, Any]:
    return {"status": status, "code": code, "detail": detail, **others}


def refusal(status: int, code: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return status, named, json.dumps(problem(status, code)).encode()


def part(order_id: str) -> dict[str, Any]:
    """A batch's order that is taken."""
    return {"status": 202, **SUBMITTED, "order_id": order_id}


def replied(*parts: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
    return 207, {}, json.dumps(parts).encode()


# On a real server.


def test_an_order_is_submitted_found_and_cancelled(client: HttpOrderClient, order_id: str) -> None:
    same = order(order_id)
    assert client.find(order_id, "m1") is None
    assert client.submit(same) == "submitted"
    assert client.submit(same, again=True) == "submitted"
    found = client.find(order_id, "m1")
    assert found is not None and found["state"] == "submitted"
    client.cancel(order_id, "m1")
    client.cancel("a/b", "m%", deliver_by=datetime(2099, 1, 1, tzinfo=UTC))


def test_refusals_have_the_types_of_the_other_client(
    client: HttpOrderClient, server: Server, order_id: str
) -> None:
    with pytest.raises(InvalidOrder) as caught:
        client.submit(order(order_id, currency="euro"))
    assert caught.value.field == "currency"
    with pytest.raises(InvalidOrder, match="order_id: is no id"):
        client.cancel("..", "m1")
    with pytest.raises(InvalidOrder, match=r"deliver_by.*got '2099"):  # the server has seen it
        client.cancel(order_id, "m1", deliver_by=datetime(2099, 1, 1))
    late = {"placed_at": "2020-01-01T00:00:00Z", "deliver_by": "2020-01-01T00:10:00Z"}
    with pytest.raises(InvalidOrder, match=r"^deliver_by: is in the past"):
        client.submit(order(order_id, **late))
    with pytest.raises(InvalidOrder, match="POS_GATEWAY_MAX_ORDER_BYTES"):
        client.submit(order(order_id, x="x" * 300_000))
    client.submit(order(order_id))
    with pytest.raises(OrderDiffers, match=order_id):
        client.submit(order(order_id, total=1))
    with pytest.raises(Unauthorized, match=r"POS_GATEWAY_TOKEN: .*begins with pgw_"):
        HttpOrderClient(server.url, "nonsense").submit(order(order_id))
    with pytest.raises(PosGatewayError, match="after: "):
        next(client.events(-1))


def test_many_orders_have_a_result_each(client: HttpOrderClient, order_id: str) -> None:
    ids = [f"{order_id}-{n}" for n in range(1100)]
    orders = [order(each) for each in ids]
    orders[3] = {"order_id": "wrong"}
    orders[5] = {**orders[4], "total": 1}
    results = client.submit_many(iter(orders))
    assert len(results) == len(orders)
    assert [n for n, each in enumerate(results) if each.error is not None] == [3, 5]
    assert isinstance(results[3].error, InvalidOrder) and results[3].order_id == "wrong"
    assert isinstance(results[5].error, OrderDiffers)
    assert results[1099].state == "submitted" and results[1099].order_id == ids[1099]
    assert client.submit_many([]) == []


def test_many_large_orders_go_in_requests_that_the_server_takes(
    client: HttpOrderClient, order_id: str
) -> None:
    large = [order(f"{order_id}-{n}", x="x" * 250_000) for n in range(80)]
    large[7]["x"] = "x" * 20_000_000
    results = client.submit_many(large)
    assert [each.state for each in results] == ["submitted"] * 7 + [None] + ["submitted"] * 72
    assert isinstance(results[7].error, InvalidOrder)


def test_a_broker_that_is_away_is_a_503_in_time_and_back_a_202(
    tmp_path: Path, order_id: str, module_url: str
) -> None:
    with Proxy(module_url) as proxy:
        database = migrated(f"sqlite:///{tmp_path}/gateway.db")
        with serving(proxy.url, database, tmp_path / "log") as server:
            assert server.post("/v1/orders", order(order_id)).status_code == 202
            proxy.down()
            second = order(order_id + "-2")
            refused = server.post("/v1/orders", second)
            assert (refused.status_code, refused.json()["code"]) == (503, "broker_unavailable")
            assert refused.headers["retry-after"] == "1"
            assert server.get("/readyz").status_code == 503
            hasty = HttpOrderClient(server.url, server.token, timeout=1)
            with pytest.raises(BrokerUnavailable, match="send the same again"):
                hasty.submit(second)
            [result] = hasty.submit_many([second])
            assert isinstance(result.error, BrokerUnavailable)
            patient = HttpOrderClient(server.url, server.token, timeout=SOON)
            assert patient.find("o9", "m1") is None, "reading needs no broker"
            assert server.post("/v1/orders", order(order_id + "-3")).status_code == 503
            proxy.heal()
            server.wait_until_ready()  # without a request that would notice
            rebuilt = order(order_id + "-3", total=501)
            assert server.post("/v1/orders", rebuilt).status_code == 202, "the first was not stored"
            assert patient.submit(second) == "submitted"
            assert [each.error for each in patient.submit_many([second])] == [None]


# Retries, against a script.


def test_it_tries_again_as_it_is_asked_to(scripted: Callable[..., Scripted]) -> None:
    date = {"Date": "Sat, 31 Jan 2026 11:00:00 GMT", "Retry-After": "Sat, 31 Jan 2026 11:00:02 GMT"}
    server = scripted(
        refusal(429, "rate_limited", Retry_After="3"),
        (503, date, b"<html>"),
        (502, {}, b""),
        nothing,
        refusal(500, "internal"),
        refusal(408, "slow_request"),
        (503, {"Retry-After": "Sat, 31 Jan 2026 11:00:02 +99999999999999"}, b""),
        (504, {"Retry-After": "in a while"}, b""),
        TAKEN,
    )
    time = Time()
    client = HttpOrderClient(server.url, TOKEN, timeout=30, clock=time, sleep=time.sleep)
    assert client.submit(order()) == "submitted"
    assert len(server.asked) == 9
    assert len({each.body for each in server.asked}) == 1
    assert 3 <= time.slept[0] <= 3.2
    assert 2 <= time.slept[1] <= 2.4, "by the server's clock"
    assert all(each <= 5 for each in time.slept[2:])
    assert len({*time.slept}) == 8, "at random"


def test_it_stops_in_time(scripted: Callable[..., Scripted]) -> None:
    server = scripted(refusal(503, "broker_unavailable", Retry_After="40"))
    time = Time()
    client = HttpOrderClient(server.url, TOKEN, timeout=100.0, clock=time, sleep=time.sleep)
    with pytest.raises(BrokerUnavailable, match=r"replied 503: it is so \(try 3 within 100 s\)"):
        client.submit(order())
    assert time.at <= 100
    nowhere = HttpOrderClient("http://127.0.0.1:9", TOKEN, clock=time, sleep=time.sleep)
    with pytest.raises(
        BrokerUnavailable, match=r"127\.0\.0\.1:9: .*connection refused; send the same again"
    ):
        nowhere.submit(order())


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (silence, "does not reply in time"),
        (drip(b"HTTP/1.1 202 OK\r\nContent-Length: 9000\r\n\r\n"), "does not reply in time"),
        (
            drip(b"HTTP/1.1 202 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
            "does not reply in time",
        ),
        (drip(b"HTTP/1.1 202 OK\r\nX: "), "does not reply in time"),
        (drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), "does not reply in time"),
    ],
    ids=["silent", "body", "chunks", "header", "interim"],
)
def test_a_server_that_does_not_reply_is_left_in_time(
    scripted: Callable[..., Scripted], reply: Any, words: str
) -> None:
    began = time.monotonic()
    with pytest.raises(BrokerUnavailable, match=words):
        HttpOrderClient(scripted(reply).url, TOKEN, timeout=1.0).submit(order())
    assert time.monotonic() - began < SOON


def test_a_server_that_closes_the_connection_is_left_in_time(
    scripted: Callable[..., Scripted],
) -> None:
    server, time = scripted(nothing), Time()
    client = HttpOrderClient(server.url, TOKEN, timeout=4, clock=time, sleep=time.sleep)
    with pytest.raises(BrokerUnavailable, match="closed the connection"):
        client.submit(order())
    assert len(server.asked) > 1
    assert time.at <= 4


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ((200, {"Content-Type": "text/html"}, b"<html>welcome</html>"), "text/html"),
        ((200, {}, b"{}"), "replied 200"),
        ((200, {}, b"[]"), "replied 200"),
        ((200, {}, b"[" * 100_000), "replied 200"),
        ((200, {}, json.dumps({**SUBMITTED, "order_id": "o2"}).encode()), "replied 200"),
        ((200, {}, json.dumps({**SUBMITTED, "merchant_id": "m2"}).encode()), "replied 200"),
        ((201, {}, TAKEN[2]), "replied 201"),
        ((207, {}, json.dumps([part("o2")]).encode()), "replied 207"),
        ((207, {}, json.dumps([{**part("o1"), "status": 500}]).encode()), "replied 207"),
        ((207, {}, json.dumps([{**part("o1"), "status": []}]).encode()), "replied 207"),
        ((207, {}, json.dumps([problem(200, "x")]).encode()), "replied 207"),
        ((200, {}, b'{"events":[1],"next":1}'), "replied 200"),
        ((200, {}, b'{"events":[{"position":2},{"position":2}],"next":2}'), "replied 200"),
        ((200, {}, b'{"events":[{"position":0}],"next":0}'), "replied 200"),
        ((200, {}, b'{"events":[{"position":1}],"next":2}'), "replied 200"),
        ((200, {}, b'{"events":[],"next":false}'), "replied 200"),
        ((301, {"Location": "https://other.example.com/v1?a=b"}, b""), "to https://other.example"),
        ((301, {"Location": "http://[::1"}, b""), "to what is no URL"),
        (endless(b"HTTP/1.1 301 Moved\r\nLocation: /\r\n\r\n", b" " * 999_999), "more than"),
        ((302, {"Location": "/login?a=b"}, b""), "to /login, which"),
        ((404, {}, b"not here"), "replied 404"),
        ((401, {}, b'{"error": "log in"}'), "replied 401"),
        ((422, {}, json.dumps(problem(422, "x", errors="abc")).encode()), "replied 422"),
        ((422, {}, json.dumps(problem(422, "x", errors=["a"])).encode()), "replied 422"),
        ((422, {}, json.dumps(problem(422, "x", errors=[{"x": 1}])).encode()), "replied 422"),
        ((202, {"Content-Encoding": "gzip"}, b"xx"), "no HTTP"),
        ((202, {"Content-Length": "1, 2"}, b"xx"), "no HTTP"),
        ((418, {"Content-Type": "x" * 9000}, b""), "replied 418 .x{200}.;"),
    ],
)
def test_a_reply_that_is_not_the_gateways_is_told(
    scripted: Callable[..., Scripted], reply: Any, words: str
) -> None:
    server = scripted(reply)
    client = HttpOrderClient(server.url, TOKEN)
    for call in (
        lambda: client.submit(order()),
        lambda: client.submit_many([order()]),
        lambda: client.find("o1", "m1"),
        lambda: next(client.events()),
    ):
        with pytest.raises(PosGatewayError, match=f"not the gateway that .*{words}.*HTTP_URL"):
            call()
    assert len(server.asked) == 4, "none is asked for twice, and no redirect followed"


@pytest.mark.parametrize(
    "reply",
    [
        endless(b"HTTP/1.1 202 OK\r\nContent-Length: 1099511627776\r\n\r\n", b" " * 65536),
        endless(
            b"HTTP/1.1 202 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"10000\r\n" + b" " * 65536 + b"\r\n",
        ),
        (202, {"Content-Encoding": "gzip"}, gzip.compress(b" " * (8 << 20))),
    ],
    ids=["long", "chunks", "compressed"],
)
def test_a_reply_is_read_up_to_a_limit(
    scripted: Callable[..., Scripted], monkeypatch: pytest.MonkeyPatch, reply: Any
) -> None:
    for module in (orders, replies):
        monkeypatch.setattr(module, "REPLY_BYTES", 1 << 20)
    server = scripted(reply)
    with pytest.raises(PosGatewayError, match="not the gateway that replied more than 1048576"):
        HttpOrderClient(server.url, TOKEN).submit(order())
    [asked] = server.asked
    assert asked.headers["Accept-Encoding"] == "identity"


def test_the_largest_page_is_below_the_limit() -> None:
    assert max(PAGE_BYTES, LARGEST) + PAGE < REPLY_BYTES, "its events, and commas"


def test_http_s_status_counts_before_the_bodys(scripted: Callable[..., Scripted]) -> None:
    """A proxy may have set it."""
    server = scripted((401, {}, json.dumps(problem(503, "broker_unavailable")).encode()))
    with pytest.raises(Unauthorized):
        HttpOrderClient(server.url, TOKEN).submit(order())


def test_a_cancel_request_is_taken_with_a_202_about_its_order(
    scripted: Callable[..., Scripted],
) -> None:
    about = {"order_id": "o1", "merchant_id": "m1"}
    bodies = [json.dumps({**about, name: "other"}).encode() for name in about]
    server = scripted(
        (202, {}, json.dumps(about).encode()),
        (200, {}, json.dumps(about).encode()),
        *((202, {}, each) for each in bodies),
        (202, {}, b"{}"),
    )
    client = HttpOrderClient(server.url, TOKEN)
    client.cancel("o1", "m1")
    for _ in range(4):
        with pytest.raises(PosGatewayError, match="not the gateway"):
            client.cancel("o1", "m1")


def test_a_batchs_results_are_its_orders_by_place(scripted: Callable[..., Scripted]) -> None:
    server = scripted(replied(part("o1"), part("o0")))
    with pytest.raises(PosGatewayError, match="not the gateway"):
        HttpOrderClient(server.url, TOKEN).submit_many([order("o0"), order("o1")])


def test_a_batch_that_is_taken_is_not_waited_for(scripted: Callable[..., Scripted]) -> None:
    time = Time()
    client = HttpOrderClient(scripted(replied(part("o1"))).url, TOKEN, clock=time, sleep=time.sleep)
    assert [each.state for each in client.submit_many([order()])] == ["submitted"]
    assert time.slept == []


def test_orders_of_a_batch_without_a_confirm_are_posted_again(
    scripted: Callable[..., Scripted],
) -> None:
    away = problem(503, "broker_unavailable")
    server = scripted(
        replied(part("o0"), away, problem(409, "order_differs"), away),
        replied(part("o1"), away),
        replied(away),
    )
    time = Time()
    client = HttpOrderClient(server.url, TOKEN, clock=time, sleep=time.sleep)
    first, second, third, fourth = client.submit_many([order(f"o{n}") for n in range(4)])
    assert (first.state, second.state) == ("submitted", "submitted")
    assert isinstance(third.error, OrderDiffers)
    assert isinstance(fourth.error, BrokerUnavailable)
    posted = [[json.loads(line)["order_id"] for line in a.body.split(b"\n")] for a in server.asked]
    assert posted[:3] == [["o0", "o1", "o2", "o3"], ["o1", "o3"], ["o3"]]
    assert time.at <= 10


def test_a_batch_that_a_proxy_finds_too_large_goes_in_parts(
    scripted: Callable[..., Scripted],
) -> None:
    html = (413, {"Content-Type": "text/html"}, b"<html>")
    server = scripted(html, replied(part("o0")), html, replied(part("o1")), replied(part("o2")))
    results = HttpOrderClient(server.url, TOKEN).submit_many([order(f"o{n}") for n in range(3)])
    assert [each.order_id for each in results if each.error is None] == ["o0", "o1", "o2"]
    with pytest.raises(PosGatewayError, match="replied 413"):
        HttpOrderClient(scripted(html).url, TOKEN).submit_many([order()])


def test_parts_of_a_batch_share_its_time(scripted: Callable[..., Scripted]) -> None:
    time = Time()

    def slow(handler: Any) -> None:
        time.at += 1
        handler.wfile.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")

    server = scripted(slow)
    client = HttpOrderClient(server.url, TOKEN, timeout=5, clock=time, sleep=time.sleep)
    results = client.submit_many([order(f"o{n}") for n in range(64)])
    assert {type(each.error) for each in results} == {BrokerUnavailable}
    assert len(server.asked) == 5


def test_events_go_on_behind_what_failed(
    scripted: Callable[..., Scripted], caplog: pytest.LogCaptureFixture
) -> None:
    def page(*positions: int) -> tuple[int, dict[str, str], bytes]:
        found = [{"position": each} for each in positions]
        return 200, {}, json.dumps({"events": found, "next": positions[-1]}).encode()

    server = scripted(page(1, 2), page(3), (502, {"Retry-After": "99"}, b"<html>"), page(4, 5))
    time = Time()
    client = HttpOrderClient(server.url, TOKEN, clock=time, sleep=time.sleep)
    events = client.events(wait=90)
    with caplog.at_level(logging.INFO, "pos_gateway.http_client"):
        assert [each["position"] for each in islice(events, 5)] == [1, 2, 3, 4, 5]
    assert [each.path for each in server.asked] == [
        "/v1/events?after=0&limit=1000&wait=60",
        "/v1/events?after=2&limit=1000&wait=60",
        "/v1/events?after=3&limit=1000&wait=60",
        "/v1/events?after=3&limit=250&wait=60",  # less, lest it was too much at once
    ]
    assert [each.levelname for each in caplog.records] == ["WARNING", "INFO"]
    assert TOKEN not in caplog.text
    client.close()
    assert list(events) == [], "it ends"


def test_a_page_may_be_as_late_as_it_was_asked_to(
    scripted: Callable[..., Scripted], caplog: pytest.LogCaptureFixture
) -> None:
    """Although a call has less time."""

    def late(handler: Any) -> None:
        time.sleep(2.5)
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 36\r\n\r\n")
        handler.wfile.write(b'{"events":[{"position":8}],"next":8}')

    server = scripted(refusal(503, "busy"), late)
    events = HttpOrderClient(server.url, TOKEN, timeout=2.0).events(7, wait=20.0)
    assert next(events) == {"position": 8}
    paths = [each.path for each in server.asked]
    assert paths == ["/v1/events?after=7&limit=1000&wait=20"] * 2
    assert caplog.records == []


def test_a_page_is_read_however_deeply_its_orders_are_nested(
    scripted: Callable[..., Scripted],
) -> None:
    """A worker takes 200 levels, of which an order message has two."""
    deep: Any = []
    for _ in range(197):
        deep = [deep]
    event = {"position": 1, "order": {"x": deep, "number": int("9" * 4300)}}
    server = scripted((200, {}, json.dumps({"events": [event], "next": 1}).encode()))
    assert next(HttpOrderClient(server.url, TOKEN).events()) == event


# Connections.


@pytest.mark.parametrize("proxied", ["plain", "over TLS"])
def test_a_proxy_of_the_environment_is_used_for_https_alone(
    scripted: Callable[..., Scripted],
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    proxied: str,
) -> None:
    """For http it would get the token."""
    proxy = scripted(tunnel, tls=authority.context if proxied == "over TLS" else None)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, proxy.url)
        monkeypatch.setenv(name.lower(), proxy.url)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    plain, secure = scripted(TAKEN), scripted(TAKEN, tls=authority.context)
    HttpOrderClient(plain.url, TOKEN).submit(order())
    assert proxy.asked == []
    with HttpOrderClient(secure.url, TOKEN, verify=authority.pem) as client:
        client.submit(order())
    [asked] = proxy.asked
    assert (asked.method, asked.path) == ("CONNECT", secure.url.removeprefix("https://"))
    assert TOKEN not in str(asked.headers)
    assert secure.asked[0].headers["Authorization"] == f"Bearer {TOKEN}"


def test_cookies_are_not_kept(scripted: Callable[..., Scripted]) -> None:
    server = scripted((202, {"Set-Cookie": "a=b; Path=/"}, TAKEN[2]))
    client = HttpOrderClient(server.url, TOKEN)
    client.submit(order())
    client.submit(order())
    assert [each.headers.get("Cookie") for each in server.asked] == [None, None]
    assert len({each.port for each in server.asked}) == 1


def test_a_call_that_outlasts_close_leaves_no_connection(
    scripted: Callable[..., Scripted],
) -> None:
    asked, goes_on, is_left = threading.Event(), threading.Event(), threading.Event()

    def late(handler: Any) -> None:
        asked.set()
        goes_on.wait(SOON)
        handler.wfile.write(b"HTTP/1.1 202 OK\r\nContent-Length: %d\r\n\r\n" % len(TAKEN[2]))
        handler.wfile.write(TAKEN[2])
        handler.wfile.flush()
        if handler.rfile.read(1) == b"":
            is_left.set()

    client = HttpOrderClient(scripted(late).url, TOKEN)
    call = threading.Thread(target=client.submit, args=(order(),))
    call.start()
    assert asked.wait(SOON)
    client.close()
    goes_on.set()
    call.join(SOON)
    assert is_left.wait(SOON)
    assert repr(client), "it is there"


def test_threads_share_connections_and_calls_at_once_do_not(
    scripted: Callable[..., Scripted],
) -> None:
    both = threading.Barrier(2)

    def together(handler: Any) -> None:
        both.wait(SOON)
        status, _, body = TAKEN
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    server = scripted(TAKEN, TAKEN, TAKEN, together)
    with HttpOrderClient(server.url, TOKEN) as client:

        def submit(count: int) -> None:
            threads = [
                threading.Thread(target=client.submit, args=(order(),)) for _ in range(count)
            ]
            for each in threads:
                each.start()
            for each in threads:
                each.join(SOON)

        for _ in range(3):
            submit(1)
        assert len({each.port for each in server.asked}) == 1
        submit(2)
        assert len({each.port for each in server.asked}) == 2


def test_a_fork_has_connections_of_its_own(scripted: Callable[..., Scripted]) -> None:
    server = scripted(TAKEN)
    program = f"""
import os
from pos_gateway.http_client import HttpOrderClient
from tests.server.lab import order
client = HttpOrderClient({server.url!r}, "x")
client.submit(order())
if child := os.fork():
    assert os.waitpid(child, 0)[1] == 0
    client.submit(order())
else:
    client.submit(order())
    os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    before, child, parent = server.asked
    assert before.port == parent.port != child.port


def test_a_session_of_the_programs_own_is_used_and_left_open(
    scripted: Callable[..., Scripted],
) -> None:
    server = scripted(TAKEN)
    with requests.Session() as session:
        session.headers["X-Of-The-Program"] = "yes"
        with HttpOrderClient(server.url, TOKEN, session=session) as client:
            client.submit(order())
        [pool] = session.adapters["http://"].poolmanager.pools._container.values()
        assert pool.pool is not None
        assert server.asked[0].headers["X-Of-The-Program"] == "yes"
        assert server.asked[0].headers["Authorization"] == f"Bearer {TOKEN}"


def test_netrc_does_not_replace_the_token(
    scripted: Callable[..., Scripted], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login someone password else\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    server = scripted(TAKEN)
    HttpOrderClient(server.url, TOKEN).submit(order())
    assert server.asked[0].headers["Authorization"] == f"Bearer {TOKEN}"


@pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning")
def test_a_certificate_is_checked(
    scripted: Callable[..., Scripted], authority: Authority, tmp_path: Path
) -> None:
    server = scripted(TAKEN, tls=authority.context)
    time = Time()
    with pytest.raises(PosGatewayError, match=r"certificate is not trusted .*as verify"):
        HttpOrderClient(server.url, TOKEN, clock=time, sleep=time.sleep).submit(order())
    assert time.slept == [], "another try would find the same certificate"
    assert HttpOrderClient(server.url, TOKEN, verify=authority.pem).submit(order())
    assert HttpOrderClient(server.url, TOKEN, verify=False).submit(order())
    with pytest.raises(InvalidSettings, match="verify: there is no such file"):
        HttpOrderClient(server.url, TOKEN, verify=tmp_path / "other.pem")


@pytest.mark.parametrize("is_traced", [False, True])
def test_the_trace_of_the_program_goes_with_an_order(
    scripted: Callable[..., Scripted], is_traced: bool
) -> None:
    server = scripted(TAKEN)
    program = f"""
if {is_traced}:
    from opentelemetry import context
    from opentelemetry.trace.propagation import tracecontext as w3c
    found = w3c.TraceContextTextMapPropagator().extract({{"traceparent": {PARENT!r}}})
    context.attach(found)
from pos_gateway.http_client import HttpOrderClient
from tests.server.lab import order
HttpOrderClient({server.url!r}, "x").submit(order())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert server.asked[0].headers.get("traceparent") == (PARENT if is_traced else None)


def test_the_programs_spans_have_the_orders_ids(
    scripted: Callable[..., Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    ours = tracing.Tracing(provider.get_tracer("program"))
    monkeypatch.setattr(tracing, "of_this_program", lambda: ours)
    about = {"order_id": "o1", "merchant_id": "m1"}
    server = scripted(TAKEN, (202, {}, json.dumps(about).encode()), replied(part("o1")))
    client = HttpOrderClient(server.url, TOKEN)
    client.submit(order())
    client.cancel("o1", "m1")
    client.submit_many([order()])
    named = {f"pos_gateway.{name}": value for name, value in about.items()}
    spans = [(each.name, dict(each.attributes or {})) for each in exporter.get_finished_spans()]
    assert spans == [("submit", named), ("cancel", named), ("submit", {})]
    assert all("traceparent" in each.headers for each in server.asked)


# What it is given.


def test_what_is_missing_or_wrong_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidSettings, match="POS_GATEWAY_HTTP_URL"):
        HttpOrderClient()
    for wrong, words in (
        ("ftp://x", "http://"),
        ("http://", "has no host"),
        ("http://h/?a=b", "has a query"),
        ("http://user:pass@h", "has a user name"),
    ):
        monkeypatch.setenv("POS_GATEWAY_HTTP_URL", wrong)
        with pytest.raises(InvalidSettings, match=words) as caught:
            HttpOrderClient()
        assert "pass" not in str(caught.value)
    monkeypatch.setenv("POS_GATEWAY_HTTP_URL", "http://127.0.0.1:1/")
    with pytest.raises(InvalidSettings, match="POS_GATEWAY_TOKEN"):
        HttpOrderClient()


@pytest.mark.parametrize("token", ["pgw_se cret", "pgw_se\ncret", "pgw_sécret", " ", 12_345])
def test_what_cannot_be_a_token_is_refused_unseen(token: Any) -> None:
    with pytest.raises(InvalidSettings, match="POS_GATEWAY_TOKEN: ") as caught:
        HttpOrderClient("http://127.0.0.1:1", token)
    assert "cret" not in str(caught.value)
    assert "12345" not in str(caught.value)


def test_a_token_may_end_with_a_line_break(
    scripted: Callable[..., Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a file has it that became a variable."""
    server = scripted(TAKEN)
    monkeypatch.setenv("POS_GATEWAY_HTTP_URL", server.url + "/")
    monkeypatch.setenv("POS_GATEWAY_TOKEN", TOKEN + "\n")
    HttpOrderClient().submit(order())
    assert server.asked[0].path == "/v1/orders"
    assert server.asked[0].headers["Authorization"] == f"Bearer {TOKEN}"


@pytest.mark.parametrize(
    "reply", [nothing, refusal(401, "unauthorized"), refusal(503, "x"), (200, {}, b"<html>")]
)
def test_no_error_has_the_token(scripted: Callable[..., Scripted], reply: Any) -> None:
    client = HttpOrderClient(scripted(reply).url, TOKEN, timeout=0.3)
    with pytest.raises(PosGatewayError) as caught:
        client.submit(order())
    shown = [repr(client), repr(vars(client))]
    error: BaseException | None = caught.value
    while error is not None:
        sent = getattr(error, "request", None)  # requests' errors have it
        shown += [repr(error), repr(vars(error)), repr(getattr(sent, "headers", None))]
        traceback = error.__traceback__
        while traceback is not None:  # as a tracker of errors shows them
            if traceback.tb_frame.f_globals["__name__"].startswith("pos_gateway.http_client"):
                shown += map(repr, traceback.tb_frame.f_locals.values())
            traceback = traceback.tb_next
        error = error.__context__
    assert TOKEN not in " ".join(shown)


def test_a_client_that_is_dropped_leaves_no_connection(scripted: Callable[..., Scripted]) -> None:
    client = HttpOrderClient(scripted(TAKEN).url, TOKEN)
    client.submit(order())
    before = open_files()
    client.close()
    client.close()
    gc.collect()
    assert open_files() < before
    client.submit(order())  # as a program may that ends: it works, and leaves none either
    gc.collect()
    until = time.monotonic() + SOON
    while open_files() >= before:  # the server's sockets are this process's, too
        assert time.monotonic() < until
        time.sleep(0.01)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208
