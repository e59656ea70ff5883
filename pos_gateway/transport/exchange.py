"""One request, one reply, one deadline over connecting, TLS, sending and reading.

A prepared request goes straight to an adapter of requests: a Session would add proxies, ``.netrc``
and cookies from the environment, and as much CPU again.
"""

import re
import ssl
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from http.client import HTTPException
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import SplitResult, urlsplit

from requests import PreparedRequest
from requests.adapters import BaseAdapter
from requests.utils import requote_uri
from urllib3.connectionpool import HTTPConnectionPool
from urllib3.exceptions import HTTPError
from urllib3.util import Timeout

from pos_gateway.runtime import tls
from pos_gateway.transport import connect
from pos_gateway.transport.deadline import CancelToken, DeadlineExceeded, deadline
from pos_gateway.transport.errors import Misconfigured, NoValidReply, TransportError
from pos_gateway.transport.failures import bare, by_progress, failure
from pos_gateway.transport.guard import Guard
from pos_gateway.transport.head import framing, head, host
from pos_gateway.transport.resolver import Resolver
from pos_gateway.transport.response import StrictResponse

#: Longest reply bodies, in bytes: an acknowledgement's (the default), and the most that a request
#: may ask for. Reading 256 KiB of JSON takes as long as a hundred small orders.
ACKNOWLEDGEMENT, BODY_LIMIT = 32 * 1024, 256 * 1024
#: Merchants' connection pools that are kept, least recently used out first.
POOLS = 2048

#: Shared by all pools, to keep the connections of two thousand merchants small.
_NO_TIMEOUT = Timeout()

T = TypeVar("T")

