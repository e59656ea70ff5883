"""What the gateway uses of kombu beyond kombu's documentation; used nowhere else.

- ``Connection.get_transport_cls``, and the ``Connection`` of ``pyamqp.Transport`` and ``Channel`` of
  ``pyamqp.Connection``: kombu's classes for connections and channels. Ours bound
  every wait (promise 5) and save system calls (``amqp_internals.py``), also in Celery's consumer.
"""

from functools import cache
from typing import Any

import kombu
from kombu.transport import pyamqp

from pos_gateway.broker import amqp_internals


class Channel(amqp_internals.BufferedChannel, pyamqp.Channel):
    """kombu's, with ``amqp_internals``."""


class AmqpConnection(amqp_internals.BufferedConnection, pyamqp.Connection):
    """kombu's, with ``amqp_internals``."""

    Channel = Channel


class KombuConnection(kombu.Connection):
    """kombu's; to RabbitMQ with an ``amqp_class``."""

    #: Derived from AmqpConnection.
    amqp_class: Any

    def get_transport_cls(self) -> Any:
        found = super().get_transport_cls()
        return _with(self.amqp_class, found) if issubclass(found, pyamqp.Transport) else found


@cache
def _with(amqp_class: Any, transport: type) -> type:
    return type(transport.__name__, (transport,), {"Connection": amqp_class})
