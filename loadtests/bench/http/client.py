"""A backend that posts orders over HTTP/1.1 on some connections: prints what it saw, as JSON.

    python -m loadtests.bench.http.client URL TOKEN ORDERS --connections 16 --batch 1 [--rate 500]
    python -m loadtests.bench.http.client URL TOKEN 0 --requests FILE

Without a rate each connection posts as soon as it has its reply; with one, orders are posted at equal
distances, and a late one counts from when it was due. A file has a request a line, in JSON: its path,
its headers and its body.
"""

import argparse
import asyncio
import json
import time
from collections import deque
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httptools
import uvloop

#: Merchants that the orders are spread over.
_MERCHANTS = 200


def an_order(number: int, prefix: str) -> bytes:
    """About a kilobyte."""
    now = datetime.now(UTC)
    items = [
        {
            "sku": f"sku-{number}-{line}",
            "name": "Soup of the day, large",
            "quantity": 2,
            "unit_price": 500,
            "modifiers": [{"name": "extra cheese", "quantity": 1, "unit_price": 50}],
        }
        for line in range(4)
    ]
    order = {
        "order_id": f"{prefix}-{number}",
        "merchant_id": f"healthy-{number % _MERCHANTS}",
        "placed_at": now.isoformat(),
        "deliver_by": (now + timedelta(minutes=15)).isoformat(),
        "currency": "EUR",
        "items": items,
        "total": 4400,
        "customer": {"name": "A. Customer", "phone": "+49 30 1234567"},
        "notes": "please ring twice " * 10,
    }
    return json.dumps(order).encode()


class Backend:
    """Posts these requests, and keeps what came."""

    def __init__(self, requests: list[bytes]) -> None:
        self.left = deque(requests)
        self.expected = len(requests)
        self.seconds: list[float] = []
        self.statuses: dict[int, int] = {}
        self.done = asyncio.Event()
        self.idle: deque[Connection] = deque()
        #: When the orders that are due, and have no connection yet, were due.
        self.due: deque[float] = deque()
        self.is_paced = False

    def free(self, connection: "Connection") -> None:
        """A connection has its reply."""
        if len(self.seconds) == self.expected:
            self.done.set()
        elif not self.is_paced and self.left:
            connection.post(self.left.popleft(), time.perf_counter())
        elif self.due:
            connection.post(self.left.popleft(), self.due.popleft())
        else:
            self.idle.append(connection)

    def post_one(self) -> None:
        """An order is due now."""
        now = time.perf_counter()
        if self.idle:
            self.idle.popleft().post(self.left.popleft(), now)
        else:
            self.due.append(now)


class Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._began = 0.0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._parser = httptools.HttpResponseParser(self)
        self._backend.free(self)

    def post(self, request: bytes, began: float) -> None:
        self._began = began
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        backend, status = self._backend, self._parser.get_status_code()
        backend.seconds.append(time.perf_counter() - self._began)
        backend.statuses[status] = backend.statuses.get(status, 0) + 1
        backend.free(self)


async def run(options: argparse.Namespace) -> dict[str, object]:
    """Post them all."""
    where = urlsplit(options.url)
    requests = _of_file(options) if options.requests else _of_orders(options)
    backend = Backend(requests)
    backend.is_paced = options.rate > 0
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    for _ in range(options.connections):
        await loop.create_connection(lambda: Connection(backend), where.hostname, where.port)
    if backend.is_paced:
        began = time.perf_counter()
        for number in range(len(requests)):
            loop.call_later(number / options.rate, backend.post_one)
    await backend.done.wait()
    seconds = sorted(backend.seconds)
    return {
        "seconds": time.perf_counter() - began,
        "orders": options.orders or len(requests),
        "p50": seconds[len(seconds) // 2],
        "p99": seconds[int(len(seconds) * 0.99)],
        "statuses": backend.statuses,
    }


def _of_orders(options: argparse.Namespace) -> list[bytes]:
    prefix = f"http-{time.time_ns():x}"
    orders = [an_order(number, prefix) for number in range(options.orders)]
    size = options.batch
    batches = [b"\n".join(orders[i : i + size]) for i in range(0, len(orders), size)]
    path, kind = urlsplit(options.url).path or "/v1/orders", "application/json"
    if size > 1:
        path, kind = f"{path}/batch", "application/x-ndjson"
    headers = {"authorization": f"Bearer {options.token}", "content-type": kind}
    return [_request(options.url, path, headers, each) for each in batches]


def _of_file(options: argparse.Namespace) -> list[bytes]:
    found = map(json.loads, options.requests.read_text().splitlines())
    return [_request(options.url, path, headers, body.encode()) for path, headers, body in found]


def _request(url: str, path: str, headers: dict[str, str], body: bytes) -> bytes:
    said = {"host": urlsplit(url).netloc, **headers, "content-length": len(body)}
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in said.items()), "", ""]
    return "\r\n".join(lines).encode() + body


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("token")
    parser.add_argument("orders", type=int)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--requests", type=Path)
    print(json.dumps(uvloop.run(run(parser.parse_args()))))


if __name__ == "__main__":
    main()
