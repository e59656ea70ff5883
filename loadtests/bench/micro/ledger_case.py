"""What the ledger adds to an order: milliseconds of CPU, and until both its commits are durable."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median, quantiles

import gevent
from gevent.pool import Pool

from loadtests.bench import orders
from loadtests.bench.micro.runner import Play
from pos_gateway.attempt.gateway import off_the_loop
from pos_gateway.database.engine import open_database, upgrade
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind
from pos_gateway.events.event import dehydrated
from pos_gateway.ledger.ledger import Ledger
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Claim, Entry, Key, State
from pos_gateway.runtime.vault import Vault, new_key
from pos_gateway.worker.gc_tuning import tune_gc

#: Orders a second, seconds that a POS takes, and merchants.
RATE, REPLY, MERCHANTS = 500, 0.05, 200


class Orders:
    """Orders at a steady rate, written to a ledger or not."""

    def __init__(self, url: str, number: int) -> None:
        engine = open_database(url)
        upgrade(engine)
        payloads = Payloads(Vault(new_key()))  # orders are sealed, as in production
        self.ledger = Ledger(engine, payloads, run=off_the_loop(engine))
        self.ledger.start()
        self._number, self._placed = number, 0

    def added(self, turn: int) -> dict[str, float]:
        """What the ledger adds; every other round begins without it."""
        played = {keep: self._play(keep=keep) for keep in (turn % 2 == 0, turn % 2 == 1)}
        (cpu, waits), (base, _) = played[True], played[False]
        return {
            "CPU": cpu - base,
            "wait, p50": median(waits),
            "wait, p99": quantiles(waits, n=100)[98],
        }

    def _play(self, *, keep: bool) -> tuple[float, list[float]]:
        """CPU of an order, and how long each waited for its commits."""
        first, self._placed = self._placed, self._placed + self._number
        batch = [
            Order.parse(orders.place(f"o-{first + n}", f"m-{n % MERCHANTS}"))
            for n in range(self._number)
        ]
        for order in batch:
            order.to_json()  # made once for the queue already
        waits: list[float] = []
        pool, began, cpu = Pool(), time.monotonic(), time.process_time()
        for n, order in enumerate(batch):
            gevent.sleep(max(0.0, began + n / RATE - time.monotonic()))
            pool.spawn(self._deliver, order, waits, keep=keep)
        pool.join(raise_error=True)
        return (time.process_time() - cpu) / self._number * 1000, waits

    def _deliver(self, order: Order, waits: list[float], *, keep: bool) -> None:
        began, key = time.monotonic(), Key(order.merchant_id, order.order_id)
        deadline = order.deliver_by.timestamp()
        if keep:
            claim = self.ledger.claim(key, send=True, deliver_by=deadline, order=order.to_json())
        before = time.monotonic() - began
        gevent.sleep(REPLY)
        began = time.monotonic()
        if keep:
            assert isinstance(claim, Claim), claim
            event = dehydrated(key, Kind.ACCEPTED)
            entry = Entry(State.ACCEPTED, time.time(), 1, external_id="p-1", event=event)
            assert self.ledger.finish(claim, entry)
        waits.append((before + time.monotonic() - began) * 1000)


@contextmanager
def opened(number: int, *urls: str) -> Iterator[Play]:
    """Both databases, one after the other."""
    kept = {
        name: Orders(url, number) for name, url in zip(("PostgreSQL", "SQLite"), urls, strict=True)
    }
    tune_gc()  # as a worker does

    def play(turn: int) -> dict[str, float]:
        return {
            f"{name}: {what}": figure
            for name, each in kept.items()
            for what, figure in each.added(turn).items()
        }

    yield play
    for each in kept.values():
        each.ledger.close()
