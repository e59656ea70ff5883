"""The same as a dramatiq actor: ``dramatiq-gevent loadtests.baselines.plain_dramatiq -p 1 -t 200``.

Its own defaults but for two: a failed order is not tried again, as with the others, and the queue
is the one that is there.
"""

from typing import Any

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

from loadtests.baselines import ACTOR, BROKER_URL
from loadtests.baselines.posting import post


class Broker(RabbitmqBroker):
    """Takes the queue as it was declared: a quorum queue, with the gateway's arguments."""

    def _declare_queue(self, queue_name: str) -> Any:
        return self.channel.queue_declare(queue=queue_name, passive=True)


dramatiq.set_broker(Broker(url=BROKER_URL))


@dramatiq.actor(actor_name=ACTOR, queue_name="orders", max_retries=0)
def submit_order(order: dict[str, Any]) -> None:
    """Post the order to its merchant."""
    post(order)
