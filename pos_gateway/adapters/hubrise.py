"""HubRise's orders API. Built to HubRise's public documentation, not certified by HubRise.

HubRise hands orders on to the shop's EPOS. An order takes a single step (``hubrise_create.py``), and is accepted once the EPOS
has the order. The catalog's id for an item's ``sku``, or else the ``sku``, is the EPOS's ref code of the item; many ignore, or
reject, an item without a ref code.

Sources of the callbacks, on hubrise.com/developers/api: "Callbacks", "Order Status".
"""

from collections.abc import Iterator, Sequence
from typing import Any

from pos_gateway.adapters import hubrise_create, hubrise_location, hubrise_order, hubrise_state
from pos_gateway.adapters.adapted import Adapted
from pos_gateway.adapters.hubrise_api import LIMITS
from pos_gateway.adapters.location import CLOSED_AS
from pos_gateway.adapters.polls import POLL, Page, Window, callbacks_of, said_in
from pos_gateway.adapters.pos_fields import PosField, problems
from pos_gateway.adapters.protocol import CallbackRequest, Guarantee
from pos_gateway.adapters.signatures import inside, is_signed, said, unix_time
from pos_gateway.domain.callback import Callback
from pos_gateway.domain.credentials import ApiKey
from pos_gateway.domain.errors import FieldError
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind, Lifecycle, Outcome, Reason
from pos_gateway.domain.record import identifier
from pos_gateway.transport.exchange import Send

FIELDS = {
    "location_id": PosField("the HubRise location's id, like 3r4s3-1"),
    **hubrise_order.FIELDS,
    **hubrise_state.FIELDS,
    "closed_as": CLOSED_AS,
    "poll": POLL,
}
_HEADER = "X-Access-Token"


class HubRiseAdapter:
    """``POST /locations/{id}/orders`` with a ``private_ref`` of order and merchant, which look-ups use."""

    name = "hubrise"
    pos_fields = FIELDS
    guarantee = Guarantee.QUERYABLE
    limits = LIMITS
    lists_all = True

    def check(self, merchant: Merchant) -> list[FieldError]:
        found = problems(merchant, FIELDS, self.limits)
        if not isinstance(merchant.auth, ApiKey):
            found.append(FieldError("auth.type", f"must be api_key, in the header {_HEADER}"))
        elif merchant.auth.header.lower() != _HEADER.lower():
            found.append(FieldError("auth.header", f"must be {_HEADER}", merchant.auth.header))
        return found

    def adapted(self, order: Order, merchant: Merchant) -> Iterator[Adapted]:
        return hubrise_order.adapted(order, merchant)

    def location(self, merchant: Merchant, send: Send) -> Sequence[str]:
        return hubrise_location.described(merchant, send)

    def submit(self, order: Order, merchant: Merchant, send: Send) -> Outcome:
        return hubrise_create.create(order, merchant, send)

    def cancel(self, order: Order, merchant: Merchant, send: Send) -> Outcome:
        return hubrise_create.undo(order, merchant, send)

    def look_up(self, order: Order, merchant: Merchant, send: Send) -> Outcome | None:
        return hubrise_create.look_up(order, merchant, send)

    def changes(self, window: Window, merchant: Merchant, send: Send) -> Iterator[Page]:
        """All orders since the oldest open order: HubRise lists orders by the time of placing, not of change."""

        def say(found: dict[str, Any]) -> list[Callback]:
            return callbacks_of(
                identifier(found.get("id")), _meaning(found, merchant), reason=_why(found)
            )

        return said_in(hubrise_create.placed(window.made_since, merchant, send), say)

    def callbacks(self, request: CallbackRequest, merchant: Merchant) -> Sequence[Callback] | None:
        given = request.headers.get("x-hubrise-hmac-sha256", "")
        is_its = is_signed(given, merchant, request.body, written=bytes.hex)
        return _callbacks(said(request.body), merchant) if is_its else None


def _callbacks(event: dict[str, Any], merchant: Merchant) -> list[Callback]:
    """The callback of an order.update, by HubRise's id. Unless paid at its total, an order is accepted by a look-up."""
    found = inside(event, "new_state")
    meaning = _meaning(found, merchant)
    known_as, location = identifier(found.get("id")), identifier(found.get("location_id"))
    is_update = (event.get("resource_type"), event.get("event_type")) == ("order", "update")
    if not is_update or known_as is None or location is None or meaning in (None, Kind.PENDING):
        return []
    return [
        Callback(
            str(event.get("id")),
            meaning,
            external_id=known_as,
            occurred_at=unix_time(event.get("created_at")),
            reason=_why(found),
            account=("location_id", location),
            only_accepted=isinstance(meaning, Lifecycle) and hubrise_state.owes(found),
        )
    ]


def _meaning(found: dict[str, Any], merchant: Merchant) -> Kind | Lifecycle | None:
    """The meaning of the order's status; None: no meaning, or a look-up must judge the order."""
    meaning = hubrise_state.meaning(found, merchant)
    return None if meaning is Kind.ACCEPTED and hubrise_state.owes(found) else meaning


def _why(found: dict[str, Any]) -> Reason | None:
    is_refused = hubrise_state.STATES.get(str(found.get("status"))) in (
        Kind.REJECTED,
        Kind.CANCELLED,
    )
    return hubrise_state.why(found) if is_refused else None
