"""The way of the seed, and nothing else: one Celery task that posts the order with requests.

``celery -A loadtests.baselines.plain_celery worker -P gevent -c 200``. It takes the same orders
from the same queue and posts them to the same merchants as the gateway. It looks no merchant up,
knows no admission, tells nobody what came of the order, and forgets an order whose post failed:
what it costs less than the gateway is what those things cost.

Environment: ``PLAIN_BROKER_URL``; ``PLAIN_MERCHANTS_URL``, to which ``/<merchant>/orders`` is
added; ``PLAIN_TIMEOUT``, requests' timeout in seconds (10).
"""

import os
from typing import Any
from urllib.parse import quote

import requests
from celery import Celery
from requests.adapters import HTTPAdapter

from pos_gateway.broker import topology

#: The name in the header ``task`` of its messages.
TASK = "plain.submit_order"

_TIMEOUT = float(os.environ.get("PLAIN_TIMEOUT", "10"))
_MERCHANTS = os.environ.get("PLAIN_MERCHANTS_URL", "http://localhost:8000/m")

app = Celery("plain", broker=os.environ.get("PLAIN_BROKER_URL"))
app.conf.update(
    # The gateway's queue with the gateway's arguments, so that only the workers differ.
    task_queues=(topology.orders_queue,),
    task_default_queue=topology.orders_queue.name,
    task_default_exchange=topology.orders_exchange.name,
    task_default_exchange_type=topology.orders_exchange.type,
    task_default_routing_key=topology.ORDERS_KEY,
    task_acks_late=True,
    task_ignore_result=True,
    # Four windows of 200: as with the gateway, the pool never waits for the broker.
    worker_prefetch_multiplier=4,
    broker_connection_retry_on_startup=True,
)

session = requests.Session()
# All simulated merchants share a port, and so a pool: requests keeps 10 connections by default
# and would make a new one for nearly every order.
session.mount("http://", HTTPAdapter(pool_maxsize=200))


@app.task(name=TASK)
def submit_order(order: dict[str, Any]) -> None:
    """Post the order to its merchant."""
    response = session.post(
        f"{_MERCHANTS}/{quote(order['merchant_id'], safe='')}/orders",
        json=order,
        headers={"Idempotency-Key": order["order_id"]},
        timeout=_TIMEOUT,
    )
    response.raise_for_status()
