"""The way of the seed, and nothing else: one Celery task that posts the order with requests.

``celery -A loadtests.baselines.plain_celery worker -P gevent -c 200``, or ``-P threads -c 200``, or
``-P prefork -c 4`` as before green threads.
"""

from typing import Any

from celery import Celery

from loadtests.baselines import BROKER_URL, TASK
from loadtests.baselines.posting import post
from pos_gateway.broker import topology

app = Celery("plain", broker=BROKER_URL)
app.conf.update(
    # The gateway's queue with the gateway's arguments, so that only the workers differ.
    task_queues=(topology.orders_queue,),
    task_default_queue=topology.orders_queue.name,
    task_default_exchange=topology.orders_exchange.name,
    task_default_exchange_type=topology.orders_exchange.type,
    task_default_routing_key=topology.ORDERS_KEY,
    task_acks_late=True,
    task_ignore_result=True,
    # Four windows: as with the gateway, the pool never waits for the broker.
    worker_prefetch_multiplier=4,
    broker_connection_retry_on_startup=True,
)


@app.task(name=TASK)
def submit_order(order: dict[str, Any]) -> None:
    """Post the order to its merchant."""
    post(order)
