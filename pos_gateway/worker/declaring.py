"""Declares a worker's queues on the consuming connection, in place of Celery.

Celery's consumer would declare the queues, which a broker user without the right cannot, although the queues exist.
Celery's own step for the delay queues (native delayed delivery) connects to each node of a cluster in turn, and waits
up to half a minute for a node that is down: during the wait the worker takes no orders from the live nodes.
"""

from typing import Any, ClassVar

from amqp.exceptions import ChannelError

from pos_gateway.broker import topology
from pos_gateway.broker.connection import AnsweredConnection
from pos_gateway.domain.errors import PublishRefused
from pos_gateway.worker.celery_internals import AMQP, Consumer, steps_without

_CELERYS = "celery.worker.consumer.delayed_delivery:DelayedDelivery"


class Blueprint(Consumer.Blueprint):
    """Celery's steps without the step for the delay queues."""

    default_steps: ClassVar[list[str]] = steps_without(_CELERYS)


class Broker(AMQP):
    """The worker's view of the broker."""

    Connection = AnsweredConnection

    def TaskConsumer(self, channel: Any, **options: Any) -> Any:  # noqa: N802  (Celery's name)
        """The consumer of the orders' queues, which are declared once per connection.

        The delay queues are declared, too: a deleted queue of orders has lost its bindings to the delay queues.

        Raises:
            ChannelError: the declaration failed; Celery treats the error as a lost connection, and reconnects.
        """
        try:
            topology.declare(channel)
            topology.declare_delays(channel)
        except PublishRefused as error:
            raise ChannelError(str(error)) from error
        return super().TaskConsumer(channel, auto_declare=False, **options)
