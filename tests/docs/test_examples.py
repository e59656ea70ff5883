"""The programs of docs/examples run, and do what they say."""

import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import requests
from kombu import Connection

from pos_gateway.client import OrderClient, outbox
from pos_gateway.client.outbox.connections import PlainConnection
from pos_gateway.client.outbox.opening import connector
from testkit.patience import PATIENCE
from testkit.servers.process import free_port
from tests.orders import an_order
from tests.server.scripted import Scripted

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
SOON = PATIENCE


@contextmanager
def running(*command: str, **environment: str) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=EXAMPLES,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def shop_command(name: str, port: int) -> tuple[str, ...]:
    if name == "django_shop":
        return "django_shop.py", str(port)
    return "-m", "uvicorn", "fastapi_shop:app", "--port", str(port), "--log-level", "error"


def answered(process: "subprocess.Popen[str]", url: str) -> None:
    """Wait until it serves."""
    ends = time.monotonic() + SOON
    while True:
        assert process.poll() is None
        try:
            requests.get(url, timeout=SOON)
            return
        except requests.ConnectionError:
            assert time.monotonic() < ends
            time.sleep(0.02)


def next_order(broker_url: str) -> str:
    """The id of the next order in the queue."""
    ends = time.monotonic() + SOON
    with Connection(broker_url) as connection:
        channel = connection.default_channel
        while (message := channel.basic_get("orders", no_ack=True)) is None:
            assert time.monotonic() < ends
            time.sleep(0.02)
        return str(message.properties["message_id"])


@pytest.mark.parametrize("name", ["django_shop", "fastapi_shop"])
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_a_shop_submits_what_it_has_stored(
    name: str,
    database: str,
    broker_url: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    if database == "postgresql":
        url = request.getfixturevalue("postgres_url")
    with OrderClient(broker_url) as client:
        client.connect()  # declares the queue
    port = free_port()
    purchases = f"http://127.0.0.1:{port}/purchases"
    environment = {"DATABASE_URL": url, "POS_GATEWAY_BROKER_URL": broker_url}
    with running(*shop_command(name, port), **environment) as process:
        answered(process, purchases)
        failed = requests.post(
            purchases, json=an_order("o1"), headers={"X-Fail": "1"}, timeout=SOON
        )
        assert failed.status_code == 500
        wrong = requests.post(purchases, json=an_order("o2", currency="euros"), timeout=SOON)
        assert wrong.status_code == 422
        assert wrong.json()["errors"][0]["field"] == "currency"
        done = requests.post(purchases, json=an_order("o3"), timeout=SOON)
        assert (done.status_code, done.json()) == (201, {"id": "o3"})
        assert next_order(broker_url) == "o3"
        ends = time.monotonic() + SOON
        while rows(url, f"select count(*) from {outbox.TABLE}") != [(0,)]:
            assert time.monotonic() < ends
            time.sleep(0.02)
        table = "shop_purchase" if name == "django_shop" else "purchases"
        assert rows(url, f"select id, total from {table}") == [("o3", 1700)]
        if name == "fastapi_shop":
            lag = requests.get(purchases.replace("purchases", "lag"), timeout=SOON).json()
            assert lag == {"rows": 0, "seconds": 0.0, "refused": 0}


def rows(url: str, statement: str) -> list[tuple[Any, ...]]:
    with closing(connector(url)()) as connection:
        return PlainConnection(connection).execute(statement)


def an_event(position: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": f"id-{position}",
        "position": position,
        "type": f"order.{kind}",
        "order_id": f"o{position}",
        "merchant_id": "m1",
        **fields,
    }


def page(*events: dict[str, Any]) -> bytes:
    return json.dumps({"events": events, "next": events[-1]["position"]}).encode()


def test_the_consumer_over_http_goes_on_where_it_was(tmp_path: Path) -> None:
    pages = {
        0: page(
            an_event(1, "accepted", external_id="pos-1"),
            an_event(2, "rejected", reason={"code": "closed", "message": "We are closed"}),
            an_event(3, "expired"),
        )
    }

    def reply(handler: BaseHTTPRequestHandler) -> None:
        after = int(re.findall(r"after=(\d+)", handler.path)[0])
        body = pages.get(after)
        handler.send_response_only(200 if body else 503)
        handler.send_header("Content-Length", str(len(body or b"")))
        handler.end_headers()
        handler.wfile.write(body or b"")

    server = Scripted(reply)
    file = tmp_path / "shop.db"
    environment = {"POS_GATEWAY_HTTP_URL": server.url, "POS_GATEWAY_TOKEN": "pgw_x"}
    try:
        for last in (3, 4):
            with running("http_consumer.py", str(file), **environment) as process:
                assert process.stdout is not None
                for line in process.stdout:
                    if int(line.split()[0]) == last:
                        break
            pages = {3: page(an_event(4, "eaten", taste="good"))}
    finally:
        server.close()
    with closing(sqlite3.connect(file)) as database:
        found = database.execute("select order_id, status, note from orders").fetchall()
        assert database.execute("select position from applied").fetchall() == [(4,)]
    assert found == [
        ("o1", "in the kitchen", "pos-1"),
        ("o2", "refund", "We are closed"),
        ("o3", "refund", "order.expired"),
        ("o4", "eaten", None),
    ]


def test_the_readmes_program_prints_its_own_orders_event() -> None:
    """Another merchant has an order of the same id, and its merchant has another order."""
    [program] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    events = page(
        an_event(1, "rejected", order_id="order-1", merchant_id="another"),
        an_event(2, "expired", order_id="another", merchant_id="fast-0"),
        an_event(3, "accepted", order_id="order-1", merchant_id="fast-0"),
    )
    submitted = {"order_id": "order-1", "merchant_id": "fast-0", "state": "submitted"}
    server = Scripted((202, {}, json.dumps(submitted).encode()), (200, {}, events))
    program = program.replace("http://127.0.0.1:8080", server.url).replace("pgw_…", "pgw_x")
    try:
        with running("-c", program) as process:
            printed, _ = process.communicate(timeout=SOON)
    finally:
        server.close()
    assert (process.returncode, printed) == (0, "order.accepted\n")
