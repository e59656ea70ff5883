"""The order backend's API over HTTP, for backends without AMQP. Needs requests and pydantic.

    from pos_gateway.http_client import HttpOrderClient

    client = HttpOrderClient("https://orders.example.com", token)
    client.submit(order)        # a dict as in docs/order.schema.json, or an Order
    client.cancel("o1", "m1")
    for event in client.events(after=position):
        ...

The API is in ``docs/http.md`` for backends in other languages.
"""

import json
import logging
import os
import random
import ssl
import time
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from socket import gaierror
from typing import Any, NamedTuple, Self
from urllib.parse import quote, urlsplit

import requests
from pydantic import SecretStr
from pydantic_core import to_json
from urllib3.exceptions import DecodeError, HTTPError, InvalidHeader

from pos_gateway import __version__
from pos_gateway.domain.errors import (
    ABSENT,
    BrokerUnavailable,
    FieldError,
    InvalidOrder,
    InvalidSettings,
    OrderDiffers,
    PosGatewayError,
    Unauthorized,
)
from pos_gateway.domain.http_limits import BATCH, BATCH_BYTES, LONGEST_WAIT, PAGE, REPLY_BYTES
from pos_gateway.domain.order import Order
from pos_gateway.domain.record import WHOLE, identifier
from pos_gateway.domain.submit_result import SubmitResult, parsed_or_refused
from pos_gateway.domain.trace_context import TraceContext
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock
from pos_gateway.runtime.urls import mask_url
from pos_gateway.settings import PREFIX, setting
from pos_gateway.telemetry.program_span import program_span
from pos_gateway.transport.urllib3_internals import (
    ReplyTooLarge,
    content_of,
    deadline,
    new_session,
    send,
)

__all__ = ["HttpOrderClient", "SubmitResult"]

logger = logging.getLogger(__name__)

#: Seconds between two tries: up to the first, doubling up to the second, at random.
_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
#: Statuses after which the same request may succeed. 502 and 504 are a proxy's.
_AGAIN = frozenset({408, 429, 500, 502, 503, 504})
#: Most seconds to connect; a third of ``timeout``, or of what is left of it, if that is less.
_CONNECT = 5.0
#: Maximum characters of a header that an error quotes.
_QUOTED = 200
#: Visible ASCII: anything else would not go into a header, or end it.
_VISIBLE = range(0x21, 0x7F)


