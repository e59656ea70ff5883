"""A backend, or a relay, as a process that a test kills.

``python -m tests.outbox.program backend URL PREFIX FAILPOINTS`` places orders until it is killed,
``… relay URL BROKER FAILPOINTS`` submits them, and ``… preloaded`` forks either (tests/forked.py).
"""

import importlib
import itertools
import sys
import time
from typing import NoReturn

from pos_gateway.client import OrderClient, outbox
from pos_gateway.client.outbox.connections import PlainConnection
from pos_gateway.client.outbox.opening import connector
from pos_gateway.runtime import failpoints
from tests.forked import fork_each
from tests.orders import an_order

#: Seconds between a backend's orders, or it would have thousands while a server is started again.
_PAUSE = 0.01


def backend(url: str, prefix: str) -> None:
    """Orders and cancel requests, each in a transaction; every third is rolled back."""
    connection = connector(url)()
    for number in itertools.count():
        order_id = f"{prefix}-{number}"
        try:
            place = f"insert into placed (order_id) values ('{order_id}')"
            PlainConnection(connection).execute(place)
            outbox.add(connection, an_order(order_id))
            if number % 3 == 2:
                raise ZeroDivisionError
            connection.commit()
            if number % 3 == 1:
                outbox.cancel(connection, order_id, "fast-1")
                connection.commit()
        except ZeroDivisionError:
            connection.rollback()
        print(order_id, flush=True)
        time.sleep(_PAUSE)


def relay(url: str, broker_url: str) -> None:
    """A relay, until it is killed."""
    client = OrderClient(broker_url)
    print("begins", flush=True)
    outbox.Relay(client, url, batch=7, poll=0.01).run()


def main(arguments: list[str]) -> NoReturn:
    role, *others, points = arguments
    failpoints.arm_all(points)
    {"backend": backend, "relay": relay}[role](*others)
    sys.exit()


if __name__ == "__main__":
    if sys.argv[1:] == ["preloaded"]:
        for driver in ("psycopg", "pymysql", "sqlite3"):
            importlib.import_module(driver)
        fork_each(main)
    else:
        main(sys.argv[1:])
