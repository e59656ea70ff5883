"""A request and its reply under a single deadline over connecting, TLS, sending and reading."""

import ssl
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar
from weakref import WeakValueDictionary

from pos_gateway.runtime import tls
from pos_gateway.transport import dial
from pos_gateway.transport.deadline import CallContext, DeadlineExceeded
from pos_gateway.transport.endpoint import Endpoint, IdleConnections
from pos_gateway.transport.errors import Misconfigured, TransportError
from pos_gateway.transport.failures import by_progress, failure, without_tracebacks
from pos_gateway.transport.guard import Guard
from pos_gateway.transport.head import host_and_port, host_header, located
from pos_gateway.transport.messages import ACKNOWLEDGEMENT, BODY_LIMIT, Exchange, Reply, Request
from pos_gateway.transport.resolver import Resolver

if TYPE_CHECKING:
    from pos_gateway.transport.session import PosSession

__all__ = [
    "ACKNOWLEDGEMENT",
    "BODY_LIMIT",
    "Connections",
    "Exchange",
    "Reply",
    "Request",
    "Send",
    "Transport",
]

#: Maximum endpoints kept, with their connections; the least recently used is closed first.
ENDPOINTS = 2048

T = TypeVar("T")


class Connections(NamedTuple):
    """Connections to merchants."""

    #: Idle, kept open for the next exchange; a peer may have closed some of them.
    available: int
    #: In use by an exchange.
    leased: int
    #: Being opened, for an exchange.
    pending: int


class ClientIdentity(Protocol):
    """Our TLS identity for a peer, as PEM texts; see ``tls.context``."""

    @property
    def authority(self) -> str | None: ...
    @property
    def chain(self) -> str | None: ...


class Send:
    """An adapter's way to call the merchant's POS.

    Args:
        exchange: sends the request.
    """

    __slots__ = ("_exchange",)

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def __call__(self, request: Request) -> Reply:
        """The reply. Raises TransportError."""
        return self._exchange(request)

    def session(self, *, expects: int = ACKNOWLEDGEMENT) -> "PosSession":
        """A ``requests.Session`` over ``send``, for code built on requests.

        Args:
            expects: maximum bytes of a reply's body.
        """
        from pos_gateway.transport.session import PosSession  # noqa: PLC0415  (where it is used)

        return PosSession(self, expects)