#: Default headers of every request.
_FIELDS = {
    "User-Agent": "pos-gateway",
    "Accept": "application/json",
    "Accept-Encoding": "identity",
}
_KEEP_ALIVE = re.compile(r"(?:^|[\s,])timeout\s*=\s*([0-9]{1,6})\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request. ``url`` is absolute."""

    method: str
    url: str
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    #: Maximum bytes of the reply's body; a refusal's is never above ACKNOWLEDGEMENT.
    expects: int = ACKNOWLEDGEMENT
    #: A search: it changes nothing at the POS, though its method is not GET.
    is_search: bool = False

    @property
    def changes(self) -> bool:
        """Whether it may change something at the POS."""
        return self.method != "GET" and not self.is_search


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete reply. Header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


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


#: What an adapter calls its merchant's POS with. Raises TransportError.
Send = Callable[[Request], Reply]


class Transport:
    """Keep-alive connections to many merchants, a pool for each. Safe from green threads.

    Args:
        guard: what may be connected to.
        ca_file: PEM file of certificate authorities to trust instead of the system's.
        resolver: resolves the hosts' names.
    """

    def __init__(
        self,
        *,
        guard: Guard | None = None,
        ca_file: str | None = None,
        resolver: Resolver | None = None,
    ) -> None:
        self._guard = guard or Guard()
        self._dial = connect.Dialer(self._guard, resolver or Resolver()).dial
        self._ca_file = ca_file
        #: Shared: loading the authorities takes milliseconds and a megabyte.
        self._tls = tls.context(ca_file=ca_file)
        self._pools: OrderedDict[str, _Adapter] = OrderedDict()
        self._exchanges: set[connect.Progress] = set()

    @property
    def connections(self) -> Connections:
        """Connections to all merchants now."""
        exchanges, adapters = tuple(self._exchanges), tuple(self._pools.values())
        pending = sum(exchange.connecting for exchange in exchanges)
        available = sum(adapter.idle for adapter in adapters)
        return Connections(available, len(exchanges) - pending, pending)

    def send(
        self,
        request: Request,
        *,
        key: str,
        connections: int,
        seconds: float,
        cancel_token: CancelToken | None = None,
        identity: ClientIdentity | None = None,
        fence: Callable[[], None] | None = None,
    ) -> Reply:
        """Exchange a request for a reply within ``seconds``, connecting included.

        Follows no redirects, uses no proxies from the environment, keeps no cookies.

        Args:
            request: what to send.
            key: whose connections to use; never shared between two merchants.
            connections: how many to keep open for it.
            seconds: the deadline.
            cancel_token: cancels the exchange before its deadline.
            identity: our TLS identity for this peer and the authorities to trust; constant per key.
            fence: called before the first byte; raises NotSent to stop the request.

        Raises:
            NotSent: provably not processed.
            Misconfigured: provably not processed, and a retry is no use.
            NoValidReply: bytes may have left and no complete valid reply came.
        """
        try:
            adapter = self._adapter(key, request.url, connections, identity)
        except (HTTPError, ValueError) as error:
            raise Misconfigured("url", error) from error
        do = partial(_exchange, adapter, request, seconds)
        return self._within(seconds, do, cancel_token or CancelToken(), fence)

    def reach(self, url: str, *, identity: ClientIdentity | None = None) -> None:
        """Connect as ``send`` does, TLS included, and close without a byte of HTTP.

        Raises:
            NotSent: unreachable within the budget for connecting.
            Misconfigured: the guard forbids it, or TLS cannot be agreed on.
        """
        try:
            adapter = self._made(urlsplit(url), url, 1, identity)
        except (HTTPError, ValueError) as error:
            raise Misconfigured("url", error) from error
        self._within(2 * connect.CONNECT_BUDGET, adapter.try_out, CancelToken())

    def close(self) -> None:
        """Close every idle connection. Idempotent."""
        while self._pools:
            self._pools.popitem()[1].close()

    def _within(
        self,
        seconds: float,
        do: Callable[[], T],
        cancel_token: CancelToken,
        fence: Callable[[], None] | None = None,
    ) -> T:
        """Call ``do`` within ``seconds``; every failure is raised as a TransportError."""
        progress = connect.Progress(fence)
        token = connect.progress.set(progress)
        self._exchanges.add(progress)
        try:
            with deadline(seconds, cancel_token):
                return do()
        except TransportError:
            raise
        except DeadlineExceeded:
            sent, begun = progress.sent, progress.begun
            if cancel_token.is_over:
                problem = "others needed its place"
                raise by_progress("cut_short", problem, sent=sent, begun=begun) from None
            problem = f"no reply within {seconds:.3g} s"
            raise by_progress("timeout", problem, sent=sent, begun=begun) from None
        except (HTTPError, OSError, ValueError, HTTPException) as error:
            # ValueError: http.client's and urllib3's error for a reply they cannot parse.
            raise failure(error, sent=progress.sent) from bare(error)
        finally:
            self._exchanges.discard(progress)
            connect.progress.reset(token)

    def _adapter(
        self, key: str, url: str, connections: int, identity: ClientIdentity | None = None
    ) -> "_Adapter":
        origin = _origin(url)
        adapter = self._pools.get(key)
        if adapter is not None and adapter.serves(origin.scheme, origin.netloc, connections):
            self._pools.move_to_end(key)
            return adapter
        made = self._made(origin, url, connections, identity)
        if adapter is not None:
            adapter.close()
        self._pools[key] = made
        self._pools.move_to_end(key)
        if len(self._pools) > POOLS:
            self._pools.popitem(last=False)[1].close()
        return made

    def _made(
        self, origin: SplitResult, url: str, connections: int, identity: ClientIdentity | None
    ) -> "_Adapter":
        if origin.scheme not in ("http", "https") or not origin.hostname:
            raise Misconfigured("url", f"{url!r} is not an http(s) URL")
        port = _port(origin.scheme, origin.port)
        self._guard.check_url(origin.scheme, origin.hostname, port)
        context = self._tls if identity is None else self._context(identity)
        return _Adapter(origin.scheme, origin.netloc, connections, context, self._dial)

    def _context(self, identity: ClientIdentity) -> ssl.SSLContext:
        try:
            return tls.context(
                ca_file=self._ca_file, authority=identity.authority, chain=identity.chain
            )
        except ssl.SSLError as error:
            raise Misconfigured("client_certificate", error) from error


def _exchange(adapter: "_Adapter", request: Request, seconds: float) -> Reply:
    prepared = PreparedRequest()
    prepared.method, prepared.url, prepared.body = request.method, request.url, request.body
    length = framing(request.method, request.body)
    said = {"Host": adapter.host, **_FIELDS, **request.headers, **length}
    # The last header of a name wins, whatever its case. requests' own dictionary takes ten times as
    # long, and nothing is looked up in it.
    fields = dict({name.lower(): (name, value) for name, value in said.items()}.values())
    prepared.headers = fields  # type: ignore[assignment]
    # The timeout of each socket operation is the fallback where no deadline works.
    return adapter.send(prepared, timeout=seconds, expects=request.expects)


def _read(response: StrictResponse, expects: int) -> Reply:
    """The whole reply. Raises NoValidReply."""
    if response.status >= 400:  # a refusal has no order in it, and no page of orders
        expects = min(expects, ACKNOWLEDGEMENT)
    body = response.read(expects + 1)
    if len(body) > expects:
        raise NoValidReply("reply_too_long", f"the reply is longer than {expects} bytes")
    if response.length:
        raise NoValidReply("cut", f"the reply ends {response.length} bytes too early")
    encodings = response.fields.get("content-encoding", [])
    if any(encoding.lower() != "identity" for encoding in encodings):
        raise NoValidReply("encoding", "the reply is encoded although identity was asked for")
    headers = {name: values[-1] for name, values in response.fields.items()}
    return Reply(response.status, headers, body)


@lru_cache(maxsize=POOLS)  # urlsplit's own cache holds 128
def _origin(url: str) -> SplitResult:
    return urlsplit(url)


@lru_cache(maxsize=POOLS)
def _target(url: str) -> str:
    """The request target of a URL, percent-encoded where needed."""
    parts = urlsplit(url)
    query = f"?{parts.query}" if parts.query else ""
    return requote_uri((parts.path or "/") + query)


def _port(scheme: str, port: int | None) -> int:
    # Without this, http.client takes the last group of an IPv6 address for the port.
    return port or (443 if scheme == "https" else 80)


def _kept(headers: Mapping[str, str]) -> float | None:
    """Seconds that the peer says it keeps an idle connection."""
    said = _KEEP_ALIVE.search(headers.get("keep-alive", ""))
    return float(said[1]) if said else None


class _Adapter(BaseAdapter):
    """A requests adapter for one merchant: its connections, each used by one exchange at a time.

    It sends the request itself. requests' adapter and urllib3's pool together take a fifth of an
    exchange's CPU, for redirects, proxies, retries and timeouts that are not used here.
    """

    def __init__(
        self,
        scheme: str,
        netloc: str,
        connections: int,
        context: ssl.SSLContext,
        dial: connect.Dial,
    ) -> None:
        super().__init__()
        self._origin = (scheme, netloc, connections)
        origin = urlsplit(f"{scheme}://{netloc}")
        name, port = origin.hostname or "", _port(scheme, origin.port)
        self.host = host(name, port, scheme)
        kind = connect.HTTPSPool if scheme == "https" else connect.HTTPPool
        extra: dict[str, Any] = {"dial": dial}
        if scheme == "https":
            extra["ssl_context"] = context
        # The concurrency limit bounds a merchant's exchanges: none waits for a connection.
        self._pool: HTTPConnectionPool = kind(
            name,
            port,
            timeout=_NO_TIMEOUT,
            maxsize=connections,
            block=False,
            **extra,
        )

    def serves(self, scheme: str, netloc: str, connections: int) -> bool:
        return self._origin == (scheme, netloc, connections)

    @property
    def idle(self) -> int:
        """Idle connections."""
        kept = self._pool.pool
        return 0 if kept is None else kept.qsize()

    def send(  # type: ignore[override]
        self, request: PreparedRequest, *_: Any, timeout: float, expects: int, **__: Any
    ) -> Reply:
        """The reply, not read by requests: its Response would parse cookies and URLs."""
        connection: Any = self._pool._get_conn()
        connection.timeout = timeout
        response: StrictResponse | None = None
        try:
            method = request.method or ""
            body = request.body if isinstance(request.body, bytes) else b""
            said = head(method, _target(request.url or ""), request.headers)
            response = connection.ask(method, said + body)
            reply = _read(response, expects)
            if not response.is_followed:
                connection.rest(_kept(reply.headers))
            return reply
        except BaseException:  # also when a green thread is killed
            if response is not None:
                connect.discard_unsent(response.socket)
            raise
        finally:
            if connection.rests:
                self._pool._put_conn(connection)
            else:
                connection.close()  # unread bytes must reach no later exchange
                if response is not None:
                    response.close()

    def try_out(self) -> None:
        connection: Any = self._pool._new_conn()
        try:
            connection.try_out()
        finally:
            connection.close()

    def close(self) -> None:
        self._pool.close()
