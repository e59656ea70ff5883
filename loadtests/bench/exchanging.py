"""CPU time of exchanges with a POS: the gateway's way, and what else there is. Patched by gevent.

    python -m gevent.monkey --module loadtests.bench.exchanging URL NUMBER ROUNDS

Prints a JSON list with milliseconds for each exchange, by candidate, for each round.
"""

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress

import requests
import urllib3
from gevent.pool import Pool

from loadtests.bench import orders
from pos_gateway.adapters.rest import RestAdapter
from pos_gateway.auth.authenticator import Authenticator
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind
from pos_gateway.transport.exchange import Reply, Request, Transport
from pos_gateway.transport.guard import Guard

#: Exchanges at once.
AT_ONCE = 20
_JSON = {"Content-Type": "application/json"}

#: Makes one exchange for the order.
Exchange = Callable[[Order], None]


def gateway(url: str) -> Exchange:
    """Transport and adapter: the order's JSON, one deadline, authentication, the reply's meaning."""
    transport, adapter = Transport(guard=Guard(allow_all=True)), RestAdapter()
    authenticator = Authenticator(transport)
    merchant = Merchant.parse(
        {"id": "fast-0", "base_url": url, "auth": {"type": "bearer", "token": "t"}}
    )

    def exchange(order: Order) -> None:
        def send(request: Request) -> Reply:
            return transport.send(request, key=merchant.id, connections=AT_ONCE, seconds=10)

        outcome = adapter.submit(
            order, merchant, authenticator.sending(merchant, send, lambda: 10.0)
        )
        assert outcome.kind is Kind.ACCEPTED, outcome

    return exchange


def session(url: str) -> Exchange:
    """requests as its documentation has it."""
    made = requests.Session()
    adapter = requests.adapters.HTTPAdapter(pool_maxsize=AT_ONCE)
    made.mount("http://", adapter)

    def exchange(order: Order) -> None:
        headers = {"Idempotency-Key": order.order_id, **_JSON}
        reply = made.post(f"{url}/orders", data=order.to_json(), headers=headers, timeout=10)
        assert reply.json()["status"] == "accepted"

    return exchange


def directly(url: str) -> Exchange:
    """urllib3 alone."""
    pool = urllib3.PoolManager(maxsize=AT_ONCE, timeout=10)

    def exchange(order: Order) -> None:
        headers = {"Idempotency-Key": order.order_id, **_JSON}
        reply = pool.request("POST", f"{url}/orders", body=order.to_json(), headers=headers)
        assert reply.json()["status"] == "accepted"

    return exchange


CANDIDATES = {"gateway": gateway, "requests": session, "urllib3": directly}


def main(url: str, number: int, rounds: int) -> None:
    """Measure the candidates in turn, every other round backwards."""
    made = {name: make(url) for name, make in CANDIDATES.items()}
    placed = 0
    results: list[dict[str, float]] = []
    for turn in range(rounds + 1):  # the first one warms up
        names = list(made) if turn % 2 else list(reversed(made))
        result = {}
        for name in names:
            batch = [
                Order.parse(orders.place(f"{name}-{placed + each}", "fast-0"))
                for each in range(number)
            ]
            for order in batch:
                order.to_json()  # made once for the queue already
            placed += number
            pool = Pool(AT_ONCE)
            began = time.process_time()
            for order in batch:
                pool.spawn(made[name], order)
            pool.join(raise_error=True)
            result[name] = (time.process_time() - began) / number * 1000
        results.append(result)
    print(json.dumps(results[1:]))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
