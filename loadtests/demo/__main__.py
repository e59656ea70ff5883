"""Play the demo: simulated merchants, the real green worker, a stream of orders, under a minute.

Without ``POS_GATEWAY_BROKER_URL`` the broker is kombu's in-memory one, in this process; a set one
is used instead. Exit code 0 only if every order is accounted for.
"""

from gevent import monkey

monkey.patch_all()

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gevent
from kombu import Connection, Queue

from loadtests.demo.cast import DELIVER_WITHIN, orders
from loadtests.demo.gateway import configure, green_worker, open_merchants
from loadtests.demo.screen import Screen
from loadtests.load.outcomes import Outcomes
from testkit.merchants.client import SimulatedMerchants

#: Orders a second, and for how many seconds.
RATE = 80.0
SECONDS = 18.0
#: Seconds after the last order until everything has its outcome: its time to live, and some.
LONGEST_END = DELIVER_WITHIN + 15.0
#: Seconds between pictures.
FRAME = 0.25


def main() -> int:
    """The demo; 0 if all adds up, 1 if not, 130 after Ctrl-C."""
    with tempfile.TemporaryDirectory(prefix="pos-gateway-demo-") as folder:
        broker = os.environ.get("POS_GATEWAY_BROKER_URL")
        configure(Path(folder), POS_GATEWAY_BROKER_URL=broker or "memory://")
        with SimulatedMerchants(seed=1) as merchants:
            try:
                return _play(merchants, "your broker" if broker else "an in-memory broker")
            except KeyboardInterrupt:
                sys.stderr.write("\nstopped\n")
                return 130


def _play(merchants: SimulatedMerchants, broker: str) -> int:
    open_merchants(merchants)
    outcomes, seen = Outcomes(began=time.time()), 0
    with Screen(outcomes, broker=broker) as screen, green_worker() as lanes, _events(outcomes):
        started = time.monotonic()
        stream = gevent.spawn(_stream, outcomes)
        while not stream.ready() or outcomes.open:
            elapsed = time.monotonic() - started
            screen.show(elapsed, lanes())
            seen = _look(merchants, outcomes, seen)
            if elapsed > SECONDS + LONGEST_END or (stream.ready() and stream.exception):
                break
            gevent.sleep(FRAME)
        stream.kill()
    _look(merchants, outcomes, seen)
    record = outcomes.record(time.time())
    problems = [f"{each.what}: {each.was}" for each in record.accounts() if not each.met]
    if stream.exception:
        problems.append(f"the stream of orders ended early: {stream.exception}")
    screen.summary(record, problems)
    return 1 if problems else 0


def _look(merchants: SimulatedMerchants, outcomes: Outcomes, seen: int) -> int:
    """Hold the merchants' records from there on against the outcomes; where they end."""
    while (page := merchants.feed(seen))["entries"]:
        seen = page["next"]
        for _, order_id, creates, at in page["entries"]:
            outcomes.seen(order_id, creates, at)
    return seen


@contextmanager
def _events(outcomes: Outcomes) -> Iterator[None]:
    """Read the status events, by a queue of the demo's own."""
    from pos_gateway.broker import topology  # noqa: PLC0415

    url = os.environ["POS_GATEWAY_BROKER_URL"]
    queue = Queue("", topology.events_exchange, routing_key="#", exclusive=True, auto_delete=True)
    if url.startswith("memory"):
        queue = Queue("demo-events", topology.events_exchange, routing_key="#")

    def receive(message: Any) -> None:
        outcomes.told(json.loads(message.body), time.time())

    def read(connection: Connection) -> None:
        while True:
            try:
                connection.drain_events(timeout=1)
            except TimeoutError:
                continue

    options = {"polling_interval": 0.01} if url.startswith("memory") else {}
    with (
        Connection(url, transport_options=options) as connection,
        connection.Consumer([queue], on_message=receive, no_ack=True, accept=None),
    ):
        reader = gevent.spawn(read, connection)
        yield
        reader.kill()


def _stream(outcomes: Outcomes) -> None:
    """Place orders at a steady rate: customers do not wait in line."""
    from pos_gateway.client import OrderClient  # noqa: PLC0415

    with OrderClient() as client:
        client.connect()
        started = time.monotonic()
        for number, order in enumerate(orders(seed=1)):
            due = started + number / RATE
            if due > started + SECONDS:
                return
            gevent.sleep(max(0.0, due - time.monotonic()))
            order_id, now = order["order_id"], time.time()
            outcomes.placed(order_id, order["merchant_id"], now, now)
            client.submit(order)
            outcomes.confirmed(order_id, time.time())


if __name__ == "__main__":
    sys.exit(main())
