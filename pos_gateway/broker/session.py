"""A connection for the backend's process: plain kombu, used by one thread, woken by any thread."""

import os
import random
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from amqp.exceptions import AMQPError
from kombu import Connection
from kombu.exceptions import OperationalError

#: Raised by kombu when a connection is lost or was never made.
CONNECTION_ERRORS = (OSError, AMQPError, OperationalError)
#: Seconds to wait for a TCP connection and the AMQP handshake.
CONNECT_TIMEOUT = 5.0
#: Seconds between AMQP heartbeats: a dead peer is detected after two heartbeats.
HEARTBEAT = 15
#: Seconds to wait for the broker's reply to a request (to declare a queue, say). A busy broker may
#: need long; the request is retried on a new connection.
ANSWER = 10.0
#: Seconds without a message's confirm until the connection ends, though heartbeats come: the channel may be stuck.
CONFIRM_TIMEOUT = 60.0
#: Seconds to wait for the rest of a frame, and for the reply when closing.
_REST, _GOODBYE = 0.05, 1.0


class BrokerSession:
    """A connection to the broker, made at once. All but ``wake`` is for the constructing thread.

    kombu alone waits for a reply without limit; here every read and write has a limit.

    Args:
        broker_url: the broker's; a cluster's nodes with ``;`` between them.
        transport_options: kombu's.

    Raises:
        CONNECTION_ERRORS: no connection could be made.
    """

    def __init__(self, broker_url: str, **transport_options: Any) -> None:
        self._pid = os.getpid()
        self._heartbeat_due = 0.0
        self.connection = _connected(broker_url, transport_options)
        #: Whether the broker is RabbitMQ; kombu's in-memory broker (the demo) has no sockets.
        self.is_amqp = self.connection.transport.driver_type == "amqp"
        self._woken, self._waker = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._socket: Any = None
        if self.is_amqp:
            self._socket = self.connection.connection.sock
            self._socket.settimeout(ANSWER)
            self._selector.register(self._socket, selectors.EVENT_READ)

    @property
    def is_inherited(self) -> bool:
        """Whether the session is the parent's: gevent's green threads go on in a forked child."""
        return self._pid != os.getpid()

    def wait(self, seconds: float) -> None:
        """Handle the broker's frames, until something came, ``wake``, or ``seconds`` are over.

        Raises:
            CONNECTION_ERRORS: the connection is lost.
        """
        ready = [key.fileobj for key, _ in self._selector.select(min(seconds, HEARTBEAT / 4))]
        if self.is_inherited:
            return
        if self._woken in ready:
            self._woken.recv(4096)
        if not self.is_amqp:
            return
        while self._has_data():
            with suppress(TimeoutError):  # part of a frame; kombu keeps the part
                self.connection.drain_events(timeout=_REST)
        if time.monotonic() >= self._heartbeat_due:
            self._heartbeat_due = time.monotonic() + HEARTBEAT / 4
            self.connection.heartbeat_check()

    def wait_until(self, happened: Callable[[], bool], until: float) -> None:
        """Wait until ``happened`` is true or the time ``until`` (monotonic). Raises as ``wait``."""
        while not happened() and not self.is_inherited and (left := until - time.monotonic()) > 0:
            self.wait(left)

    def wake(self) -> None:
        """Make the thread's ``wait`` return. For any thread."""
        with suppress(OSError):  # closed by now
            self._waker.send(b"\0", socket.MSG_DONTWAIT)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the connection: after an error at once, else properly; the broker then logs no lost client."""
        self._selector.close()
        if not self.is_inherited:
            if self._socket is not None:
                with suppress(OSError):
                    self._socket.settimeout(_GOODBYE)
            with suppress(*CONNECTION_ERRORS):
                if error is None:
                    self.connection.release()
            self.connection.collect()
        self._woken.close()
        self._waker.close()

    def _has_data(self) -> bool:
        """Whether a read returns at once; TLS may have decrypted more than was read."""
        pending = getattr(self._socket, "pending", None)
        if pending is not None and pending():
            return True
        return any(key.fileobj is self._socket for key, _ in self._selector.select(0))


def _connected(broker_url: str, transport_options: Mapping[str, Any]) -> Connection:
    """A connection to the first node that accepts.

    kombu tries several nodes itself, but checks the certificate for the first node's name or no name.
    """
    nodes = shuffled(broker_url).split(";")
    while True:
        node = nodes.pop()
        tls = {"server_hostname": None}  # kombu's words for the URL's
        connection = Connection(
            node,
            heartbeat=HEARTBEAT,
            connect_timeout=CONNECT_TIMEOUT,
            transport_options=transport_options,
            ssl=tls if node.startswith("amqps:") else False,
        )
        try:
            return connection.ensure_connection(max_retries=0)
        except BaseException as error:
            connection.collect()
            if not nodes or not isinstance(error, CONNECTION_ERRORS):
                raise


def shuffled(urls: str) -> str:
    """A cluster's nodes in random order.

    Clients spread over the nodes, and an accepting node without replies is not always next.
    """
    nodes = urls.split(";")
    random.shuffle(nodes)
    return ";".join(nodes)
