"""Square's endpoints: method, path, scopes, and the table of the body. All from the document."""

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from testkit.vendors.fields import faults
from testkit.vendors.http import VendorRequest
from testkit.vendors.square.refusals import Refused
from testkit.vendors.square.tables import TABLES, tables


class Route(NamedTuple):
    """An endpoint. ``scopes`` is None where no access token is wanted."""

    method: str
    path: str
    name: str
    scopes: tuple[str, ...] | None

    @property
    def table(self) -> str | None:
        """The table of the body; None for an endpoint without a body."""
        named = f"{self.name}Request"
        return named if named in TABLES else None


ROUTES = (
    Route("POST", "/v2/orders", "CreateOrder", ("ORDERS_WRITE",)),
    Route("POST", "/v2/orders/calculate", "CalculateOrder", ()),
    Route("POST", "/v2/orders/batch-retrieve", "BatchRetrieveOrders", ("ORDERS_READ",)),
    Route("POST", "/v2/orders/search", "SearchOrders", ("ORDERS_READ",)),
    Route("POST", "/v2/orders/([^/]+)/pay", "PayOrder", ("PAYMENTS_WRITE", "ORDERS_WRITE")),
    Route("GET", "/v2/orders/([^/]+)", "RetrieveOrder", ("ORDERS_READ",)),
    Route("PUT", "/v2/orders/([^/]+)", "UpdateOrder", ("ORDERS_WRITE",)),
    Route("POST", "/v2/payments", "CreatePayment", ("PAYMENTS_WRITE",)),
    Route("POST", "/v2/payments/cancel", "CancelPaymentByIdempotencyKey", ("PAYMENTS_WRITE",)),
    Route("GET", "/v2/payments/([^/]+)", "GetPayment", ("PAYMENTS_READ",)),
    Route("POST", "/v2/payments/([^/]+)/cancel", "CancelPayment", ("PAYMENTS_WRITE",)),
    Route("POST", "/v2/refunds", "RefundPayment", ("PAYMENTS_WRITE",)),
    Route("GET", "/v2/refunds/([^/]+)", "GetPaymentRefund", ("PAYMENTS_READ",)),
    Route("GET", "/v2/locations", "ListLocations", ("MERCHANT_PROFILE_READ",)),
    Route("GET", "/v2/locations/([^/]+)", "RetrieveLocation", ("MERCHANT_PROFILE_READ",)),
    Route("GET", "/v2/catalog/list", "ListCatalog", ("ITEMS_READ",)),
    Route("POST", "/oauth2/token", "ObtainToken", None),
    Route("POST", "/oauth2/token/status", "RetrieveTokenStatus", ()),
    Route("POST", "/oauth2/revoke", "RevokeToken", None),
)
_QUERY: Mapping[str, set[str]] = {"ListCatalog": {"cursor", "types", "catalog_version"}}


def routed(request: VendorRequest) -> tuple[Route, tuple[str, ...]]:
    """The endpoint, and the ids in the path. Raises Refused."""
    found = [(each, re.fullmatch(each.path, request.path)) for each in ROUTES]
    matching = [(route, match) for route, match in found if match is not None]
    for route, match in matching:
        if route.method == request.method:
            if unknown := set(request.query) - _QUERY.get(route.name, set()):
                raise Refused("UNKNOWN_QUERY_PARAMETER", f"{sorted(unknown)}")
            return route, match.groups()
    code = "METHOD_NOT_ALLOWED" if matching else "NOT_FOUND"
    raise Refused(code, f"{request.method} {request.path} is no endpoint")


def body(route: Route, request: VendorRequest, version: str) -> dict[str, Any]:
    """The body, valid by its table; empty for an endpoint without a body. Raises Refused."""
    if route.table is None:
        return {}
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise Refused("UNSUPPORTED_MEDIA_TYPE", "the body must be application/json")
    try:
        given = json.loads(request.body)
    except ValueError:
        raise Refused("EXPECTED_JSON_BODY", "the body is no JSON") from None
    if wrong := faults(tables(version), route.table, given):
        raise Refused.of(wrong)
    assert isinstance(given, dict)
    return given
