"""Orders and cancel requests, in: every order takes these routes, so they are plain ASGI.

A body's bytes are parsed once, by ``Order``, and published as they came.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from pydantic_core import to_json

from pos_gateway.broker import wire
from pos_gateway.client import CANCEL_FOR, home_of, require_readable
from pos_gateway.domain.errors import FieldError, InvalidOrder
from pos_gateway.domain.http_limits import BATCH_BYTES
from pos_gateway.domain.order import CancelRequest, Order
from pos_gateway.domain.plain_order import PlainOrder, PlainReader
from pos_gateway.domain.split import Split
from pos_gateway.domain.submit_result import SUBMITTED
from pos_gateway.domain.trace_context import TraceContext
from pos_gateway.ledger.submissions import Submitting, digest, digest_of
from pos_gateway.runtime.clock import Clock
from pos_gateway.server.access import Access
from pos_gateway.server.batches import json_of, orders_in
from pos_gateway.server.body import Receive, Scope, has_body, header, read_body
from pos_gateway.server.in_flight import InFlight
from pos_gateway.server.intake import Intake
from pos_gateway.server.posted import Posted, PostResult
from pos_gateway.server.problems import Problem, invalid
from pos_gateway.tokens.token import Capability, Token

#: Seconds for which a batch's orders are parsed before other requests get their turn.
_YIELD_AFTER = 0.002
#: Maximum bytes of a cancel request.
_CANCEL_BYTES = 4096
#: Bytes that a message has beside its order.
_AROUND = len(wire.body_of(b""))

_JSON = (b"application/json",)
_BATCH_TYPES = (b"application/json", b"application/x-ndjson")


class JsonReply(NamedTuple):
    """A reply in JSON."""

    status: int
    body: bytes


Handler = Callable[[Scope, Receive], Awaitable[JsonReply]]


class SubmitRoutes:
    """The routes. For the event loop. Each raises Problem.

    Args:
        split: the canary split in force.
        largest: maximum bytes of an order's message.
    """

    def __init__(
        self,
        access: Access,
        in_flight: InFlight,
        intake: Intake,
        *,
        split: Callable[[], Split],
        largest: int,
        clock: Clock,
    ) -> None:
        self._access = access
        self._in_flight = in_flight
        self._intake = intake
        self._split = split
        self._largest = largest - _AROUND
        self._clock = clock
        self._read_plain = PlainReader()

    async def submit(self, scope: Scope, receive: Receive) -> JsonReply:
        """``POST /v1/orders``: 202 once the broker has stored it; 200 if it has ended."""
        token = self._access.require(scope, Capability.SUBMIT)
        with self._in_flight.reading(token.digest) as count:
            body = await read_body(
                scope,
                receive,
                self._largest,
                content_types=_JSON,
                count=count,
                setting="POS_GATEWAY_MAX_ORDER_BYTES",
            )
            with self._in_flight.taking():
                post = self._poster(_trace(scope))
                posted = post(body)
                await self._intake.post((posted,))
        return _reply(posted)

    async def submit_batch(self, scope: Scope, receive: Receive) -> JsonReply:
        """``POST /v1/orders/batch``: 207, and a result for each order, in order."""
        token = self._access.require(scope, Capability.SUBMIT)
        with self._in_flight.reading(token.digest) as count:
            body = await read_body(
                scope, receive, BATCH_BYTES, content_types=_BATCH_TYPES, count=count
            )
            if _is_json(scope) and body.lstrip()[:1] not in (b"[", b"{"):
                detail = "the request's body is not JSON; send lines as application/x-ndjson"
                raise Problem(400, "not_json", detail)
            with self._in_flight.taking():
                results = await self._batch(body, token, _trace(scope))
        if results and all(each.status == 503 for each in results):
            detail = "none of the orders is known to be stored; send them all again"
            raise Problem(503, "broker_unavailable", detail, retry_after=1)
        return JsonReply(207, b"[" + b",".join(each.body for each in results) + b"]")

    async def cancel(
        self, scope: Scope, receive: Receive, merchant_id: str, order_id: str
    ) -> JsonReply:
        """``POST …/cancel``: 202 once the broker has stored the request."""
        token = self._access.require(scope, Capability.SUBMIT)
        request = await self._cancel_request(scope, receive, token, merchant_id, order_id)
        with self._in_flight.taking():
            self._access.acted(token, scope, "orders.cancel", merchant_id, order_id)
            key = home_of(merchant_id, self._split())
            message = wire.cancel_message(order_id, request.to_json(), routing_key=key)
            posted = Posted(message.following(_trace(scope)))
            await self._intake.post((posted,))
        if posted.result is not PostResult.STORED:
            raise _unavailable()
        return JsonReply(202, to_json({"order_id": order_id, "merchant_id": merchant_id}))

    async def _cancel_request(
        self, scope: Scope, receive: Receive, token: Token, merchant_id: str, order_id: str
    ) -> CancelRequest:
        record: dict[str, Any] = {"deliver_by": (self._clock.now() + CANCEL_FOR).isoformat()}
        if has_body(scope) or header(scope["headers"], b"content-type") is not None:
            with self._in_flight.reading(token.digest) as count:
                body = await read_body(
                    scope, receive, _CANCEL_BYTES, content_types=_JSON, count=count
                )
            if body.strip():
                given = json_of(body)
                if not isinstance(given, dict):
                    raise Problem(400, "not_an_object", "a cancel request is a JSON object")
                record |= given
        try:
            return CancelRequest.parse({**record, "merchant_id": merchant_id, "order_id": order_id})
        except InvalidOrder as error:
            raise invalid(error, "cancel request") from None

    async def _batch(
        self, body: bytes, token: Token, trace: TraceContext | None
    ) -> Sequence[JsonReply]:
        orders = orders_in(body)
        self._access.charge_batch(token, len(orders))
        results: list[JsonReply | Posted] = []
        post = self._poster(trace)
        began = time.perf_counter()
        for order in orders:
            try:
                results.append(post(order))
            except Problem as problem:
                results.append(JsonReply(problem.status, problem.body()))
            if time.perf_counter() - began > _YIELD_AFTER:
                await asyncio.sleep(0)
                began = time.perf_counter()
        posted = [each for each in results if isinstance(each, Posted)]
        if posted:
            await self._intake.post(posted)
        return [_result(each) if isinstance(each, Posted) else each for each in results]

    def _parsed(self, order: Any) -> Order:
        """The order, if a worker can read it. Raises Problem.

        Args:
            order: its bytes, or a part of a batch in one JSON list.
        """
        try:
            if isinstance(order, bytes):
                parts = self._require_small(order)
                parsed = Order.parse_json(order)
            else:
                parsed = Order.parse(order)
                parts = self._require_small(parsed.source)
            if parts > wire.FLAT:
                require_readable(parsed.source, self._largest + _AROUND)
        except InvalidOrder as error:
            raise invalid(error, "order") from None
        return parsed

    def _require_small(self, order: bytes) -> int:
        """Its lists and objects, counted before it is parsed. Raises Problem."""
        try:
            return wire.require_small(order, self._largest)
        except wire.Malformed as problem:
            raise Problem(413, "too_large", problem.reason) from None

    def _poster(self, trace: TraceContext | None) -> Callable[[Any], Posted]:
        """Makes the messages of a request's orders, each as for ``_parsed``. They raise Problem."""
        split, now = self._split(), self._clock.now()

        def posted(order: Any) -> Posted:
            plain = self._plain(order) if isinstance(order, bytes) else None
            if plain is not None:
                is_late, source = plain.deliver_by <= now, order
                known_as = Submitting(
                    *plain[:2], digest_of(plain.written), plain.deliver_by, is_late
                )
            else:
                parsed = self._parsed(order)
                is_late, source = parsed.expired(now), parsed.source
                known_as = Submitting(
                    parsed.merchant_id,
                    parsed.order_id,
                    digest(parsed),
                    parsed.deliver_by,
                    is_late,
                )
            key = home_of(known_as.merchant_id, split)
            message = wire.submit_message(known_as.order_id, source, routing_key=key)
            return Posted(message.following(trace), known_as)

        return posted

    def _plain(self, order: bytes) -> PlainOrder | None:
        """The order, if it is a plain one that a worker can read. Raises Problem."""
        return self._read_plain(order) if self._require_small(order) <= wire.FLAT else None


