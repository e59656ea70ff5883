"""Accepts TLS connections, each of which counts from its first packet: uvicorn's count after their handshake."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Collection
from typing import Protocol, cast

#: Seconds between two tries to accept without a free descriptor.
_PAUSE = 0.5


class Limited(Protocol):
    """A connection's protocol, which knows the limit of its server."""

    max_connections: int
    #: Those that have shaken hands.
    connections: Collection[object]

    def end_idle(self) -> bool:
        """Close the connection that is idle for longest; False: none is."""


class TlsListener:
    """Stands in for the ``asyncio.Server`` of a listening socket. For the event loop.

    At the limit a new connection takes the place of one that is idle, and, if half of the connections shake
    hands or none is idle, of the longest handshake: clients that never shake hands use no more descriptors
    than others, and keep no client out.

    Args:
        make: makes a connection's protocol.
        timeout: seconds for a handshake, and from a connection's end for what is unsent and the client's goodbye.
    """

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        make: Callable[[], Limited],
        timeout: float,
    ) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._context = context
        self._make = make
        self._timeout = timeout
        #: Handshakes, the longest first.
        self._shaking: dict[asyncio.Task[None], None] = {}
        self._loop = asyncio.get_running_loop()
        self._is_closed = False
        self._listen()

    def close(self) -> None:
        """Accept no more, and end the handshakes. Idempotent."""
        if not self._is_closed:
            self._loop.remove_reader(self._listener)
        self._is_closed = True
        for task in self._shaking:
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until the handshakes have ended."""
        if self._shaking:
            await asyncio.wait(self._shaking)

    def _listen(self) -> None:
        if not self._is_closed:
            self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        """Accept one: others have their turn before the next."""
        try:
            accepted, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:
            self._loop.remove_reader(self._listener)
            self._loop.call_later(_PAUSE, self._listen)
            return
        accepted.setblocking(False)
        protocol = self._make()
        if len(protocol.connections) + len(self._shaking) >= protocol.max_connections:
            self._make_room(protocol)
        task = self._loop.create_task(self._shake_hands(accepted, protocol))
        self._shaking[task] = None
        task.add_done_callback(lambda done: self._shaking.pop(done, None))

    def _make_room(self, protocol: Limited) -> None:
        # At the limit others shake hands at the same time: they keep their places, or none would ever be done.
        if len(self._shaking) < protocol.max_connections // 2 and protocol.end_idle():
            return
        longest = next(iter(self._shaking), None)
        if longest is not None:  # else the protocol makes room
            del self._shaking[longest]
            longest.cancel()

    async def _shake_hands(self, accepted: socket.socket, protocol: Limited) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: cast(asyncio.Protocol, protocol),
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=self._timeout,
                ssl_shutdown_timeout=self._timeout,
            )
        except OSError:  # the client's fault, or too slow
            accepted.close()
        except asyncio.CancelledError:
            accepted.close()
            raise
