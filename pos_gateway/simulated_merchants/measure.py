"""What the simulated merchants cost: ``python -m pos_gateway.simulated_merchants.measure``.

A benchmark's merchants must not be what it measures. This prints the server's CPU time for a
request as the gateway sends it (an order of about one kilobyte), taken from its own clock.
"""

import argparse
import json
import socket
import time
from collections import deque
from collections.abc import Iterator
from itertools import count

from pos_gateway.simulated_merchants.client import SimulatedMerchants

_BODY = json.dumps({"order_id": "measure", "items": [{"sku": "x" * 32}] * 18}).encode()
_HEADERS = (
    "User-Agent: measure/1.0\r\nAccept-Encoding: gzip, deflate\r\nAccept: */*\r\n"
    "Connection: keep-alive\r\nContent-Type: application/json\r\n"
    "Authorization: Bearer 0123456789abcdef0123456789abcdef\r\n"
)


def main() -> None:
    """Print the cost in a rush, at a steady pace as in a benchmark, and without keep-alive."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=5000, help="per figure (%(default)s)")
    requests = parser.parse_args().requests
    with SimulatedMerchants() as merchants:
        for name, merchant, connections, pace, keep in (
            ("one after the other, no latency", "instant", 1, 0, True),
            ("100 at once, no latency", "instant", 100, 0, True),
            ("100 at once, a new connection each", "instant", 100, 0, False),
            ("100/s, about 50 ms", "fast", 100, 100, True),
            ("1000/s, about 50 ms", "fast", 200, 1000, True),
        ):
            number = min(requests, pace * 3) if pace else requests
            load = Load(merchants.port, merchant, connections, pace=pace, keep_alive=keep)
            cost, rate = measure(merchants, load, number)
            print(f"{name:36} {cost * 1000:6.3f} ms CPU a request   {rate:6.0f} requests/s")


def measure(merchants: SimulatedMerchants, load: "Load", requests: int) -> tuple[float, float]:
    """The server's CPU seconds for one request, and the requests a second that were sent."""
    load.send(load.connections)  # not measured: first connections, merchants not seen before
    before, began = merchants.summary(), time.monotonic()
    load.send(requests)
    took, after = time.monotonic() - began, merchants.summary()
    load.close()
    served = after["requests"] - before["requests"]
    return (after["cpu_seconds"] - before["cpu_seconds"]) / served, served / took


class Load:
    """Sends orders over some connections in turn, at a pace or (0) as fast as replies come."""

    def __init__(
        self,
        port: int,
        prefix: str,
        connections: int,
        *,
        pace: float = 0.0,
        keep_alive: bool = True,
    ) -> None:
        self.connections = connections
        self._address = ("127.0.0.1", port)
        self._messages = _messages(prefix)
        self._pace = pace
        self._keep_alive = keep_alive
        self._free: deque[socket.socket] = deque()
        self._busy: deque[socket.socket] = deque()

    def send(self, requests: int) -> None:
        """Send orders and read all replies."""
        began = time.monotonic()
        for number in range(requests):
            if self._pace:
                time.sleep(max(0.0, began + number / self._pace - time.monotonic()))
            if len(self._busy) == self.connections:
                # In a rush all replies are read before the next burst; at a pace, just one.
                self._read(1 if self._pace else self.connections)
            connection = self._free.popleft() if self._free else self._connect()
            connection.sendall(next(self._messages))
            self._busy.append(connection)
        self._read(len(self._busy))

    def close(self) -> None:
        """Close the connections."""
        while self._free:
            self._free.popleft().close()

    def _connect(self) -> socket.socket:
        return socket.create_connection(self._address)

    def _read(self, replies: int) -> None:
        for _ in range(replies):
            connection = self._busy.popleft()
            assert connection.recv(65536).startswith(b"HTTP/1.1 201")
            if self._keep_alive:
                self._free.append(connection)
            else:
                connection.close()


def _messages(prefix: str) -> Iterator[bytes]:
    for number in count():
        head = f"POST /m/{prefix}-{number % 1000}/orders HTTP/1.1\r\nHost: 127.0.0.1\r\n{_HEADERS}"
        key = f"Idempotency-Key: {prefix}-{time.monotonic_ns():x}-{number}\r\n"
        yield f"{head}{key}Content-Length: {len(_BODY)}\r\n\r\n".encode() + _BODY


if __name__ == "__main__":
    main()
