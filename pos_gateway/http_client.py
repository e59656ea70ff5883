"""The order backend's API over HTTP, for backends without AMQP. Needs requests and pydantic.

    from pos_gateway.http_client import HttpOrderClient

    client = HttpOrderClient("https://orders.example.com", token)
    client.submit(order)        # a dict as in docs/order.schema.json, or an Order
    client.cancel("o1", "m1")
    for event in client.events(after=position):
        ...

The API is in ``docs/http.md`` for backends in other languages.
"""

import random
import threading
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self
from urllib.parse import quote

import requests
from pydantic_core import from_json, to_json

from pos_gateway.domain.errors import (
    BrokerUnavailable,
    FieldError,
    InvalidOrder,
    InvalidSettings,
    OrderDiffers,
    PosGatewayError,
    Unauthorized,
)
from pos_gateway.domain.order import Order
from pos_gateway.domain.record import WHOLE, identifier
from pos_gateway.settings import PREFIX, setting

__all__ = ["HttpOrderClient", "Submitted"]

#: Orders of one request.
BATCH = 1000
#: Seconds between two tries: up to the first, doubling up to the second, at random.
_PAUSE = (0.2, 5.0)
#: Statuses after which the same request may succeed. 502 and 504 are a proxy's.
_AGAIN = frozenset({429, 502, 503, 504})
#: Seconds to connect.
_CONNECT = 5.0


@dataclass(frozen=True, slots=True)
class Submitted:
    """One order's result in ``submit_many``."""

    order_id: str
    #: Its state, if it is taken, or has ended.
    state: str | None
    #: Why it is not; ``BrokerUnavailable`` means: submit it again.
    error: PosGatewayError | None = None


class HttpOrderClient:
    """Posts orders to ``pos-gateway serve``. Safe from threads, each of which has its connections.

    Every request is tried until ``timeout``: a second submission is harmless, so a lost reply is
    no reason to stop.

    Args:
        url: the server's. Default: ``POS_GATEWAY_HTTP_URL``.
        token: a token with the role ``backend``. Default: ``POS_GATEWAY_TOKEN``.
        timeout: seconds for a call, all tries included.
        verify: whether to check the server's certificate, or the PEM file of who signed it.

    Raises:
        InvalidSettings: neither is given, or one is invalid.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout: float = 10.0,
        verify: bool | str = True,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._url = _given("http_url", url).rstrip("/")
        self._authorization = f"Bearer {_given('token', token).get_secret_value()}"
        self._timeout = timeout
        self._verify = verify
        self._monotonic, self._sleep = monotonic, sleep
        self._local = threading.local()
        self._sessions: list[requests.Session] = []

    def submit(self, order: Order | Mapping[str, Any], *, again: bool = False) -> str:
        """Submit an order, and return its state; ``submitted`` if it is new.

        Args:
            order: the order.
            again: as ``OrderClient`` has it; the server knows by itself whether the order came
                before.

        Raises:
            InvalidOrder: it breaks the contract; ``.errors`` names the fields.
            OrderDiffers: its id is taken by an order with other content.
            BrokerUnavailable: not taken in time: it may or may not be stored. Submit it again.
            Unauthorized: the token is unknown, or may not submit.
        """
        parsed = Order.parse(order)
        reply = self._call("POST", "/v1/orders", parsed.source, "application/json")
        return str(reply["state"])

    def submit_many(self, orders: Iterable[Order | Mapping[str, Any]]) -> list[Submitted]:
        """Submit orders together; a result for each, in order. A refused one holds up no other.

        Raises: Unauthorized.
        """
        parsed = [_parsed(each) for each in orders]
        valid = [each for each in parsed if isinstance(each, Order)]
        results: list[Submitted] = []
        for begin in range(0, len(valid), BATCH):
            results += self._batch(valid[begin : begin + BATCH])
        answers = iter(results)
        return [each if isinstance(each, Submitted) else next(answers) for each in parsed]

    def cancel(
        self, order_id: str, merchant_id: str, *, deliver_by: datetime | None = None
    ) -> None:
        """Ask for an order to be cancelled; its outcome is an event. Repeating it is harmless.

        Raises:
            InvalidOrder: an id or ``deliver_by`` is invalid.
            BrokerUnavailable, Unauthorized: as ``submit``.
        """
        body = {} if deliver_by is None else {"deliver_by": deliver_by.isoformat()}
        path = _path(merchant_id, order_id) + "/cancel"
        self._call("POST", path, to_json(body), "application/json")

    def find(self, order_id: str, merchant_id: str) -> dict[str, Any] | None:
        """The order's state, attempts and events; None: it is not known. Raises as ``cancel``."""
        found: dict[str, Any] | None
        found = self._call("GET", _path(merchant_id, order_id), missing_is_none=True)
        return found

    def events(self, after: int = 0, *, wait: float = 30.0) -> Iterator[dict[str, Any]]:
        """Every event behind this position, in order, for ever.

        Keep an event's ``position`` in the transaction in which you deal with it, and go on from
        there. While the server is away it waits, and tries again.

        Raises: Unauthorized.
        """
        while True:
            query = f"/v1/events?after={after}&limit=1000&wait={wait:g}"
            try:
                page = self._call("GET", query, patience=wait)
            except BrokerUnavailable:
                self._sleep(_PAUSE[1] * random.random())
                continue
            yield from page["events"]
            after = page["next"]

    def close(self) -> None:
        """Close the connections. Idempotent."""
        while self._sessions:
            self._sessions.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> None:
        self.close()

    def _batch(self, orders: Sequence[Order]) -> list[Submitted]:
        lines = b"\n".join(_on_one_line(each.source) for each in orders)
        try:
            replies = self._call("POST", "/v1/orders/batch", lines, "application/x-ndjson")
        except BrokerUnavailable as error:
            return [Submitted(each.order_id, None, error) for each in orders]
        return [_result(*pair) for pair in zip(orders, replies, strict=True)]

    def _call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        content_type: str | None = None,
        *,
        patience: float = 0.0,
        missing_is_none: bool = False,
    ) -> Any:
        """The reply's content. Tries again until ``timeout``."""
        until = self._monotonic() + self._timeout + patience
        pause, longest = _PAUSE
        while True:
            left = until - self._monotonic()
            try:
                reply = self._send(method, path, body, content_type, max(0.1, left))
                wait, why = _wait_of(reply), f"the server replied {reply.status_code}"
            except requests.RequestException as error:
                reply, wait, why = None, 0.0, f"the server cannot be reached: {_named(error)}"
            if reply is not None and reply.status_code == 404 and missing_is_none:
                return None
            if reply is not None and reply.status_code not in _AGAIN:
                return _content(reply)
            wait = max(wait, pause * random.random())
            pause = min(longest, pause * 2)
            if self._monotonic() + wait >= until:
                raise BrokerUnavailable(f"{why}; submit the same again")
            self._sleep(wait)

    def _send(
        self, method: str, path: str, body: bytes | None, content_type: str | None, left: float
    ) -> requests.Response:
        headers = {"Authorization": self._authorization, "Accept": "application/json"}
        if content_type is not None:
            headers["Content-Type"] = content_type
        return self._session().request(
            method,
            self._url + path,
            data=body,
            headers=headers,
            timeout=(min(_CONNECT, left), left),
            verify=self._verify,
            # A redirect would turn a POST into a GET, or send the token elsewhere.
            allow_redirects=False,
        )

    def _session(self) -> requests.Session:
        session: requests.Session | None = getattr(self._local, "session", None)
        if session is None:
            session = self._local.session = requests.Session()
            self._sessions.append(session)
        return session