class Transport:
    """Keep-alive connections to many merchants, none shared. Safe from green threads.

    Args:
        guard: the allowed addresses.
        ca_file: PEM file of certificate authorities to trust instead of the system's.
        resolver: resolves the hosts' names.
        idle: maximum idle connections of all merchants. The longest idle is closed first.
    """

    def __init__(
        self,
        *,
        guard: Guard | None = None,
        ca_file: str | None = None,
        resolver: Resolver | None = None,
        idle: int = 200,
    ) -> None:
        self._guard = guard or Guard()
        self._dialer = dial.Dialer(self._guard, resolver or Resolver())
        self._ca_file = ca_file
        self._tls = tls.context(ca_file=ca_file)
        #: TLS contexts by authority and chain, each kept while an endpoint uses the context: loading the
        #: system's authorities takes 50 ms and a megabyte.
        self._contexts: WeakValueDictionary[tuple[str | None, str | None], ssl.SSLContext] = (
            WeakValueDictionary()
        )
        #: By key, scheme, host and port as written, and maximum idle connections.
        self._endpoints: OrderedDict[tuple[str, str, str, int], Endpoint] = OrderedDict()
        self._idle = IdleConnections(idle)
        self._exchanges: set[CallContext] = set()

    @property
    def connections(self) -> Connections:
        """Connections to all merchants now."""
        exchanges = tuple(self._exchanges)
        pending = sum(exchange.connecting for exchange in exchanges)
        return Connections(len(self._idle), len(exchanges) - pending, pending)

    def send(
        self,
        request: Request,
        *,
        key: str,
        connections: int,
        seconds: float,
        identity: ClientIdentity | None = None,
        fence: Callable[[], None] | None = None,
        context: CallContext | None = None,
    ) -> Reply:
        """Exchange a request for a reply within ``seconds``, connecting included.

        Follows no redirects, uses no proxies from the environment, keeps no cookies.

        Args:
            request: the request.
            key: the connections' key; never shared between two merchants.
            connections: maximum idle connections of the key.
            seconds: the deadline.
            identity: our TLS identity for the peer and the authorities to trust; constant per key.
            fence: called before the first byte; raises NotSent to stop the request.
            context: cancels the exchange; for the caller to read afterwards, also after a failure.

        Raises:
            NotSent: provably not processed.
            Misconfigured: provably not processed, and a retry is no use.
            NoValidReply: bytes may have left and no complete valid reply came.
        """
        try:
            scheme, netloc, target = located(request.url)
            terms = key, scheme, netloc, connections
            endpoint = self._endpoints.get(terms)
            if endpoint is None:
                endpoint = self._made(request.url, connections, identity)
                self._endpoints[terms] = endpoint
                if len(self._endpoints) > ENDPOINTS:
                    self._endpoints.popitem(last=False)[1].close()
            else:
                self._endpoints.move_to_end(terms)
        except ValueError as error:
            raise Misconfigured("url", error) from error
        context = context or CallContext()
        do = partial(endpoint.exchange, request, target, context, fence)
        return self._within(seconds, do, context)

    def reach(self, url: str, *, identity: ClientIdentity | None = None) -> None:
        """Connect as ``send`` does, TLS included, and close without a byte of HTTP.

        Raises:
            NotSent: unreachable within the budget for connecting.
            Misconfigured: the guard forbids the address, or the two sides cannot agree on TLS.
        """
        try:
            endpoint = self._made(url, 1, identity)
        except ValueError as error:
            raise Misconfigured("url", error) from error
        context = CallContext()
        self._within(2 * dial.CONNECT_BUDGET, partial(endpoint.try_out, context), context)

    def close_expired(self) -> None:
        """Close idle connections past their time. Called periodically."""
        self._idle.close_expired()

    def close(self) -> None:
        """Close every idle connection. Idempotent."""
        while self._endpoints:
            self._endpoints.popitem()[1].close()

    def _within(self, seconds: float, do: Callable[[], T], context: CallContext) -> T:
        """Call ``do`` within ``seconds``; every failure is raised as a TransportError."""
        context.until = time.monotonic() + seconds
        context.begun = context.sent = False
        self._exchanges.add(context)
        try:
            with context:
                return do()
        except TransportError:
            raise
        except DeadlineExceeded:
            sent, begun = context.sent, context.begun
            if context.is_cancelled:
                problem = "another order needed its slot"
                raise by_progress("cut_short", problem, sent=sent, begun=begun) from None
            problem = f"no reply within {seconds:.3g} s"
            raise by_progress("timeout", problem, sent=sent, begun=begun) from None
        except (OSError, ValueError) as error:
            raise failure(error, sent=context.sent) from without_tracebacks(error)
        finally:
            self._exchanges.discard(context)

    def _made(self, url: str, connections: int, identity: ClientIdentity | None) -> Endpoint:
        scheme, name, port = host_and_port(url)
        self._guard.check_url(scheme, name, port)
        context = self._tls if identity is None else self._context(identity)
        return Endpoint(
            name,
            port,
            host_header(name, port, scheme),
            connections,
            context if scheme == "https" else None,
            self._dialer,
            self._idle,
        )

    def _context(self, identity: ClientIdentity) -> ssl.SSLContext:
        terms = authority, chain = identity.authority, identity.chain
        context = self._contexts.get(terms)
        if context is None:
            try:
                context = tls.context(ca_file=self._ca_file, authority=authority, chain=chain)
            except ssl.SSLError as error:
                raise Misconfigured("client_certificate", error) from error
            self._contexts[terms] = context
        return context
