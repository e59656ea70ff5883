"""Connections with a time limit on every wait for the broker's reply.

The library bounds the handshake only, no later request. When packets stop coming (a failover, a
firewall that drops state), the wait ends only when the process is killed: heartbeats don't help,
since the blocked thread is the heartbeats' sender.
"""

from collections.abc import Callable
from typing import Any

from pos_gateway.broker.kombu_internals import AmqpConnection, KombuConnection
from pos_gateway.broker.session import shuffled


class AnsweredConnection(KombuConnection):
    """kombu's connection; a request without a reply raises TimeoutError.

    The error drops the connection: closing the connection sends no further request.

    Args:
        hostname: the broker's URLs; a cluster's nodes, with ``;`` between them, are tried in random order.
        arguments, options: kombu's.
    """

    amqp_class = AmqpConnection

    def __init__(self, hostname: Any = "localhost", *arguments: Any, **options: Any) -> None:
        # By kombu's name, as ``clone`` passes it: Celery's monitors clone a connection.
        if isinstance(hostname, str):
            hostname = shuffled(hostname)
        super().__init__(hostname, *arguments, **options)

    @property
    def waits(self) -> bool:
        """Whether the reader waits for a message, and a TimeoutError thrown there loses nothing.

        Not known with TLS: False.
        """
        connection = self.connection if self.connected else None  # kombu would connect
        return isinstance(connection, AmqpConnection) and connection.waits

    def excuse_silence(self) -> None:
        """Count the peer's heartbeats as received: the peer's bytes are not read for a while."""
        connection = self.connection
        if isinstance(connection, AmqpConnection):
            connection.bytes_recv += 1

    def acknowledge_together(self, later: Callable[[Callable[[], None]], object]) -> None:
        """Batch acknowledgements from now on, written when ``later`` calls the argument.

        An acknowledgement alone is a system call and a packet, and a worker's acknowledgements come
        together: a transaction commits the outcomes of many orders. A lost acknowledgement is harmless:
        the message is redelivered, and the ledger has the order's outcome.
        """
        connection = self.connection
        if isinstance(connection, AmqpConnection):  # an in-memory broker has a different class
            connection.later = later
