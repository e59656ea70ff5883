"""POSes' callbacks, in: verified by the adapter, and stored before they are answered.

Anyone may call here. So a call that is not signed costs a signature and no write, and is refused in
the same words and time whether there is such a merchant or not; and nothing here shares a limit with
backends.
"""

import time
from collections.abc import Mapping, Sequence
from hmac import compare_digest
from typing import Any
from urllib.parse import unquote

import structlog
from pydantic_core import to_json

from pos_gateway.adapters.pos_fields import endpoint
from pos_gateway.adapters.protocol import Adapter, CallbackRequest, ReadsCallbacks
from pos_gateway.adapters.signatures import key_of
from pos_gateway.domain.callback import Callback
from pos_gateway.domain.errors import InvalidCallback
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.outcome import Kind
from pos_gateway.domain.record import identifier
from pos_gateway.ledger.callback_rules import Applied, CallbackResult, Received
from pos_gateway.ledger.states import Key
from pos_gateway.runtime.clock import Clock
from pos_gateway.server.asgi import CALLBACKS
from pos_gateway.server.body import Receive, Scope, read_body
from pos_gateway.server.callback_merchants import CallbackMerchants
from pos_gateway.server.callback_writer import CallbackWriter
from pos_gateway.server.in_flight import InFlight
from pos_gateway.server.problems import Problem, invalid
from pos_gateway.server.reading import Reading
from pos_gateway.server.submitting import JsonReply
from pos_gateway.telemetry import metrics

log = structlog.get_logger(__name__)

#: Seconds between two log lines about refused calls.
QUIET = 1.0


class CallbackRoute:
    """``POST /v1/callbacks/{adapter}/{merchant_id}``. For the event loop.

    Args:
        in_flight: of its own, as ``reading`` is: a flood of calls keeps no order out.
        public_url: where POSes reach this server; None: as their requests say.
    """

    def __init__(
        self,
        adapters: Mapping[str, Adapter],
        merchants: CallbackMerchants,
        writer: CallbackWriter,
        reading: Reading,
        in_flight: InFlight,
        *,
        public_url: str | None,
        clock: Clock,
    ) -> None:
        self._adapters = {
            name: adapter
            for name, adapter in adapters.items()
            if isinstance(adapter, ReadsCallbacks)
        }
        self._merchants = merchants
        self._writer = writer
        self._reading = reading
        self._in_flight = in_flight
        self._public_url = public_url
        self._clock = clock
        self._refused, self._codes = _OnceASecond(), _OnceASecond()

    async def __call__(self, scope: Scope, receive: Receive) -> JsonReply:
        """200 once what follows is stored. Raises Problem."""
        name, merchant_id = _names(scope["path"])
        adapter = self._adapters.get(name)
        if adapter is None:
            raise self._refusal("(unknown)", merchant_id)
        with self._in_flight.reading() as count:
            body = await read_body(scope, receive, adapter.limits.callback_bytes, count=count)
            if self._is_told_a_code(adapter, merchant_id, body):
                return JsonReply(200, b'{"results":[]}')
            with self._in_flight.taking():
                return await self._taken(scope, body, adapter, merchant_id)

    async def _taken(self, scope: Scope, body: bytes, adapter: Any, merchant_id: str) -> JsonReply:
        found = await self._merchants.get(merchant_id)
        is_its = found is not None and found.adapter == adapter.name
        merchant = found if found is not None and is_its else _STRANGER
        request = CallbackRequest(
            self._url(scope), _headers(scope), body, self._clock.now().timestamp()
        )
        try:
            said = adapter.callbacks(request, merchant)
        except InvalidCallback as error:
            metrics.callbacks(adapter.name, "invalid").inc()
            raise invalid(error, "callback") from None
        if said is None:
            raise self._refusal(adapter.name, merchant_id)
        if not said:
            metrics.callbacks(adapter.name, "unused").inc()
        results = await self._apply(adapter, merchant, said)
        return JsonReply(200, to_json({"results": results}))

    async def _apply(
        self, adapter: Adapter, merchant: Merchant, said: Sequence[Callback]
    ) -> list[CallbackResult]:
        results = [CallbackResult.UNKNOWN] * len(said)
        received: dict[int, Received] = {}
        owners: dict[int, Merchant] = {}
        for place, each in enumerate(said):
            owner, order_id = merchant, each.order_id
            if order_id is None:
                found = await self._owner(adapter, merchant, each)
                if found is None:  # most are the merchant's own, which no backend has sent
                    continue
                owner, order_id = found
            endpoints = (endpoint(owner, adapter), owner.endpoint)
            key = Key(owner.id, order_id)
            received[place] = Received(adapter.name, merchant.id, each, key, endpoints)
            owners[place] = owner
        applied = await self._writer.apply(list(received.values())) if received else []
        for place, one in zip(received, applied, strict=True):
            results[place] = one.result
            _tell(received[place], one, owners[place].provider)
        for result in results:
            metrics.callbacks(adapter.name, result).inc()
        if CallbackResult.BUSY in results:
            detail = "a worker is writing the order at this moment; send the same again"
            raise Problem(503, "order_busy", detail, retry_after=1)
        return results

    async def _owner(
        self, adapter: Adapter, merchant: Merchant, callback: Callback
    ) -> tuple[Merchant, str] | None:
        """The order that its POS knows by this id, and its merchant, which has the same key."""
        known_as, account = callback.external_id, callback.account
        if known_as is None:
            return None
        owners = []
        for key in await self._reading(lambda: self._writer.owners(known_as)):
            owner = await self._merchants.get(key.merchant_id)
            if owner is None or owner.adapter != adapter.name:
                continue
            is_meant = owner.id == merchant.id if account is None else _is_at(owner, account)
            has_the_key = compare_digest(key_of(owner).encode(), key_of(merchant).encode())
            if is_meant and has_the_key:
                owners.append((owner, key.order_id))
        return owners[0] if len(owners) == 1 else None

    def _is_told_a_code(self, adapter: Any, merchant_id: str, body: bytes) -> bool:
        """Whether the call has a code that an operator is to enter at the vendor."""
        read = getattr(adapter, "verification_code", None)
        code = None if read is None else read(body)
        if code is not None and self._codes.is_due():
            log.warning(
                "callback.verification_code",
                adapter=adapter.name,
                merchant_id=merchant_id,
                code=code,
            )
        return code is not None

    def _url(self, scope: Scope) -> str:
        host = next((value for name, value in scope["headers"] if name == b"host"), b"")
        base = self._public_url or f"https://{host.decode('latin-1')}"
        path, query = scope["path"], scope["query_string"].decode("latin-1")
        return f"{base.rstrip('/')}{path}?{query}" if query else f"{base.rstrip('/')}{path}"

    def _refusal(self, adapter: str, merchant_id: str) -> Problem:
        metrics.callbacks(adapter, "unsigned").inc()
        if self._refused.is_due():
            calls = self._refused.count()
            log.warning("callback.refused", adapter=adapter, merchant_id=merchant_id, calls=calls)
        return Problem(
            403, "unsigned", "the call is not signed as this merchant's POS signs: docs/adapters.md"
        )


