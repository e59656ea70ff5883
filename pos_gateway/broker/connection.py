"""Connections on which no answer of the broker's is waited for without end.

The library bounds its handshake and no question after it. A broker whose packets stop coming then
(a failover, a firewall that forgets) is waited for until somebody kills the process: heartbeats do
not help whoever waits, since it is he who would look after them.
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

#: Seconds for the broker's answer to whatever is asked of it (a queue to be declared, say). It may
#: have much to do, and is asked again on a new connection.
ANSWER = 10.0


class AnsweredConnection(Connection):
    """kombu's, on which a question that stays without an answer raises TimeoutError.

    The connection is given up with it, so that closing it asks nothing more.

    Args:
        urls: the broker's; the nodes of a cluster with ``;`` between them are tried in any order, so
            that clients are spread over them, and one that accepts and does not answer is not the
            next one again.
        arguments, options: kombu's.
    """

    def __init__(self, urls: Any = "localhost", *arguments: Any, **options: Any) -> None:
        if isinstance(urls, str) and ";" in urls:
            nodes = urls.split(";")
            random.shuffle(nodes)
            urls = ";".join(nodes)
        super().__init__(urls, *arguments, **options)

    def acknowledge_together(self, later: Callable[[Callable[[], None]], object]) -> None:
        """Write acknowledgements many at once from now on, when ``later`` calls what it is given.

        Each for itself is a system call and a packet, and a worker's come together: one
        transaction has the outcomes of many orders. One that is lost on the way is as one that was
        never made: the message comes again, and the ledger knows its order.
        """
        connection = self.connection
        if isinstance(connection, _Answered):  # there are brokers in memory, too
            connection.later = later

    def get_transport_cls(self) -> Any:
        found = super().get_transport_cls()
        return _answered(found) if issubclass(found, pyamqp.Transport) else found


@cache
def _answered(transport: type) -> type:
    return type(transport.__name__, (transport,), {"Connection": _Answered})


class _Channel(pyamqp.Channel):
    """Messages' bodies as they came: the library makes text of them, of whatever kind they say."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, auto_decode=False, **options)

    def dispatch_method(self, method_sig: tuple[int, int], payload: bytes, content: Any) -> None:
        if method_sig == spec.Basic.Deliver and not self.is_closing:
            self._on_basic_deliver(*delivery(payload), content)
        else:
            super().dispatch_method(method_sig, payload, content)

    def basic_ack(self, delivery_tag: int, multiple: bool = False, argsig: str = "Lb") -> Any:
        """Acknowledge; what it says may be written later (``acknowledge_together``)."""
        if self.connection is None:
            raise RecoverableConnectionError("connection already closed")
        if self.connection.later is None:
            return super().basic_ack(delivery_tag, multiple, argsig)
        return self.connection.write_later(
            acknowledgement(self.channel_id, delivery_tag, multiple=multiple)
        )


class _Answered(pyamqp.Connection):
    Channel = _Channel
    #: What has come, and what is to go; None until it is connected.
    _incoming: Incoming | None = None
    _outgoing: Outgoing | None = None
    #: Calls what it is given when others have had their turns; None: nothing is written later.
    later: Callable[[Callable[[], None]], object] | None = None

    def connect(self, callback: Any = None) -> Any:
        """Connect, and read and write from then on with fewer system calls.

        The library asks for a frame's head, its payload and its last byte one by one, and a message
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
        """Give the connection up; what has come of it is not dealt with any more."""
        self._incoming = self._outgoing = None
        super().collect()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Write what is sent meanwhile many frames at a time, and all of it at the end.

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
        self.bytes_sent += 1  # the library's heartbeats look whether anything was sent
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
                self.collect()  # the reader hears of it, and the broker has the messages back

    def blocking_read(self, timeout: float | None = None) -> Any:
        """Read a frame. One that has come already is taken as it is, with no time limit to set."""
        if self._transport is None:  # the library would connect again, to nobody's knowledge
            raise RecoverableConnectionError("connection already closed")
        if self._incoming is not None:
            frame = self._incoming.frame()
            if frame is not None:
                return self.on_inbound_frame(frame)
        return super().blocking_read(timeout)

    def drain_events(self, timeout: float | None = None) -> None:
        """Read until something was dealt with; without a time limit, somebody has a question."""
        try:
            super().drain_events(ANSWER if timeout is None else timeout)
        except TimeoutError:
            if timeout is None:
                self.collect()
                raise TimeoutError(f"the broker has not answered for {ANSWER:g} s") from None
            raise
