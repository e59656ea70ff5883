"""Milliseconds of CPU of an exchange with a POS: the gateway, its transport, requests, urllib3."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count

import requests
import urllib3
from gevent.pool import Pool

from loadtests.bench import orders
from loadtests.bench.micro.runner import Play, in_turn, thread_cpu
from pos_gateway.adapters.rest import RestAdapter
from pos_gateway.auth.authenticator import Authenticator, credentials_of
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind
from pos_gateway.transport.exchange import Reply, Request, Send, Transport
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
            signed = request.adding(authenticator.headers(credentials_of(merchant), request, 10.0))
            return transport.send(signed, key=merchant.id, connections=AT_ONCE, seconds=10)

        outcome = adapter.submit(order, merchant, Send(send))
        assert outcome.kind is Kind.ACCEPTED, outcome

    return exchange


def alone(url: str) -> Exchange:
    """The transport: the same bytes, without adapter, credentials and the reply's meaning."""
    transport, headers = Transport(guard=Guard(allow_all=True)), {"Authorization": "Bearer t"}

    def exchange(order: Order) -> None:
        said = {**_JSON, "Idempotency-Key": order.order_id, **headers}
        request = Request("POST", f"{url}/orders", order.to_json(), said)
        reply = transport.send(request, key="fast-0", connections=AT_ONCE, seconds=10)
        assert reply.status in (200, 201)

    return exchange


def through(url: str) -> Exchange:
    """``send.session()``: what an adapter pays that is built on requests."""
    transport = Transport(guard=Guard(allow_all=True))

    def send(request: Request) -> Reply:
        return transport.send(request, key="fast-0", connections=AT_ONCE, seconds=10)

    def exchange(order: Order) -> None:
        _post(Send(send).session(), url, order)

    return exchange


def session(url: str) -> Exchange:
    """``requests`` as its documentation has it."""
    made = requests.Session()
    made.mount("http://", requests.adapters.HTTPAdapter(pool_maxsize=AT_ONCE))
    return partial(_post, made, url)


def _post(made: requests.Session, url: str, order: Order) -> None:
    headers = {"Idempotency-Key": order.order_id, **_JSON}
    reply = made.post(f"{url}/orders", data=order.to_json(), headers=headers, timeout=10)
    assert reply.json()["status"] == "accepted"


def directly(url: str) -> Exchange:
    """urllib3 alone."""
    pool = urllib3.PoolManager(maxsize=AT_ONCE, timeout=10)

    def exchange(order: Order) -> None:
        headers = {"Idempotency-Key": order.order_id, **_JSON}
        reply = pool.request("POST", f"{url}/orders", body=order.to_json(), headers=headers)
        assert reply.json()["status"] == "accepted"

    return exchange


@contextmanager
def opened(number: int, url: str, at_once: str) -> Iterator[Play]:
    """Each candidate makes as many exchanges, always with new orders."""
    numbers = count()

    def cpu(exchange: Exchange) -> float:
        batch = [Order.parse(orders.place(f"o-{next(numbers)}", "fast-0")) for _ in range(number)]
        for order in batch:
            order.to_json()  # made once for the queue already
        pool, began = Pool(AT_ONCE), time.process_time()
        for order in batch:
            pool.spawn(exchange, order)
        pool.join(raise_error=True)
        return (time.process_time() - began) / number * 1000

    makers = {
        "gateway": gateway,
        "transport alone": alone,
        "send.session()": through,
        "requests": session,
        "urllib3": directly,
    }
    candidates: dict[str, Callable[[], float]] = {
        name: partial(cpu, make(url)) for name, make in makers.items()
    }
    in_a_row, order = alone(at_once), Order.parse(orders.place("o-1", "fast-0"))
    # One green thread, whose caches are warm: what the client costs, and not what waiting does.
    candidates["transport alone, in a row"] = lambda: (
        1000 * thread_cpu(number, lambda _: in_a_row(order))
    )
    yield lambda turn: in_turn(candidates, turn)
