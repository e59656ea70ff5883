"""Declares what a worker needs on the connection that it consumes on, in place of Celery.

Celery's consumer would declare its queues, which a broker user without the right cannot, though they are
there. Its own step for the delay queues (native delayed delivery) connects to each node of a cluster in
turn, and waits up to half a minute for one that is down: meanwhile the worker takes no orders from the others.
"""

from typing import Any, ClassVar

from amqp.exceptions import ChannelError

from pos_gateway.broker import topology
from pos_gateway.broker.connection import AnsweredConnection
from pos_gateway.domain.errors import PublishRefused
from pos_gateway.worker.celery_internals import AMQP, Consumer, steps_without

_CELERYS = "celery.worker.consumer.delayed_delivery:DelayedDelivery"


class Blueprint(Consumer.Blueprint):
    """Celery's steps without its own for the delay queues."""

    default_steps: ClassVar[list[str]] = steps_without(_CELERYS)


class Broker(AMQP):
    """What the worker uses of the broker."""

    Connection = AnsweredConnection

    def TaskConsumer(self, channel: Any, **options: Any) -> Any:  # noqa: N802  (Celery's name)
        """The consumer of the orders' queues, which are declared once per connection.

        Those for delays, too: a queue of orders that was deleted has lost what binds it to them.

        Raises:
            ChannelError: they cannot be; Celery takes it for a lost connection, and reconnects.
        """
        try:
            topology.declare(channel)
            topology.declare_delays(channel)
        except PublishRefused as error:
            raise ChannelError(str(error)) from error
        return super().TaskConsumer(channel, auto_declare=False, **options)
