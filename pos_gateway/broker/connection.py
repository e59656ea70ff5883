"""Connections with a time limit on every wait for the broker's reply.

The library bounds its handshake only, no later request. When packets stop coming (a failover, a
firewall that drops state), the wait ends only when the process is killed: heartbeats don't help,
since the blocked thread is the one that sends them.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import Any

import structlog
from amqp import spec
from amqp.exceptions import RecoverableConnectionError
from amqp.transport import TCPTransport
from kombu import Connection
from kombu.transport import pyamqp

from pos_gateway.broker.frames import Incoming, Outgoing, acknowledgement, delivery
from pos_gateway.runtime.sockets import send_all

log = structlog.get_logger(__name__)

#: Seconds to wait for the broker's reply to a request (to declare a queue, say). A busy broker may
#: need long; the request is retried on a new connection.
ANSWER = 10.0


class AnsweredConnection(Connection):
    """kombu's, on which a request without a reply raises TimeoutError.

    The connection is dropped with it, so that closing it sends no further request.

    Args:
        urls: the broker's; a cluster's nodes, with ``;`` between them, are tried in random order:
            clients spread over them, and a node that accepts and does not reply is not always next.
        arguments, options: kombu's.
    """

    def __init__(self, urls: Any = "localhost", *arguments: Any, **options: Any) -> None:
        if isinstance(urls, str) and ";" in urls:
            nodes = urls.split(";")
            random.shuffle(nodes)
            urls = ";".join(nodes)
        super().__init__(urls, *arguments, **options)

    def acknowledge_together(self, later: Callable[[Callable[[], None]], object]) -> None:
        """Batch acknowledgements from now on: they are written when ``later`` calls its argument.

        Each alone is a system call and a packet, and a worker's come together: one transaction
        commits the outcomes of many orders. A lost acknowledgement is harmless: the message is
        redelivered, and the ledger has its order's outcome.
        """
        connection = self.connection
        if isinstance(connection, _Answered):  # an in-memory broker has none
            connection.later = later

    def get_transport_cls(self) -> Any:
        found = super().get_transport_cls()
        return _answered(found) if issubclass(found, pyamqp.Transport) else found


@cache
def _answered(transport: type) -> type:
    return type(transport.__name__, (transport,), {"Connection": _Answered})


class _Channel(pyamqp.Channel):
    """Keeps bodies as bytes: the library decodes them by their content type."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, auto_decode=False, **options)

    def dispatch_method(self, method_sig: tuple[int, int], payload: bytes, content: Any) -> None:
        if method_sig == spec.Basic.Deliver and not self.is_closing:
            self._on_basic_deliver(*delivery(payload), content)
        else:
            super().dispatch_method(method_sig, payload, content)

    def basic_ack(self, delivery_tag: int, multiple: bool = False, argsig: str = "Lb") -> Any:
        """Acknowledge; the frame may be written later (``acknowledge_together``)."""
        if self.connection is None:
            raise RecoverableConnectionError("connection already closed")
        if self.connection.later is None:
            return super().basic_ack(delivery_tag, multiple, argsig)
        return self.connection.write_later(
            acknowledgement(self.channel_id, delivery_tag, multiple=multiple)
        )


class _Answered(pyamqp.Connection):
    Channel = _Channel
    #: Read and write buffers; None until connected.
    _incoming: Incoming | None = None
    _outgoing: Outgoing | None = None
    #: Calls its argument after other green threads have run; None: nothing is written later.
    later: Callable[[Callable[[], None]], object] | None = None

    def connect(self, callback: Any = None) -> Any:
        """Connect, and buffer reads and writes from then on to save system calls.

        The library reads a frame's head, its payload and its last byte one by one, and a message
        has three frames.
        """
        result = super().connect(callback)
        transport = self.transport
        if not isinstance(transport._quick_recv, Incoming):
            self._incoming = transport._quick_recv = Incoming(transport._quick_recv)
            is_plain = isinstance(transport, TCPTransport)
            write = partial(send_all, transport.sock) if is_plain else transport._write
            self._outgoing = transport._write = Outgoing(write)
        return result

    def collect(self) -> None:
        """Drop the connection; unread frames are discarded."""
        self._incoming = self._outgoing = None
        super().collect()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Buffer what is sent in the block, many frames a write, and write all of it at the end.

        Raises:
            OSError, RecoverableConnectionError: it could not be written.
        """
        transport, outgoing = self._transport, self._outgoing
        if outgoing is None:
            raise RecoverableConnectionError("connection already closed")
        outgoing.gathers = True
        try:
            yield
        finally:
            outgoing.gathers = False
            transport.write(b"")

    def write_later(self, frame: bytes) -> None:
        """Write a frame with the next ones, or when ``later`` says."""
        self.bytes_sent += 1  # the library's heartbeats check whether anything was sent
        is_first = self._outgoing is not None and self._outgoing.keep(frame)
        if is_first and self.later is not None:
            self.later(self._write_kept)

    def _write_kept(self) -> None:
        try:
            if self._transport is not None:
                self._transport.write(b"")
        except OSError as error:
            log.warning("acknowledgements.not_written", error=str(error))
            with suppress(
                Exception
            ):  # as for a publisher's link: the reader may be closing it, too
                self.collect()  # the reader fails, and the broker requeues

    def blocking_read(self, timeout: float | None = None) -> Any:
        """Read a frame. A buffered one needs no time limit set on the socket."""
        if self._transport is None:  # the library would reconnect silently
            raise RecoverableConnectionError("connection already closed")
        if self._incoming is not None:
            frame = self._incoming.frame()
            if frame is not None:
                return self.on_inbound_frame(frame)
        return super().blocking_read(timeout)

    def drain_events(self, timeout: float | None = None) -> None:
        """Handle one frame; without a time limit, the caller awaits the reply to a request."""
        try:
            super().drain_events(ANSWER if timeout is None else timeout)
        except TimeoutError:
            if timeout is None:
                self.collect()
                raise TimeoutError(f"the broker has not answered for {ANSWER:g} s") from None
            raise
