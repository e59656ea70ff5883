"""Declares the delay queues (native delayed delivery) on the worker's connection.

Celery's own step connects to each node of a cluster in turn, and waits up to half a minute for one
that is down: meanwhile the worker takes no orders from the others.
"""

from typing import Any, ClassVar

from celery.bootsteps import StartStopStep

from pos_gateway.broker import topology
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
        topology.declare_delays(connection)


class Blueprint(Consumer.Blueprint):
    """Celery's steps, with ``Delays`` in place of its own."""

    default_steps: ClassVar[list[str]] = [*steps_without(_CELERYS), f"{__name__}:Delays"]