class HttpOrderClient:
    """Posts orders to ``pos-gateway serve``. Safe from threads, green threads and forks.

    A call that fails is tried again until ``timeout``: a second submission is harmless, so a lost
    reply is no reason to stop. Names are resolved by the system, in its own time.

    Calls take their ``requests.Session`` from a pool, so there are as many connections as calls at
    once. One session for all threads is not promised to be safe by requests, and one a thread
    would leave a connection behind with each thread that ends.

    Args:
        url: the server's. Default: ``POS_GATEWAY_HTTP_URL``.
        token: a token with the role ``backend``. Default: ``POS_GATEWAY_TOKEN``.
        timeout: seconds for a call, all tries included.
        verify: whether to check the server's certificate, or the PEM file of its authority.
        clock, sleep: time, for tests.
        session: the program's own, with its proxies, adapters or client certificate. Every thread
            uses it, ``close`` leaves it open, and a fork needs another one. Its adapters count
            ``timeout`` in their way: requests' for each receive, and each address of the host.

    Raises:
        InvalidSettings: neither is given, or one is invalid.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout: float = 10.0,
        verify: bool | str | Path = True,
        clock: Clock = SYSTEM_CLOCK,
        sleep: Callable[[float], None] = time.sleep,
        session: requests.Session | None = None,
    ) -> None:
        self._url = _server(url)
        self._bearer = _Bearer(_token(token))
        self._timeout = timeout
        self._verify = _verification(verify)
        self._clock, self._sleep = clock, sleep
        verifies = self._verify is not False
        self._sessions = _Sessions(session, lambda: new_session(self._url, verify=verifies))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._url!r})"

    def submit(self, order: Order | Mapping[str, Any], *, again: bool = False) -> str:
        """Submit an order, and return its state; ``submitted`` until a worker has it.

        Submitting an order again (after an error, say) is harmless: the POS gets it once.

        Args:
            order: the order.
            again: as ``OrderClient`` has it. It changes nothing here: the server knows which
                orders came before, and takes one of these after its ``deliver_by``, too.

        Raises:
            InvalidOrder: it breaks the contract; ``.errors`` names the fields.
            OrderDiffers: its id is taken by an order with other content.
            BrokerUnavailable: not taken in time: it may or may not be stored. Submit it again.
            Unauthorized: the token is unknown, or may not submit.
            PosGatewayError: the URL leads to something else than the gateway.
        """
        parsed = Order.parse(order)
        until = self._until()
        with program_span("submit", parsed.order_id, parsed.merchant_id) as trace:
            reply = self._request("POST", "/v1/orders", until, parsed.source, _JSON, trace)
        is_right = partial(_is_order, parsed.order_id, parsed.merchant_id)
        return str(self._content(reply, _TAKEN, is_right)["state"])

    def submit_many(
        self, orders: Iterable[Order | Mapping[str, Any]], *, again: bool = False
    ) -> list[SubmitResult]:
        """Submit orders together; a result for each, in order. A refused one holds up no other.

        They go in batches, each of which has ``timeout`` for itself. Those that the broker did not
        confirm are tried again meanwhile.

        Args:
            orders: the orders.
            again: as ``submit`` has it.

        Raises:
            Unauthorized, PosGatewayError: as ``submit``. Earlier batches are taken by then:
                submitting all again is harmless.
        """
        parsed = [parsed_or_refused(each) for each in orders]
        results: list[SubmitResult] = []
        for batch in _batches([each for each in parsed if isinstance(each, Order)]):
            results += self._submit_batch(batch)
        answers = iter(results)
        return [each if isinstance(each, SubmitResult) else next(answers) for each in parsed]

    def cancel(
        self, order_id: str, merchant_id: str, *, deliver_by: datetime | None = None
    ) -> None:
        """Ask for an order to be cancelled; its outcome is an event. Repeating it is harmless.

        Args:
            order_id, merchant_id: which order.
            deliver_by: until when to try, with its offset; default: a quarter of an hour from now.

        Raises:
            InvalidOrder: an id or ``deliver_by`` is invalid.
            BrokerUnavailable, Unauthorized, PosGatewayError: as ``submit``.
        """
        body = {} if deliver_by is None else {"deliver_by": deliver_by.isoformat()}
        path = _path(merchant_id, order_id) + "/cancel"
        until = self._until()
        with program_span("cancel", order_id, merchant_id) as trace:
            reply = self._request("POST", path, until, to_json(body), _JSON, trace)
        self._content(reply, {202}, partial(_is_about, order_id, merchant_id))

    def find(self, order_id: str, merchant_id: str) -> dict[str, Any] | None:
        """The order's state, attempts and events; None: it is not known. Raises as ``cancel``."""
        reply = self._request("GET", _path(merchant_id, order_id), self._until())
        if reply.status == 404 and _code(reply) == "unknown_order":
            return None
        is_right = partial(_is_order, order_id, merchant_id)
        found: dict[str, Any] = self._content(reply, {200}, is_right)
        return found

    def events(self, after: int = 0, *, wait: float = 30.0) -> Iterator[dict[str, Any]]:
        """Every event after this position, in order, for ever.

        Keep an event's ``position`` in the transaction in which you act on it, and go on from
        there. While the server is away it waits, and tries again. ``close`` ends it, after its
        present request.

        Args:
            after: the last position that you have; 0: none.
            wait: seconds that a request waits for an event, 60 at most.

        Raises:
            Unauthorized: the token is unknown, or may not read.
            PosGatewayError: as ``submit``, or ``after`` is no position.
        """
        wait = min(wait, LONGEST_WAIT)
        limit, is_away = PAGE, False
        while not self._sessions.is_closed:
            path = f"/v1/events?after={after}&limit={limit}&wait={wait:g}"
            try:
                reply = self._request("GET", path, self._until(), wait=wait)
                page = self._content(reply, {200}, partial(_is_page, after))
            except BrokerUnavailable as error:
                if not is_away:
                    logger.warning("no events after position %d: %s", after, error)
                # It may have been too much at once for this connection.
                limit, is_away = max(1, limit // 4), True
                self._sleep(random.random() * _LONGEST_PAUSE)
                continue
            if is_away:
                logger.info("events after position %d come again", after)
            limit, is_away = min(PAGE, limit * 2), False
            yield from page["events"]
            after = page["next"]

    def close(self) -> None:
        """Close the connections, and end ``events``. Idempotent."""
        self._sessions.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> None:
        self.close()

    def _submit_batch(self, orders: Sequence[Order]) -> list[SubmitResult]:
        """A result for each. Those without a confirm are posted again until ``timeout``."""
        until, pauses = self._until(), _pauses()
        results: dict[int, SubmitResult] = {}
        left = list(range(len(orders)))
        while True:
            try:
                replies = self._post_batch([orders[number] for number in left], until)
            except BrokerUnavailable as error:
                replies = [SubmitResult(orders[number].order_id, None, error) for number in left]
            results |= zip(left, replies, strict=True)
            left = [n for n in left if isinstance(results[n].error, BrokerUnavailable)]
            pause = next(pauses)
            if not left or self._clock.monotonic() + pause >= until:
                return [results[number] for number in range(len(orders))]
            self._sleep(pause)

    def _post_batch(self, orders: Sequence[Order], until: float) -> list[SubmitResult]:
        lines = b"\n".join(_on_one_line(each.source) for each in orders)
        with program_span("submit") as trace:
            reply = self._request("POST", "/v1/orders/batch", until, lines, _NDJSON, trace)
        if reply.status == 413 and len(orders) > 1:  # a proxy may take less than the server
            half = len(orders) // 2
            return self._post_batch(orders[:half], until) + self._post_batch(orders[half:], until)
        try:
            content = self._content(reply, {207}, partial(_is_batch, orders))
        except InvalidOrder as error:  # the one order is larger than a batch may be
            return [SubmitResult(each.order_id, None, error) for each in orders]
        return [_result(*each) for each in zip(orders, content, strict=True)]

    def _until(self) -> float:
        """The deadline of a call that begins now."""
        return self._clock.monotonic() + self._timeout

    def _request(
        self,
        method: str,
        path: str,
        until: float,
        body: bytes | None = None,
        content_type: str | None = None,
        trace: TraceContext | None = None,
        *,
        wait: float = 0.0,
    ) -> "_Reply":
        """The first reply that says more than to try again.

        Args:
            until: when tries end.
            wait: seconds for which the server may wait with its reply, beside that.

        Raises:
            BrokerUnavailable: there was none in time.
            PosGatewayError: there can be none.
        """
        headers = {**_HEADERS, **(trace.headers if trace else {})}
        if content_type is not None:
            headers["Content-Type"] = content_type
        for tries, pause in enumerate(_pauses(), 1):
            reply = self._try(method, path, until + wait, body, headers)
            if isinstance(reply, _Reply) and reply.status not in _AGAIN:
                return reply
            if isinstance(reply, _NoReply) and not reply.may_come:
                raise PosGatewayError(f"{self._named()}: {reply.why}")
            # Clients that were given the same time do not come at once.
            asked = self._asked_for(reply) if isinstance(reply, _Reply) else 0.0
            if self._clock.monotonic() + pause + asked >= until:
                tried = f"(try {tries} within {self._timeout:g} s)"
                raise BrokerUnavailable(f"{self._named()}: {_failure(reply)} {tried}")
            self._sleep(pause + asked)
        raise AssertionError("pauses have no end")

    def _try(
        self, method: str, path: str, until: float, body: bytes | None, headers: Mapping[str, str]
    ) -> "_Reply | _NoReply":
        """One request. Its errors are values: chained, they would show the request's headers."""
        left = until - self._clock.monotonic()
        if left <= 0:
            return _NoReply("its time is up")
        connect = min(_CONNECT, self._timeout / 3, left / 3)
        request = requests.Request(
            method, self._url + path, headers=dict(headers), data=body, auth=self._bearer
        )
        try:
            with (
                self._sessions.one() as session,
                deadline(left),
                send(session, request, (connect, left - connect), self._verify) as reply,
            ):
                content = content_of(reply, REPLY_BYTES)
                return _Reply(reply.status_code, reply.headers, content)
        except (OSError, HTTPError) as error:  # requests' are OSErrors; some of urllib3's pass it
            return _no_reply(error)

    def _asked_for(self, reply: "_Reply") -> float:
        """Seconds that the server, or a proxy, asks to wait."""
        asked = reply.headers.get("Retry-After", "").strip()
        if asked.isascii() and asked.isdigit():
            return float(asked[:9])
        try:
            at = parsedate_to_datetime(asked)
            # By the same clock as the other, if the reply has its date.
            now = reply.headers.get("Date")
            since = parsedate_to_datetime(now) if now else self._clock.now()
            return max(0.0, (at - since).total_seconds())
        except (ValueError, TypeError, OverflowError):  # TypeError: one of them has no zone
            return 0.0

    def _content(
        self, reply: "_Reply", statuses: Collection[int], is_right: Callable[[Any], bool]
    ) -> Any:
        """What a reply says, if it is the gateway's to this request. Raises its error."""
        content = reply.content_as_json()
        if reply.status in statuses and is_right(content):
            return content
        if reply.status >= 400 and _is_problem(content):
            raise _error(reply.status, content)
        why = _not_the_gateway(f"replied {reply.status}{_described(reply)}")
        raise PosGatewayError(f"{self._named()}: {why}")

    def _named(self) -> str:
        return f"the server at {mask_url(self._url)}"


class _Bearer:
    """Sets the header as the last thing, so that no error or local variable has the token.

    With an ``auth``, requests takes none from ``~/.netrc``, which would replace the header.
    """

    def __init__(self, token: SecretStr) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token.get_secret_value()}"
        return request


