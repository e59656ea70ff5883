"""``HttpOrderClient``: its calls, and when each is tried again."""

import logging
import random
import time
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import requests
from pydantic_core import to_json
from urllib3.exceptions import HTTPError

from pos_gateway import __version__
from pos_gateway.domain.errors import (
    BrokerUnavailable,
    FieldError,
    InvalidOrder,
    PosGatewayError,
)
from pos_gateway.domain.http_limits import BATCH, BATCH_BYTES, LONGEST_WAIT, PAGE, REPLY_BYTES
from pos_gateway.domain.order import Order
from pos_gateway.domain.record import identifier
from pos_gateway.domain.submit_result import SubmitResult, parsed_or_refused
from pos_gateway.domain.trace_context import TraceContext
from pos_gateway.http_client.replies import (
    RETRIED,
    TAKEN,
    NoReply,
    ServerReply,
    code_of,
    described,
    error_of,
    failure,
    is_about,
    is_batch,
    is_order,
    is_page,
    is_problem,
    no_reply,
    not_the_gateway,
    result_of,
)
from pos_gateway.http_client.sessions import (
    BearerAuth,
    SessionPool,
    server_url,
    token_of,
    verification,
)
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock
from pos_gateway.runtime.urls import mask_url
from pos_gateway.telemetry.program_span import program_span
from pos_gateway.transport.urllib3_internals import content_of, deadline, new_session, send

logger = logging.getLogger(__name__)

#: Seconds between two tries: up to the first, doubling up to the second, at random.
_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
#: Maximum seconds to connect; a third of ``timeout``, or of what is left of it, if that is less.
_CONNECT = 5.0

_JSON, _NDJSON = "application/json", "application/x-ndjson"
_HEADERS = {
    "Accept": _JSON,
    "Accept-Encoding": "identity",
    "User-Agent": f"pos-gateway/{__version__}",
}


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
        self._url = server_url(url)
        self._bearer = BearerAuth(token_of(token))
        self._timeout = timeout
        self._verify = verification(verify)
        self._clock, self._sleep = clock, sleep
        verifies = self._verify is not False
        self._sessions = SessionPool(session, lambda: new_session(self._url, verify=verifies))

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
        is_right = partial(is_order, parsed.order_id, parsed.merchant_id)
        return str(self._content(reply, TAKEN, is_right)["state"])

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
        self._content(reply, {202}, partial(is_about, order_id, merchant_id))

    def find(self, order_id: str, merchant_id: str) -> dict[str, Any] | None:
        """The order's state, attempts and events; None: it is not known. Raises as ``cancel``."""
        reply = self._request("GET", _path(merchant_id, order_id), self._until())
        if reply.status == 404 and code_of(reply) == "unknown_order":
            return None
        is_right = partial(is_order, order_id, merchant_id)
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
                page = self._content(reply, {200}, partial(is_page, after))
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
            content = self._content(reply, {207}, partial(is_batch, orders))
        except InvalidOrder as error:  # the one order is larger than a batch may be
            return [SubmitResult(each.order_id, None, error) for each in orders]
        return [result_of(*each) for each in zip(orders, content, strict=True)]

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
    ) -> "ServerReply":
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
            if isinstance(reply, ServerReply) and reply.status not in RETRIED:
                return reply
            if isinstance(reply, NoReply) and not reply.may_come:
                raise PosGatewayError(f"{self._named()}: {reply.why}")
            # Clients that were given the same time do not come at once.
            asked = self._asked_for(reply) if isinstance(reply, ServerReply) else 0.0
            if self._clock.monotonic() + pause + asked >= until:
                tried = f"(try {tries} within {self._timeout:g} s)"
                raise BrokerUnavailable(f"{self._named()}: {failure(reply)} {tried}")
            self._sleep(pause + asked)
        raise AssertionError("pauses have no end")

    def _try(
        self, method: str, path: str, until: float, body: bytes | None, headers: Mapping[str, str]
    ) -> "ServerReply | NoReply":
        """One request. Its errors are values: chained, they would show the request's headers."""
        left = until - self._clock.monotonic()
        if left <= 0:
            return NoReply("its time is up")
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
                return ServerReply(reply.status_code, reply.headers, content)
        except (OSError, HTTPError) as error:  # requests' are OSErrors; some of urllib3's pass it
            return no_reply(error)

    def _asked_for(self, reply: "ServerReply") -> float:
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
        self, reply: "ServerReply", statuses: Collection[int], is_right: Callable[[Any], bool]
    ) -> Any:
        """What a reply says, if it is the gateway's to this request. Raises its error."""
        content = reply.content_as_json()
        if reply.status in statuses and is_right(content):
            return content
        if reply.status >= 400 and is_problem(content):
            raise error_of(reply.status, content)
        why = not_the_gateway(f"replied {reply.status}{described(reply)}")
        raise PosGatewayError(f"{self._named()}: {why}")

    def _named(self) -> str:
        return f"the server at {mask_url(self._url)}"


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
