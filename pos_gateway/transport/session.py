"""A ``requests.Session`` over an adapter's ``send``: a vendor's SDK runs in the gateway unchanged.

Imported when an adapter first asks for a session: otherwise a worker loads no requests.
"""

import io
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, Self, cast

import requests
from requests.adapters import BaseAdapter, HTTPAdapter
from requests.structures import CaseInsensitiveDict
from requests.utils import get_encoding_from_headers
from urllib3 import HTTPResponse

from pos_gateway.transport.errors import Misconfigured, NoValidReply, TransportError
from pos_gateway.transport.messages import ACKNOWLEDGEMENT, Exchange, Reply, Request

#: Maximum bytes of a request's body: a generated body may have no end.
BODY = 16 * 1024 * 1024
#: Headers made by the transport.
_OURS = frozenset(
    {"accept-encoding", "connection", "content-length", "keep-alive", "transfer-encoding"}
)


class PosSession(requests.Session):
    """A session in which every request is an exchange of the transport's. For a single call on a POS.

    Deadline, guard, fence, credentials, redaction and traces are those of ``send``. A program's
    settings to bypass ``send`` have no effect: mounted adapters and their retries, time limits,
    proxies, ``verify`` and ``cert``. Redirects are not followed, and cookies not kept.

    An exchange without a reply raises a TransportError that is an exception of requests, too.
    As a context manager the session raises ``failure`` at the end, even if the block caught the
    failure, or raised a different exception.
    """

    def __init__(self, send: Exchange, expects: int = ACKNOWLEDGEMENT) -> None:
        self._through = _Through(self, send)
        super().__init__()
        self.trust_env = False
        self.headers = CaseInsensitiveDict()
        #: The failure of the last request; None: a reply came.
        self.failure: TransportError | None = None
        #: Maximum bytes of a reply's body (``Request.expects``).
        self.expects = expects
        #: Whether the requests are searches: no change at the POS, whatever the method.
        self.is_search = False

    def get_adapter(self, url: str | bytes) -> BaseAdapter:
        """The transport, for every URL."""
        return self._through

    def mount(self, prefix: str | bytes, adapter: BaseAdapter) -> None:
        """Mount nothing: a retry of an adapter's would create an order twice."""

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        """None: no redirect is followed."""
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
        error = raised[1]
        passes = isinstance(error, TransportError) or not isinstance(error, Exception | None)
        if self.failure is not None and not passes:
            raise self.failure


def reply_of(response: requests.Response) -> Reply:
    """The reply behind a response, for adapters' readers of replies."""
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Reply(response.status_code, headers, response.content)


class _Through(BaseAdapter):
    """The adapter of requests that passes prepared requests to ``send``."""

    def __init__(self, session: PosSession, send: Exchange) -> None:
        super().__init__()
        self._session, self._send = session, send
        #: The failure of a change possibly received: no further change may follow.
        self._in_doubt: TransportError | None = None

    def send(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> requests.Response:
        session = self._session
        try:
            made = Request(
                request.method or "GET",
                request.url or "",
                _body(request.body),
                _headers(request.headers),
                session.expects,
                session.is_search,
            )
            if made.changes and self._in_doubt is not None:
                raise self._in_doubt
            reply = self._send(made)
        except TransportError as error:
            failure = _as_requests(error, request)
            if isinstance(error, NoValidReply) and made.changes:
                self._in_doubt = error
            session.failure = failure
            raise failure from None
        session.failure = None
        return _response(reply, request, self)

    def close(self) -> None:
        """The transport keeps its connections."""


def _body(body: Any) -> bytes | None:
    """The bytes of a body prepared by requests: text, bytes, a file, or pieces."""
    if body is None or isinstance(body, bytes):
        return body
    if isinstance(body, str):
        return body.encode()
    pieces: Iterable[Any] = [body.read(BODY + 1)] if hasattr(body, "read") else body
    whole = bytearray()
    for piece in pieces:
        whole += piece.encode() if isinstance(piece, str) else piece
        if len(whole) > BODY:
            raise Misconfigured("body", f"the request's body is longer than {BODY} bytes")
    return bytes(whole)


def _headers(headers: Mapping[Any, Any]) -> dict[str, str]:
    texts = {_text(name): _text(value) for name, value in headers.items()}
    return {name: value for name, value in texts.items() if name.lower() not in _OURS}


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _response(
    reply: Reply, request: requests.PreparedRequest, through: _Through
) -> requests.Response:
    response = requests.Response()
    response.status_code = reply.status
    response.reason = _reason(reply.status)
    response.headers = CaseInsensitiveDict(reply.headers)
    response.encoding = get_encoding_from_headers(response.headers)
    response.url, response.request = request.url or "", request
    response.connection = cast(HTTPAdapter, through)  # for authentication that signs a second time
    response.raw = HTTPResponse(
        io.BytesIO(reply.body),
        dict(reply.headers),
        reply.status,
        reason=response.reason,
        preload_content=False,
        decode_content=False,
        enforce_content_length=False,  # the transport has read the whole body
        request_method=request.method,
    )
    return response


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def _as_requests(error: TransportError, request: requests.PreparedRequest) -> TransportError:
    """The same failure as a class that is an exception of requests, too."""
    like: type[requests.RequestException] = requests.ConnectionError
    if error.code in ("timeout", "cut_short"):
        like = requests.ReadTimeout if isinstance(error, NoValidReply) else requests.ConnectTimeout
    elif isinstance(error, Misconfigured) and error.code in ("certificate", "tls"):
        like = requests.exceptions.SSLError
    both = (type(error), like)
    kind = _BOTH.get(both)
    if kind is None:
        kind = _BOTH[both] = type(both[0].__name__, both, {"__module__": both[0].__module__})
    made: Any = kind(error.code, error)
    made.request = request
    failure: TransportError = made
    return failure


#: Classes with two bases, a TransportError's and requests', for an ``except`` of either.
_BOTH: dict[tuple[type, ...], type[Any]] = {}