class _Sessions:
    """The sessions that no call uses at present. Safe from threads: a list's methods are."""

    def __init__(
        self, given: requests.Session | None, make: Callable[[], requests.Session]
    ) -> None:
        self._given = given
        self._make = make
        self._idle: list[requests.Session] = []
        self._process = os.getpid()
        self.is_closed = False

    @contextmanager
    def one(self) -> Iterator[requests.Session]:
        """A session for one call."""
        if self._given is not None:
            yield self._given
            return
        session = self._take()
        try:
            yield session
        finally:
            self._idle.append(session)
            if self.is_closed:
                self.close()

    def _take(self) -> requests.Session:
        if self._process != os.getpid():  # the connections are the parent's, too
            self._idle, self._process = [], os.getpid()
        try:
            return self._idle.pop()
        except IndexError:
            return self._make()

    def close(self) -> None:
        """Close them, and each other one when its call ends."""
        self.is_closed = True
        try:
            while True:
                self._idle.pop().close()
        except IndexError:
            return


class _Reply(NamedTuple):
    status: int
    headers: Mapping[str, str]
    content: bytes

    def content_as_json(self) -> Any:
        """None: it is no JSON.

        pydantic's parser is not for it: it ends at 200 levels, which an order may have, and a page
        of events has three more. Python's ends at the recursion limit.
        """
        try:
            return json.loads(self.content)
        except (ValueError, RecursionError):
            return None


