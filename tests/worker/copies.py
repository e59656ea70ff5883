"""A dispatcher by itself: one copy of an order is at its merchant, another becomes hopeless."""

from gevent import monkey

monkey.patch_all()

import itertools
import time
from types import SimpleNamespace
from typing import Any

import gevent
from celery.concurrency.gevent import TaskPool

from pos_gateway.admission.limits import Limits
from pos_gateway.broker.message import Message
from pos_gateway.clock import SYSTEM_CLOCK
from pos_gateway.outcome import Contact, Kind, Outcome
from pos_gateway.worker import dispatcher

MERCHANT = SimpleNamespace(paused=False, max_concurrency=1, provider=None)
number = itertools.count()
stored: list[Any] = []


def request(order_id: str) -> Any:
    this = SimpleNamespace(
        id=str(next(number)), name="t", merchant_id="m", key=("m", order_id), order_id=order_id
    )
    this.deliver_by, this.record, this.request_dict = time.time() + 60, order_id, {}
    this.delivery_info = {"routing_key": "orders"}
    this.call, this.hopeless, this.settled, this.attempts = None, False, False, 0
    this.acknowledged = 0
    this.acknowledge = lambda: setattr(this, "acknowledged", this.acknowledged + 1)
    return Hashed(this)


class Hashed:
    """By identity, as Celery's requests are."""

    def __init__(self, fields: SimpleNamespace) -> None:
        self.__dict__ = fields.__dict__


def deliver(_gate: Any, record: str, *, hopeless: bool, **_: Any) -> tuple[list[Any], Outcome]:
    if hopeless:
        return [("expired", record)], Outcome(Kind.EXPIRED)
    gevent.sleep(0.5)
    return [("accepted", record)], Outcome(Kind.ACCEPTED, contact=Contact.ANSWERED)


def main() -> None:
    dispatcher.deliver = deliver
    directory = SimpleNamespace(
        listen=lambda _: None,
        want=lambda _: None,
        is_fresh=lambda _: True,
        peek=lambda _: MERCHANT,
    )
    gate: Any = SimpleNamespace(
        directory=directory,
        permits=None,
        settings=SimpleNamespace(merchant_concurrency=1),
        clock=SYSTEM_CLOCK,
        store=stored.extend,
    )
    pool = TaskPool(4)
    pool.start()
    tested = dispatcher.Dispatcher(
        gate=gate,
        pool=pool,
        limits=Limits(slots=4),
        park_message=lambda each: Message("orders", "orders", b"", each.order_id),
        quarantine=print,
    )
    tested.start()
    requests = [request("first"), request("twice"), request("twice")]
    for each in requests:
        tested.offer(each)
    gevent.sleep(0.7)
    tested.admission.open_breaker("m", 600)  # the waiting copy cannot be delivered in time
    gevent.sleep(1)
    print(stored, [each.acknowledged for each in requests])


main()
