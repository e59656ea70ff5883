"""Square in memory: a seller with a location, and an application with the seller's authorization.

*Document*: endpoints, scopes, versions; the same key with the same request returns the same reply,
UpdateOrder's the current order; with a different request, IDEMPOTENCY_KEY_REUSED. *Judgement*: a
refused request leaves the key unused.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from testkit.vendors.http import VendorReply, VendorRequest, dated
from testkit.vendors.square import orders, payments, routes, search
from testkit.vendors.square.access import SCOPES, Access
from testkit.vendors.square.catalog import Listed
from testkit.vendors.square.refusals import Refused
from testkit.vendors.square.seller import STEPS, Json, Seller

_HANDLERS: Mapping[str, Callable[..., Json]] = {
    "CreateOrder": orders.create_order,
    "CalculateOrder": orders.calculate_order,
    "BatchRetrieveOrders": orders.batch_retrieve_orders,
    "SearchOrders": orders.search_orders,
    "RetrieveOrder": orders.retrieve_order,
    "UpdateOrder": orders.update_order,
    "PayOrder": payments.pay_order,
    "CreatePayment": payments.create_payment,
    "GetPayment": payments.get_payment,
    "CancelPayment": payments.cancel_payment,
    "RefundPayment": payments.refund_payment,
    "GetPaymentRefund": payments.get_payment_refund,
}


class Square:
    """See the module's text. ``answer`` computes each reply from the seller's facts.

    Args:
        clock: the time.
        pkce: the application's refresh tokens are used once.
    """

    def __init__(
        self,
        clock: Callable[[], datetime],
        *,
        location_id: str = "L1",
        currency: str = "USD",
        merchant_id: str = "MERCHANT1",
        pkce: bool = False,
    ) -> None:
        self.seller = Seller(
            clock, location_id=location_id, currency=currency, merchant_id=merchant_id
        )
        self.knobs, self.webhooks = self.seller.knobs, self.seller.webhooks
        self.catalog = self.seller.catalog
        self.access = Access(clock, merchant_id, pkce=pkce, revoked=self.seller.notify_revoked)
        self.calls: Counter[str] = Counter()
        #: Bodies of all refusals.
        self.refused: list[Any] = []
        self._clock = clock
        self._keys: dict[tuple[str, str], tuple[str, Json, datetime]] = {}
        self.acts: Mapping[str, Callable[..., object]] = {
            **{name: partial(self.seller.step, *step) for name, step in STEPS.items()},
            "grant": lambda scopes=SCOPES: self.access.grant(scopes),
            "expire_tokens": self.access.expire,
            "revoke": self.access.revoke,
            "list_item": self._list_item,
            "list_modifier": self._list_modifier,
        }

    def answer(self, request: VendorRequest) -> VendorReply:
        """Carry out the request, or refuse it without a change."""
        try:
            return VendorReply(200, self._answered(request), dated(self._clock()))
        except Refused as refused:
            self.refused.append(refused.reply.body)
            return refused.reply

    def facts(self) -> Json:
        """Orders with their facts by Square's id, payments, refunds, calls and refusals."""
        seller = self.seller
        return {
            "orders": {known: seller.fact(kept) for known, kept in seller.orders.items()},
            "payments": deepcopy(seller.payments),
            "refunds": deepcopy(seller.refunds),
            "calls": dict(self.calls),
            "refused": deepcopy(self.refused),
            "deliveries": list(self.webhooks.statuses),
        }

    def _answered(self, request: VendorRequest) -> Json:
        route, ids = routes.routed(request)
        self.calls[route.name] += 1
        version = request.headers.get("square-version", self.knobs.version)
        if not re.fullmatch(r"\d{4}-\d\d-\d\d", version):
            raise Refused("INVALID_SQUARE_VERSION_FORMAT", f"{version} is no version")
        if route.scopes is not None:
            self.access.check(request, route.scopes, self.knobs.per_second)
        given = routes.body(route, request, version)
        handler = _HANDLERS.get(route.name)
        if handler is None:
            return self._other(route.name, request, given, ids)
        do = partial(handler, self.seller, *ids, *([given] if route.table else []))
        key = given.get("idempotency_key")
        if key is None:
            return do()
        content = json.dumps([request.path, given], sort_keys=True)
        return self._under_key((route.name, key), content, do)

    def _other(self, name: str, request: VendorRequest, given: Json, ids: tuple[str, ...]) -> Json:
        """Answer an endpoint without an order."""
        match name:
            case "ObtainToken":
                return self.access.obtain(given)
            case "RevokeToken":
                return self.access.revoke_request(request, given)
            case "RetrieveTokenStatus":
                return self.access.status(request)
            case "ListCatalog":
                return self._list_catalog(request.query)
            case "ListLocations":
                return {"locations": [self._location()]}
            case "RetrieveLocation":
                if ids[0] not in ("main", self.seller.location_id):
                    raise Refused("NOT_FOUND", "no such location")
                return {"location": self._location()}
        assert name == "CancelPaymentByIdempotencyKey", name
        if ("CreatePayment", given["idempotency_key"]) not in self._keys:
            return {}  # documented: no action is taken, and the endpoint returns successfully
        raise Refused("BAD_REQUEST", "a COMPLETED payment cannot be canceled: refund it")

    def _under_key(self, key: tuple[str, str], content: str, do: Callable[[], Json]) -> Json:
        kept = self.knobs.keys_kept
        known = self._keys.get(key)
        if known is not None and kept is not None:
            known = known if self._clock() - known[2] < timedelta(seconds=kept) else None
        if known is None:
            reply = do()
            self._keys[key] = (content, deepcopy(reply), self._clock())
            return reply
        if known[0] != content:
            detail = "Different request parameters used for the same idempotency_key."
            raise Refused("IDEMPOTENCY_KEY_REUSED", detail, "idempotency_key")
        if key[0] == "UpdateOrder":
            return {"order": deepcopy(self.seller.orders[known[1]["order"]["id"]].order)}
        return deepcopy(known[1])

    def _location(self) -> Json:
        return {
            "id": self.seller.location_id,
            "name": "Simulated",
            "merchant_id": self.seller.merchant_id,
            "status": "ACTIVE" if self.knobs.is_active else "INACTIVE",
            "currency": self.seller.currency,
            "timezone": "America/New_York",
            "business_hours": {"periods": self.knobs.hours},
            "capabilities": ["CREDIT_CARD_PROCESSING"],
        }

    def _list_catalog(self, query: Mapping[str, Sequence[str]]) -> Json:
        types = query.get("types", ["ITEM,MODIFIER_LIST,TAX"])[0].split(",")
        objects = self.catalog.objects(self.seller.location_id, self.seller.currency)
        chosen = [each for each in objects if each["type"] in types]
        cursor = query.get("cursor", [None])[0]
        return search.page("objects", chosen, self.knobs.catalog_page, cursor, types)

    def _list_item(self, known: str, **listed: Any) -> None:
        self.catalog.variations[known] = Listed(**listed)

    def _list_modifier(self, known: str, **listed: Any) -> None:
        self.catalog.modifiers[known] = Listed(**listed)