class _NoReply(NamedTuple):
    why: str
    #: Whether another try may have one.
    may_come: bool = True


_JSON, _NDJSON = "application/json", "application/x-ndjson"
_HEADERS = {
    "Accept": _JSON,
    "Accept-Encoding": "identity",
    "User-Agent": f"pos-gateway/{__version__}",
}
#: Statuses of an order that is taken, or has ended.
_TAKEN = (200, 202)


def _server(given: str | None) -> str:
    url: str = _given("http_url", given).rstrip("/")
    parts = urlsplit(url)
    problem = None
    if not parts.hostname:
        problem = "has no host; it is like https://orders.example.com"
    elif parts.query or parts.fragment:
        problem = "has a query or a fragment; leave out what comes from ? or # on"
    elif parts.username is not None:
        problem = f"has a user name; leave it out: the server takes a token ({PREFIX}TOKEN) only"
    if problem:
        raise InvalidSettings([FieldError(PREFIX + "HTTP_URL", problem, mask_url(url))])
    return url


def _token(given: str | None) -> SecretStr:
    text: str = _given("token", given).get_secret_value().strip()
    if not text or any(ord(each) not in _VISIBLE for each in text):
        problem = "is no token: it is empty, or has blanks in it; pos-gateway tokens create has one"
        raise InvalidSettings([FieldError(PREFIX + "TOKEN", problem)])
    return SecretStr(text)


