"""requests sessions whose exchanges end at a deadline, whatever the peer does.

requests' own time limits count for each receive, and for each address of a name: a peer dripping
bytes is read for ever. Here every operation of a socket has the rest of the total time.

Needs requests alone, works with threads and gevent, and starts no thread. TLS runs above the
socket, in memory: a TLS socket of Python's would receive by itself. Proxies over TLS or SOCKS keep
requests' limits: their connections are made elsewhere.
"""

import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError
from urllib3.util.ssl_ import create_urllib3_context
from urllib3.util.ssltransport import SSLTransport

#: Maximum bytes of a read from a reply.
_CHUNK = 16 * 1024

_until: ContextVar[float] = ContextVar("until")


class ReplyTooLarge(OSError):
    """The reply has more bytes than allowed."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Exchanges of the block raise TimeoutError, or requests' equivalent, after ``seconds``.

    Names are resolved by the system, without a limit.
    """
    token = _until.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _until.reset(token)


def new_session(url: str, *, verify: bool = True) -> requests.Session:
    """A session for a server. Exchanges need a ``deadline``. For a single exchange at a time.

    The environment's proxies are used for https alone, where a proxy sees host and port: a proxy for
    plain http would see the request and the token.
    """
    session = requests.Session()
    session.trust_env = urlsplit(url).scheme == "https"
    session.mount("https://", _Adapter(verify=verify))
    session.mount("http://", _Adapter(verify=verify))
    return session


def send(
    session: requests.Session,
    request: requests.Request,
    timeout: tuple[float, float],
    verify: bool | str | None = None,
) -> requests.Response:
    """The reply, to be closed; ``content_of`` reads the body. Raises requests' and urllib3's errors.

    Not by ``Session.send``, which keeps cookies, and reads a redirect's body and target. No redirect
    is followed: a POST would turn into a GET without the order, and a 200 would look like acceptance.

    Args:
        timeout: maximum seconds to connect, and for each receive of sessions made elsewhere.
        verify: None: by the session and the environment; the default is to verify.
    """
    prepared = session.prepare_request(request)
    url = str(prepared.url)
    settings: Any = session.merge_environment_settings(url, {}, True, verify, None)
    return session.get_adapter(url).send(prepared, timeout=timeout, **settings)


def content_of(reply: requests.Response, most: int) -> bytes:
    """The body of a streamed reply, ``most`` bytes at most.

    Raises:
        ReplyTooLarge: the decoded body is longer.
        TimeoutError, requests.RequestException: the body was incomplete at the ``deadline``.
    """
    content = bytearray()
    for chunk in reply.iter_content(_CHUNK):
        content += chunk
        if len(content) > most:
            raise ReplyTooLarge
        _left()
    return bytes(content)


def _left() -> float:
    """The seconds until the deadline."""
    left = _until.get() - time.monotonic()
    if left <= 0:
        raise TimeoutError("the deadline has passed")
    return left


class _Socket(socket.socket):
    """A socket with operations that end at the deadline."""

    def recv(self, *arguments: Any) -> bytes:
        self.settimeout(_left())
        return super().recv(*arguments)

    def recv_into(self, *arguments: Any) -> int:
        self.settimeout(_left())
        return super().recv_into(*arguments)

    def sendall(self, *arguments: Any) -> None:
        self.settimeout(_left())
        super().sendall(*arguments)


class _Timed:
    """The additions of both kinds of connection to urllib3's."""

    timeout: Any
    port: int
    _dns_host: str

    def connect(self) -> None:
        """Connect within ``timeout``: TCP, a proxy's tunnel and TLS together."""
        token = _until.set(min(_until.get(), time.monotonic() + self.timeout))
        try:
            super().connect()  # type: ignore[misc]
        finally:
            _until.reset(token)

    def _new_conn(self) -> socket.socket:
        """A connection to the first address to accept; each address has an equal part of the time.

        A dead address leaves time for a live address.
        """
        this: Any = self
        problem: Exception | None = None
        try:
            found = socket.getaddrinfo(self._dns_host, self.port, type=socket.SOCK_STREAM)
            for position, (family, _, _, _, address) in enumerate(found):
                try:
                    return _connected(family, address, _left() / (len(found) - position))
                except OSError as error:
                    problem = error
        except (OSError, UnicodeError) as error:  # UnicodeError: no host can have the name
            problem = problem or error
        if isinstance(problem, TimeoutError):
            raise ConnectTimeoutError(this, "no address accepts the connection") from problem
        raise NewConnectionError(this, str(problem)) from problem


def _connected(family: int, address: Any, seconds: float) -> _Socket:
    made = _Socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.settimeout(seconds)
        made.connect(address)
    except BaseException:
        made.close()
        raise
    return made


class _PlainConnection(_Timed, HTTPConnection):
    """Plain HTTP."""


class _TLSConnection(_Timed, HTTPSConnection):
    """HTTP over TLS."""


class _PlainPool(HTTPConnectionPool):
    ConnectionCls = _PlainConnection


class _TLSPool(HTTPSConnectionPool):
    ConnectionCls = _TLSConnection


_POOLS = {"http": _PlainPool, "https": _TLSPool}


class _Adapter(HTTPAdapter):
    """Connects with the connections above."""

    def __init__(self, *, verify: bool) -> None:
        self._tls = create_urllib3_context(cert_reqs=None if verify else ssl.CERT_NONE)
        self._tls.wrap_socket = partial(_in_memory, self._tls)  # type: ignore[method-assign]
        super().__init__()

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, ssl_context=self._tls, **options)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
        if proxy.lower().startswith("socks"):  # a different library
            return super().proxy_manager_for(proxy, **options)
        manager = super().proxy_manager_for(proxy, ssl_context=self._tls, **options)
        manager.pool_classes_by_scheme = _POOLS
        return manager


def _in_memory(tls: ssl.SSLContext, sock: Any, server_hostname: str | None = None) -> Any:
    return SSLTransport(sock, tls, server_hostname)
