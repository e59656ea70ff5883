"""Declares the delay queues (native delayed delivery) on the worker's connection.

Celery's own step connects to each node of a cluster in turn, and waits up to half a minute for one
that is down: meanwhile the worker takes no orders from the others.
"""

from typing import Any, ClassVar

from celery.bootsteps import StartStopStep
from kombu.transport.native_delayed_delivery import (
    bind_queue_to_native_delayed_delivery_exchange,
    declare_native_delayed_delivery_exchanges_and_queues,
)

from pos_gateway.worker.celery_internals import Consumer, steps_without

_CELERYS = "celery.worker.consumer.delayed_delivery:DelayedDelivery"


class Delays(StartStopStep):
    """Declares the delay queues once per connection."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, consumer: Any) -> None:
        """Declare the queues; an error counts as a lost connection."""
        connection = consumer.connection
        if connection.transport.driver_type != "amqp":
            return  # the in-memory broker has timers
        declare_native_delayed_delivery_exchanges_and_queues(connection, "quorum")
        for queue in consumer.app.amqp.queues.values():
            bind_queue_to_native_delayed_delivery_exchange(connection, queue)


class Blueprint(Consumer.Blueprint):
    """Celery's steps, with ``Delays`` in place of its own."""

    default_steps: ClassVar[list[str]] = [*steps_without(_CELERYS), f"{__name__}:Delays"]