def _reply(posted: Posted) -> JsonReply:
    """The reply about one order. Raises Problem."""
    order = posted.order
    assert order is not None  # noqa: S101
    if posted.result in (PostResult.STORED, PostResult.ENDED):
        content = {
            "order_id": order.order_id,
            "merchant_id": order.merchant_id,
            "state": posted.state or SUBMITTED,
        }
        return JsonReply(202 if posted.result is PostResult.STORED else 200, to_json(content))
    if posted.result is PostResult.DIFFERENT:
        raise Problem(
            409,
            "order_differs",
            f"order {order.order_id!r} of merchant {order.merchant_id!r} was submitted with other "
            "content; an order that has changed needs another order_id",
        )
    if posted.result is PostResult.LATE:
        late = FieldError("deliver_by", "is in the past, and the order was never submitted")
        raise Problem(422, "invalid_order", str(late), errors=[late])
    raise _unavailable()


def _result(posted: Posted) -> JsonReply:
    """One order's part in a batch's reply."""
    try:
        reply = _reply(posted)
    except Problem as problem:
        return JsonReply(problem.status, problem.body())
    return JsonReply(reply.status, b'{"status":%d,' % reply.status + reply.body[1:])


def _unavailable() -> Problem:
    # Without its error, which names the broker: the log has that.
    detail = "the broker has not confirmed it; send the same again"
    return Problem(503, "broker_unavailable", detail, retry_after=1)


def _is_json(scope: Scope) -> bool:
    content_type = header(scope["headers"], b"content-type") or b""
    return content_type.lower().startswith(_JSON)


def _trace(scope: Scope) -> TraceContext | None:
    headers = scope["headers"]
    parent = next((value for name, value in headers if name == b"traceparent"), None)
    if parent is None:
        return None
    said = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
    return TraceContext.of(said)
