"""The way from an adapter to a POS in memory, with mishaps at chosen requests."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pos_gateway.adapters.testing.pos import Pos
from pos_gateway.transport.errors import NoValidReply, TransportError
from pos_gateway.transport.exchange import ACKNOWLEDGEMENT, Reply, Request, Send


@dataclass(frozen=True, slots=True)
class Mishap:
    """What an adapter sees in place of the reply to a request."""

    name: str
    #: Whether the POS carries the request out.
    is_done: bool
    #: Makes what the adapter sees: a reply, or the transport's error. Gets the POS's reply, if any.
    instead: Callable[[Reply | None], Reply | TransportError]


class Wire(Send):
    """A ``send`` without a socket, which keeps requests and replies.

    Args:
        pos: answers the requests.
        mishaps: by the number of the request, from 0.
        meanwhile: called during each request.
    """

    __slots__ = ("_meanwhile", "_pos", "mishaps", "replies", "requests")

    def __init__(
        self,
        pos: Pos,
        mishaps: Mapping[int, Mishap] = MappingProxyType({}),
        meanwhile: Callable[[], object] = lambda: None,
    ) -> None:
        self._pos, self.mishaps, self._meanwhile = pos, dict(mishaps), meanwhile
        self.requests: list[Request] = []
        #: None: the request had no reply.
        self.replies: list[Reply | None] = []

    def __call__(self, request: Request) -> Reply:
        mishap = self.mishaps.get(len(self.requests))
        self.requests.append(request)
        self._meanwhile()
        reply: Reply | TransportError | None = None
        if mishap is None or mishap.is_done:
            reply = self._pos(request)
        if mishap is not None:
            reply = mishap.instead(reply if isinstance(reply, Reply) else None)
        if isinstance(reply, Reply):
            reply = _within(reply, request)
        self.replies.append(reply if isinstance(reply, Reply) else None)
        if isinstance(reply, Reply):
            return reply
        raise reply if reply is not None else NoValidReply("broken_off", "the connection was reset")


def _within(reply: Reply, request: Request) -> Reply | TransportError:
    """The reply, unless the transport reads no body of this size."""
    most = request.expects if reply.status < 400 else min(request.expects, ACKNOWLEDGEMENT)
    if len(reply.body) <= most:
        return reply
    return NoValidReply("reply_too_long", f"a body of more than {most} bytes")
