"""A process that claims and finishes orders: ``python -m tests.ledger.racer URL ORDERS``.

It prints when it is ready, starts at a line of its standard input, and prints the orders it had.
"""

import random
import sys
import threading

from pos_gateway.database.engine import open_database
from pos_gateway.ledger.ledger import Ledger
from pos_gateway.ledger.states import Claim, Key
from tests.ledger.lab import an_entry


def main(url: str, orders: int) -> None:
    engine = open_database(url)
    ledger = Ledger(engine)
    ledger.start()
    had: list[str] = []

    def work() -> None:
        for number in random.sample(range(orders), orders):
            key = Key("m", f"o{number}")
            claim = ledger.claim(key, send=True)
            if isinstance(claim, Claim):
                had.append(key.order_id)
                assert ledger.finish(claim, an_entry(key=key))

    print("ready", flush=True)
    sys.stdin.readline()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    ledger.close()
    engine.dispose()
    print(*had, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
