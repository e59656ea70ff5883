"""What the ledger adds to an order: CPU time, and time until it is durable. Patched by gevent.

    python -m gevent.monkey --module loadtests.bench.keeping DATABASE_URL RATE SECONDS ROUNDS

Prints a JSON list: the figures of each round.
"""

import json
import sys
import time
from contextlib import suppress
from statistics import median, quantiles

import gevent
from gevent.pool import Pool

from loadtests.bench import orders
from pos_gateway.database.engine import open_database, upgrade
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind
from pos_gateway.events.event import dehydrated
from pos_gateway.ledger.ledger import Ledger
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.states import Claim, Entry, Key, State
from pos_gateway.processing.gateway import off_the_loop
from pos_gateway.runtime.vault import Vault, new_key
from pos_gateway.worker.gc_tuning import tune_gc

#: Seconds that a POS takes, and merchants.
REPLY, MERCHANTS = 0.05, 200


class Keeping:
    """Orders at a steady rate, with what is written of each, or without."""

    def __init__(self, ledger: Ledger, rate: float, seconds: float) -> None:
        self._ledger = ledger
        self._rate, self._number = rate, int(rate * seconds)
        self._placed = 0

    def play(self, *, keep: bool) -> tuple[float, list[float]]:
        """Milliseconds of CPU for each order, and those that each spent on being written."""
        batch = [
            Order.parse(orders.place(f"o-{self._placed + n}", f"m-{n % MERCHANTS}"))
            for n in range(self._number)
        ]
        for order in batch:
            order.to_json()  # made once for the queue already
        self._placed += self._number
        added: list[float] = []
        pool = Pool()
        began, cpu = time.monotonic(), time.process_time()
        for n, order in enumerate(batch):
            gevent.sleep(max(0.0, began + n / self._rate - time.monotonic()))
            pool.spawn(self._one, order, added, keep=keep)
        pool.join(raise_error=True)
        return (time.process_time() - cpu) / self._number * 1000, added

    def _one(self, order: Order, added: list[float], *, keep: bool) -> None:
        began = time.monotonic()
        key = Key(order.merchant_id, order.order_id)
        claim = None
        if keep:
            claim = self._ledger.claim(
                key,
                send=True,
                deliver_by=order.deliver_by.timestamp(),
                order=order.to_json(),
            )
        before = time.monotonic() - began
        gevent.sleep(REPLY)
        began = time.monotonic()
        if keep:
            assert isinstance(claim, Claim), claim
            event = dehydrated(key, Kind.ACCEPTED)
            entry = Entry(State.ACCEPTED, time.time(), 1, external_id="p-1", event=event)
            assert self._ledger.finish(claim, entry)
        added.append((before + time.monotonic() - began) * 1000)


def main(url: str, rate: float, seconds: float, rounds: int) -> None:
    """Measure orders with the ledger and without in turn."""
    engine = open_database(url)
    upgrade(engine)
    payloads = Payloads(Vault(new_key()))  # orders are sealed, as they are to be
    ledger = Ledger(engine, payloads, run=off_the_loop(engine))
    ledger.start()
    tune_gc()  # as a worker does
    keeping, results = Keeping(ledger, rate, seconds), []
    for turn in range(rounds + 1):  # the first one warms up
        figures = {keep: keeping.play(keep=keep) for keep in (turn % 2 == 0, turn % 2 == 1)}
        (cpu, added), (base, _) = figures[True], figures[False]
        results.append(
            {"cpu": cpu - base, "p50": median(added), "p99": quantiles(added, n=100)[98]}
        )
    ledger.close()
    print(json.dumps(results[1:]))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
