"""Play the demo: simulated merchants, the real green worker, a stream of orders, under a minute.

``--quick`` plays a few seconds of it, which say that an installation works.

The broker is kombu's in-memory one, in this process, and the database a temporary file, whatever
the environment says. Exit code 0 only if every order is accounted for.
"""

from gevent import monkey

monkey.patch_all()

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gevent
from kombu import Connection, Queue

from pos_gateway.demo.cast import orders
from pos_gateway.demo.gateway import configure, green_worker, open_merchants
from pos_gateway.demo.outcomes import Outcomes
from pos_gateway.demo.screen import Screen
from pos_gateway.simulated_merchants.client import SimulatedMerchants

#: Orders a second.
RATE = 80.0
#: Seconds after the last order's time to live until everything has its outcome.
GRACE = 90.0
#: Seconds between pictures.
FRAME = 0.25


@dataclass(frozen=True, slots=True)
class DemoLength:
    """How long the demo takes."""

    #: For how many seconds orders come.
    seconds: float
    #: Seconds that an order may take; those of the hanging merchants run into it.
    deliver_within: float


WHOLE, QUICK = DemoLength(18.0, 12.0), DemoLength(2.0, 5.0)


def main() -> int:
    """The demo; 0 if all adds up, 1 if not, 130 after Ctrl-C."""
    with tempfile.TemporaryDirectory(prefix="pos-gateway-demo-") as folder:
        configure(Path(folder))
        with SimulatedMerchants(seed=1) as merchants:
            try:
                return _play(merchants, QUICK if "--quick" in sys.argv else WHOLE)
            except KeyboardInterrupt:
                sys.stderr.write("\nstopped\n")
                return 130


def _play(merchants: SimulatedMerchants, length: DemoLength) -> int:
    open_merchants(merchants)
    outcomes, seen = Outcomes(began=time.time()), 0
    with Screen(outcomes) as screen, green_worker() as lanes, _events(outcomes):
        started = time.monotonic()
        stream = gevent.spawn(_stream, outcomes, length)
        while not stream.ready() or outcomes.open:
            elapsed = time.monotonic() - started
            screen.show(elapsed, lanes())
            seen = _look(merchants, outcomes, seen)
            if elapsed > length.seconds + length.deliver_within + GRACE or (
                stream.ready() and stream.exception
            ):
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
    from pos_gateway.broker import topology

    queue = Queue("demo-events", topology.events_exchange, routing_key="#")

    def receive(message: Any) -> None:
        outcomes.take_event(json.loads(message.body), time.time())

    def read(connection: Connection) -> None:
        while True:
            try:
                connection.drain_events(timeout=1)
            except TimeoutError:
                continue

    with (
        Connection("memory://", transport_options={"polling_interval": 0.01}) as connection,
        connection.Consumer([queue], on_message=receive, no_ack=True, accept=None),
    ):
        reader = gevent.spawn(read, connection)
        yield
        reader.kill()


def _stream(outcomes: Outcomes, length: DemoLength) -> None:
    """Place orders at a steady rate: customers do not wait in line."""
    from pos_gateway.client import OrderClient

    with OrderClient() as client:
        client.connect()
        started = time.monotonic()
        for number, order in enumerate(orders(seed=1, deliver_within=length.deliver_within)):
            due = started + number / RATE
            if due > started + length.seconds:
                return
            gevent.sleep(max(0.0, due - time.monotonic()))
            order_id, now = order["order_id"], time.time()
            outcomes.placed(order_id, order["merchant_id"], now, now)
            client.submit(order)
            outcomes.confirmed(order_id, time.time())


if __name__ == "__main__":
    sys.exit(main())