class _OnceASecond:
    """When the log says again what anyone may cause."""

    def __init__(self) -> None:
        self._count = 0
        self._told_at = -QUIET

    def is_due(self) -> bool:
        """Whether it is said now; counts it if not."""
        self._count += 1
        now = time.monotonic()
        if now - self._told_at < QUIET:
            return False
        self._told_at = now
        return True

    def count(self) -> int:
        """How often it has happened since this was asked last."""
        count, self._count = self._count, 0
        return count


def _tell(received: Received, applied: Applied, provider: str | None) -> None:
    meaning, key = received.callback.meaning.value, received.key
    match applied.result:
        case CallbackResult.APPLIED:
            log.info(
                "callback.applied",
                adapter=received.adapter,
                merchant_id=key.merchant_id,
                order_id=key.order_id,
                meaning=meaning,
            )
        case CallbackResult.CONTRADICTION:
            log.warning(
                "callback.contradiction",
                adapter=received.adapter,
                merchant_id=key.merchant_id,
                order_id=key.order_id,
                meaning=meaning,
            )
        case CallbackResult.MOVED:
            log.warning(
                "callback.moved",
                adapter=received.adapter,
                merchant_id=key.merchant_id,
                order_id=key.order_id,
                meaning=meaning,
            )
    for each in applied.events:
        if isinstance(each, Kind):
            metrics.outcome_recorded(each.value, provider)


def _names(path: str) -> tuple[str, str]:
    """The adapter's name and the merchant's id. Raises Problem 404."""
    parts = path.removeprefix(CALLBACKS).split("/")
    if len(parts) == 2:
        name, merchant_id = parts[0], identifier(unquote(parts[1]))
        if name and merchant_id:
            return name, merchant_id
    raise Problem(
        404, "not_found", f"the path should be {CALLBACKS}ADAPTER/MERCHANT_ID", close=True
    )


def _headers(scope: Scope) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        said = name.decode("latin-1")
        found[said] = "" if said in found else value.decode("latin-1")
    return found


def _is_at(merchant: Merchant, account: tuple[str, str]) -> bool:
    field, value = account
    return merchant.pos.get(field) == value


#: Stands in for a merchant that there is not: it has no key that a caller could know.
_STRANGER = Merchant.parse({"id": "none", "base_url": "https://pos.invalid"})