def _given(name: str, value: str | None) -> Any:
    found = setting(name, value)
    if found is None:
        problem = "is not set, and no value was given"
        raise InvalidSettings([FieldError(PREFIX + name.upper(), problem)])
    return found


def _path(merchant_id: str, order_id: str) -> str:
    """Raises InvalidOrder."""
    for name, value in (("merchant_id", merchant_id), ("order_id", order_id)):
        if identifier(value) is None:
            raise InvalidOrder([FieldError(name, "is no id", value)])
    return f"/v1/merchants/{quote(merchant_id, safe='')}/orders/{quote(order_id, safe='')}"


def _parsed(order: Order | Mapping[str, Any]) -> Order | Submitted:
    try:
        return Order.parse(order)
    except InvalidOrder as error:
        order_id = order.order_id if isinstance(order, Order) else str(order.get("order_id", ""))
        return Submitted(order_id, None, error)


def _on_one_line(order: bytes) -> bytes:
    # JSON has line breaks between its parts only.
    return order.replace(b"\r", b" ").replace(b"\n", b" ")


def _wait_of(reply: requests.Response) -> float:
    """Seconds that the server asks for."""
    asked = reply.headers.get("Retry-After", "")
    return float(asked) if asked.isascii() and asked.isdigit() and len(asked) < 6 else 0.0


def _named(error: requests.RequestException) -> str:
    """Without the URL, which may have a password in it."""
    return type(error).__name__


def _content(reply: requests.Response) -> Any:
    """What a request that needs no further try has come to. Raises its error."""
    try:
        content = from_json(reply.content)
    except ValueError:
        content = None
    if reply.ok and content is not None and reply.status_code < 300:
        return content
    if not isinstance(content, dict) or "code" not in content:
        raise PosGatewayError(
            f"the reply is not the gateway's: {reply.status_code}, "
            f"{reply.headers.get('Content-Type', 'no type')}; check the URL, and what is in between"
        )
    raise _error(content)


def _error(problem: Mapping[str, Any]) -> PosGatewayError:
    match problem["status"]:
        case 401 | 403:
            return Unauthorized(problem["detail"])
        case 409:
            return OrderDiffers(problem["detail"])
        case 413 | 422 | 400:
            named = problem.get("errors") or [{"field": WHOLE, "problem": problem["detail"]}]
            return InvalidOrder([FieldError(each["field"], each["problem"]) for each in named])
        case 429 | 503:
            return BrokerUnavailable(problem["detail"])
        case _:
            return PosGatewayError(problem["detail"])


def _result(order: Order, reply: Mapping[str, Any]) -> Submitted:
    if reply["status"] < 300:
        return Submitted(order.order_id, reply["state"])
    return Submitted(order.order_id, None, _error(reply))