def _given(name: str, value: str | None) -> Any:
    found = setting(name, value)
    if found is None:
        problem = "is not set, and no value was given"
        raise InvalidSettings([FieldError(PREFIX + name.upper(), problem)])
    return found


def _verification(verify: bool | str | Path) -> bool | str | None:
    if isinstance(verify, bool):
        # None: as the session and the environment have it, and they check it by default.
        return None if verify else False
    if not Path(verify).exists():
        problem = "there is no such file; give the PEM file of the certificate's authority"
        raise InvalidSettings([FieldError("verify", problem, str(verify))])
    return str(verify)


def _path(merchant_id: str, order_id: str) -> str:
    """Raises InvalidOrder."""
    for name, value in (("merchant_id", merchant_id), ("order_id", order_id)):
        if identifier(value) is None:
            problem = "is no id: 1 to 128 visible ASCII characters, and no . or .. between slashes"
            raise InvalidOrder([FieldError(name, problem, value)])
    return f"/v1/merchants/{quote(merchant_id, safe='')}/orders/{quote(order_id, safe='')}"


def _batches(orders: Iterable[Order]) -> Iterator[list[Order]]:
    """As many at once as the server takes."""
    batch: list[Order] = []
    size = 0
    for order in orders:
        length = len(order.source) + 1
        if batch and (len(batch) == BATCH or size + length > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(order)
        size += length
    if batch:
        yield batch


def _pauses() -> Iterator[float]:
    """Exponential backoff with full jitter."""
    longest = _PAUSE
    while True:
        yield longest * random.random()
        longest = min(_LONGEST_PAUSE, longest * 2)


def _on_one_line(order: bytes) -> bytes:
    # JSON has line breaks between its parts only.
    return order.replace(b"\r", b" ").replace(b"\n", b" ")


def _is_about(order_id: str, merchant_id: str, content: Any) -> bool:
    return (
        isinstance(content, dict)
        and content.get("order_id") == order_id
        and content.get("merchant_id") == merchant_id
    )


def _is_order(order_id: str, merchant_id: str, content: Any) -> bool:
    return _is_about(order_id, merchant_id, content) and isinstance(content.get("state"), str)


def _is_batch(orders: Sequence[Order], content: Any) -> bool:
    """Whether it has a result for each of the orders, in their order."""
    return (
        isinstance(content, list)
        and len(content) == len(orders)
        and all(map(_is_result, orders, content))
    )


def _is_result(order: Order, content: Any) -> bool:
    is_order = _is_order(order.order_id, order.merchant_id, content)
    return _is_problem(content) or (is_order and content.get("status") in _TAKEN)


def _is_page(after: int, content: Any) -> bool:
    """Whether its events follow this position, and ``next`` is that of the last."""
    if not isinstance(content, dict) or not isinstance(content.get("events"), list):
        return False
    last = after
    for event in content["events"]:
        position = event.get("position") if isinstance(event, dict) else None
        if type(position) is not int or position <= last:
            return False
        last = position
    return type(content.get("next")) is int and content["next"] == last


def _is_problem(content: Any) -> bool:
    """Whether it is a problem detail of the gateway's."""
    return (
        isinstance(content, dict)
        and isinstance(content.get("code"), str)
        and type(content.get("status")) is int
        and content["status"] >= 400
        and isinstance(content.get("detail"), str)
        and isinstance(errors := content.get("errors", []), list)
        and all(map(_is_field_error, errors))
    )


def _is_field_error(content: Any) -> bool:
    return (
        isinstance(content, dict)
        and isinstance(content.get("field"), str)
        and isinstance(content.get("problem"), str)
    )


def _code(reply: _Reply) -> str | None:
    content = reply.content_as_json()
    return content["code"] if _is_problem(content) else None


def _failure(reply: _Reply | _NoReply) -> str:
    """What a request failed of, and the remedy, which the gateway names itself."""
    if isinstance(reply, _Reply) and _is_problem(content := reply.content_as_json()):
        return f"it replied {reply.status}: {content['detail']}"
    if isinstance(reply, _NoReply):
        why = reply.why
    else:
        why = f"it replied {reply.status}{_described(reply)}"
    return f"{why}; send the same again: that is harmless"


def _described(reply: _Reply) -> str:
    if "Location" not in reply.headers:
        return f" ({reply.headers.get('Content-Type', 'without a type')[:_QUOTED]})"
    try:
        to = urlsplit(reply.headers["Location"])
        shown = to._replace(netloc=to.hostname or "", query="", fragment="")
        target = shown.geturl()[:_QUOTED]
    except ValueError:
        target = "what is no URL"
    return f" (a redirect to {target}, which is not followed)"


def _error(status: int, problem: Mapping[str, Any]) -> PosGatewayError:
    detail = problem["detail"]
    match status:
        case 401 | 403:
            return Unauthorized(f"{PREFIX}TOKEN: {detail}")
        case 409:
            return OrderDiffers(detail)
        case 413:
            return InvalidOrder([FieldError(WHOLE, detail)])
        case 422 if problem["code"] != "invalid_request":
            named = problem.get("errors") or [{"field": WHOLE, "problem": detail}]
            return InvalidOrder(
                [FieldError(e["field"], e["problem"], e.get("value", ABSENT)) for e in named]
            )
        case _ if status in _AGAIN:
            return BrokerUnavailable(detail)
        case _:
            return PosGatewayError(detail)


def _result(order: Order, reply: Mapping[str, Any]) -> SubmitResult:
    if _is_problem(reply):
        return SubmitResult(order.order_id, None, _error(reply["status"], reply))
    return SubmitResult(order.order_id, reply["state"])


def _not_the_gateway(did: str) -> str:
    remedy = f"check the URL ({PREFIX}HTTP_URL), and what is in between"
    return f"it is not the gateway that {did}; {remedy}"


def _no_reply(error: OSError | HTTPError) -> _NoReply:
    """Why there is none. Not requests' own words, which quote the URL."""
    causes = list(_causes(error))
    for each in causes:
        match each:
            case ssl.SSLCertVerificationError(verify_message=message):
                why = f"its certificate is not trusted ({message}); give its authority's PEM file"
                return _NoReply(f"{why} as verify", may_come=False)
            case ReplyTooLarge():
                why = _not_the_gateway(f"replied more than {REPLY_BYTES} bytes")
                return _NoReply(why, may_come=False)
            case DecodeError() | InvalidHeader():
                return _NoReply(_not_the_gateway("replied what is no HTTP"), may_come=False)
    if isinstance(error, ValueError):  # an invalid URL, header or proxy
        return _NoReply(f"it cannot be asked ({type(error).__name__})", may_come=False)
    return _NoReply(next(filter(None, map(_reason, causes)), type(error).__name__))


def _reason(error: BaseException) -> str | None:
    """Why there is no reply, if this one of its causes has it."""
    match error:
        case requests.ConnectTimeout():
            return "it does not accept the connection in time"
        case requests.Timeout() | TimeoutError():
            return "it does not reply in time"
        case gaierror() | UnicodeError():
            return "its host is unknown"
        case OSError(strerror=str(words)) if not isinstance(error, requests.RequestException):
            return f"it cannot be reached: {words.lower()}"
        case ConnectionError():
            return "it closed the connection without a reply"
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and those it was made from, which libraries put into arguments, too."""
    seen: set[int] = set()
    todo: list[Any] = [error]
    while todo:
        each = todo.pop()
        if isinstance(each, BaseException) and id(each) not in seen:
            seen.add(id(each))
            yield each
            todo += [*each.args, each.__cause__, each.__context__]
            todo.append(getattr(each, "reason", None))
