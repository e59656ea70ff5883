"""Where a move begins: a plain Celery task that calls merchants' POS APIs (docs/migrating.md).

    BROKER_URL=amqp://... POS_URL='https://pos.example.com/{merchant_id}/orders' \\
        celery -A plain_celery worker -Q pos --concurrency 3 --without-mingle
"""

import os

import requests
from celery import Celery

app = Celery("plain_celery", broker=os.environ["BROKER_URL"])
app.conf.task_default_queue = "pos"


@app.task(
    autoretry_for=(requests.RequestException,),
    retry_backoff=True,
    max_retries=5,
    acks_late=True,
    ignore_result=True,
)
def send_order(order):
    """Create the order at its merchant's POS; the worker waits for the reply."""
    reply = requests.post(
        os.environ["POS_URL"].format(merchant_id=order["merchant_id"]),
        json=order,
        headers={"Idempotency-Key": order["order_id"]},
        timeout=30,
    )
    reply.raise_for_status()
