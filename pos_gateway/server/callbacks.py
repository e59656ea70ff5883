"""The route of POSes' callbacks: each is verified by its adapter, and stored before it is answered.

Anyone may call here. So a call that is not signed costs a part of a read, a signature and no write,
and is refused in the same words after the same work whether there is such a merchant or not; and
nothing here shares a limit with backends.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import structlog
from pydantic_core import to_json

from pos_gateway.adapters.protocol import Adapter, CallbackRequest, ReadsCallbacks
from pos_gateway.domain.callback import require_text
from pos_gateway.domain.errors import InvalidCallback
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.record import identifier
from pos_gateway.runtime.clock import Clock
from pos_gateway.server.asgi import CALLBACKS
from pos_gateway.server.body import Receive, Scope, read_body
from pos_gateway.server.callback_intake import CallbackIntake
from pos_gateway.server.callback_merchants import CallbackMerchants, require_readable
from pos_gateway.server.in_flight import InFlight
from pos_gateway.server.log_limit import LogLimit
from pos_gateway.server.problems import Problem, invalid
from pos_gateway.server.submitting import JsonReply
from pos_gateway.telemetry import metrics

log = structlog.get_logger(__name__)


class CallbackRoute:
    """``POST /v1/callbacks/{adapter}/{merchant_id}``. For the event loop.

    Args:
        in_flight: of its own: a flood of calls keeps no order out.
        public_url: where POSes reach this server; None: as their requests say.
    """

    def __init__(
        self,
        adapters: Mapping[str, Adapter],
        merchants: CallbackMerchants,
        intake: CallbackIntake,
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
        self._intake = intake
        self._in_flight = in_flight
        self._public_url = public_url
        self._clock = clock
        self._refused, self._codes, self._unreadable = LogLimit(), LogLimit(), LogLimit()

    async def __call__(self, scope: Scope, receive: Receive) -> JsonReply:
        """200 once what follows is stored. Raises Problem."""
        name, merchant_id = _names(scope["path"])
        adapter = self._adapters.get(name)
        if adapter is None or merchant_id is None:
            raise self._refusal("(unknown)", merchant_id or "(unknown)")
        with self._in_flight.reading() as count:
            body = await read_body(scope, receive, adapter.limits.callback_bytes, count=count)
            with self._in_flight.taking():
                return await self._applied(scope, body, adapter, merchant_id)

    async def _applied(
        self, scope: Scope, body: bytes, adapter: Any, merchant_id: str
    ) -> JsonReply:
        """Verify the call, and apply what it says. Raises Problem."""
        found = await self._merchants.get(adapter, merchant_id)
        read_code = getattr(adapter, "verification_code", None)
        code = None if read_code is None else read_code(body)
        if code is not None:
            self._log_code(code, adapter.name, merchant_id, is_known=found is not None)
            return JsonReply(200, b'{"results":[]}')
        merchant = self._readable(found or _STRANGER)
        request = CallbackRequest(
            self._url(scope), _headers(scope), body, self._clock.now().timestamp()
        )
        try:
            said = adapter.callbacks(request, merchant)
            require_text(said or ())
        except InvalidCallback as error:
            metrics.callbacks(adapter.name, "invalid").inc()
            raise invalid(error, "callback") from None
        if said is None:
            raise self._refusal(adapter.name, merchant_id)
        if not said:
            metrics.callbacks(adapter.name, "unused").inc()
        results = await self._intake.apply(adapter, merchant, said)
        return JsonReply(200, to_json({"results": results}))

    def _readable(self, merchant: Merchant) -> Merchant:
        """The same. Raises Problem 503 if its secrets cannot be read."""
        try:
            require_readable(merchant)
        except Problem as problem:
            metrics.callbacks(merchant.adapter, "unreadable").inc()
            if self._unreadable.lines(merchant.id):
                log.error(
                    "callback.unreadable_secrets", merchant_id=merchant.id, error=problem.detail
                )
            raise
        return merchant

    def _log_code(self, code: str, adapter: str, merchant_id: str, *, is_known: bool) -> None:
        """Log a code that an operator is to enter at the vendor, once a second for each merchant.

        Those of merchants that do not exist share a line: a caller can name any number.
        """
        if self._codes.lines(merchant_id if is_known else ""):
            log.warning(
                "callback.verification_code", adapter=adapter, merchant_id=merchant_id, code=code
            )

    def _url(self, scope: Scope) -> str:
        host = next((value for name, value in scope["headers"] if name == b"host"), b"")
        base = self._public_url or f"https://{host.decode('latin-1')}"
        path, query = scope["path"], scope["query_string"].decode("latin-1")
        return f"{base.rstrip('/')}{path}?{query}" if query else f"{base.rstrip('/')}{path}"

    def _refusal(self, adapter: str, merchant_id: str) -> Problem:
        metrics.callbacks(adapter, "unsigned").inc()
        if calls := self._refused.lines():
            log.warning("callback.refused", adapter=adapter, merchant_id=merchant_id, calls=calls)
        return Problem(
            403, "unsigned", "the call is not signed as this merchant's POS signs: docs/adapters.md"
        )


def _names(path: str) -> tuple[str, str | None]:
    """The adapter's name and the merchant's id; None: it cannot be one. Raises Problem 404."""
    parts = path.removeprefix(CALLBACKS).split("/")
    if len(parts) == 2 and all(parts):
        return parts[0], identifier(unquote(parts[1]))
    raise Problem(
        404, "not_found", f"the path should be {CALLBACKS}ADAPTER/MERCHANT_ID", close=True
    )


def _headers(scope: Scope) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        said = name.decode("latin-1")
        found[said] = "" if said in found else value.decode("latin-1")
    return found


#: Stands in for a merchant that does not exist: it has no key that a caller could know.
_STRANGER = Merchant.parse({"id": "none", "base_url": "https://pos.invalid"})
