"""The same on asyncio's bare floor, aio-pika and aiohttp: ``python -m loadtests.baselines.plain_asyncio``.

No framework at all: about the least that an order can cost in Python.
"""

import asyncio
import json
from urllib.parse import quote

import aio_pika
import aiohttp

from loadtests.baselines import BROKER_URL, MERCHANTS_URL, SLOTS, TIMEOUT


async def main() -> None:
    """Post orders until a signal ends it."""
    connection = await aio_pika.connect_robust(BROKER_URL)
    channel = await connection.channel()
    await channel.set_qos(prefetch_count=4 * SLOTS)
    queue = await channel.get_queue("orders")
    slots = asyncio.Semaphore(SLOTS)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=SLOTS),
        timeout=aiohttp.ClientTimeout(total=TIMEOUT),
        raise_for_status=True,
    ) as session:

        async def submit(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            async with slots, message.process():
                order = json.loads(message.body)
                url = f"{MERCHANTS_URL}/{quote(order['merchant_id'], safe='')}/orders"
                headers = {"Idempotency-Key": order["order_id"]}
                async with session.post(url, json=order, headers=headers) as reply:
                    await reply.read()

        await queue.consume(submit)
        await asyncio.Future()


if __name__ == "__main__":
    asyncio.run(main())
