"""What one writes first: a FastAPI handler that publishes with aio-pika, confirmed.

    uvicorn loadtests.baselines.plain_fastapi:app

It validates the same order, asks no token, compares with no earlier order, and answers once the
broker has confirmed.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aio_pika
from fastapi import FastAPI

from loadtests.baselines import BROKER_URL
from pos_gateway.domain.order import Order

_publisher: dict[str, Any] = {}


@asynccontextmanager
async def _connected(_: FastAPI) -> AsyncIterator[None]:
    connection = await aio_pika.connect_robust(BROKER_URL)
    channel = await connection.channel(publisher_confirms=True)
    await channel.declare_queue("plain", durable=True, arguments={"x-queue-type": "quorum"})
    _publisher["exchange"] = channel.default_exchange
    yield
    await connection.close()


app = FastAPI(lifespan=_connected)


@app.post("/v1/orders", status_code=202)
async def submit(order: Order) -> dict[str, str]:
    """Publish it."""
    message = aio_pika.Message(
        order.to_json(),
        message_id=order.order_id,
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        content_type="application/json",
    )
    await _publisher["exchange"].publish(message, routing_key="plain")
    return {"order_id": order.order_id, "merchant_id": order.merchant_id, "state": "submitted"}
