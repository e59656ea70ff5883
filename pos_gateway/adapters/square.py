"""Square's Orders API. Built to Square's public documentation, not certified by Square.

An order is made with one fulfillment, then paid (``square_steps.py``), since a POS shows no other
order. An item in the merchant's catalog is sent as one of the seller's item variations, and its modifiers
as the seller's modifiers: their name, our price, which overrides theirs. Any other item is ad hoc:
a name and a price.

Sources of the callbacks, on developer.squareup.com: "Validate notifications", order.updated and
order.fulfillment.updated in the webhooks reference, FulfillmentState.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pos_gateway.adapters import (
    square_fulfillment,
    square_items,
    square_location,
    square_order,
)
from pos_gateway.adapters.adapted import Adapted
from pos_gateway.adapters.location import CLOSED_AS
from pos_gateway.adapters.polls import POLL, Page, Window, callbacks_of, said_in
from pos_gateway.adapters.pos_fields import PosField, problems
from pos_gateway.adapters.pos_items import PosItem
from pos_gateway.adapters.protocol import CallbackRequest, Guarantee
from pos_gateway.adapters.signatures import inside, is_signed, said, unix_time
from pos_gateway.adapters.square_api import LIMITS
from pos_gateway.adapters.square_search import changed
from pos_gateway.adapters.square_state import FAILED, fulfilling, standing
from pos_gateway.adapters.square_steps import create, created, paid, pay
from pos_gateway.adapters.square_undo import undo
from pos_gateway.adapters.steps import COVERED, Step
from pos_gateway.domain.callback import Callback
from pos_gateway.domain.errors import FieldError
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind, Lifecycle
from pos_gateway.domain.record import identifier
from pos_gateway.transport.exchange import Send

FIELDS = {
    "location_id": PosField("the Square location's id"),
    "payment_source": PosField(
        "who has taken the guests' money, for Square's reports", required=False, names_pos=False
    ),
    **square_fulfillment.FIELDS,
    "closed_as": CLOSED_AS,
    "poll": POLL,
}
#: What a FulfillmentState means.
_FULFILLING: Mapping[str, Kind | Lifecycle] = {
    "RESERVED": Lifecycle.PREPARING,
    "PREPARED": Lifecycle.READY,
    "COMPLETED": Lifecycle.COMPLETED,
    "CANCELED": Kind.CANCELLED,
    "FAILED": Kind.CANCELLED,
}


class SquareAdapter:
    """Create, then pay; both keyed. One undo for both."""

    name = "square"
    pos_fields = FIELDS
    guarantee = Guarantee.KEYED
    limits = LIMITS
    steps: tuple[Step, ...] = (
        Step("create", Guarantee.KEYED, create, created, undo),
        Step("pay", Guarantee.KEYED, pay, paid, COVERED),
    )

    def check(self, merchant: Merchant) -> list[FieldError]:
        return problems(merchant, FIELDS, self.limits) + square_fulfillment.problems(merchant)

    def adapted(self, order: Order, merchant: Merchant) -> Iterator[Adapted]:
        return square_order.adapted(order, merchant)

    def location(self, merchant: Merchant, send: Send) -> Sequence[str]:
        return square_location.described(merchant, send)

    def items(self, merchant: Merchant, send: Send) -> Iterator[Sequence[PosItem]]:
        return square_items.items(merchant, send)

    def changes(self, window: Window, merchant: Merchant, send: Send) -> Iterator[Page]:
        pages = changed(window.since, window.until, merchant, send)
        return said_in(pages, lambda found: _said(found, merchant))

    def callbacks(self, request: CallbackRequest, merchant: Merchant) -> Sequence[Callback] | None:
        given = request.headers.get("x-square-hmacsha256-signature", "")
        is_its = is_signed(given, merchant, request.url.encode(), request.body)
        return _callbacks(said(request.body)) if is_its else None


def _callbacks(event: dict[str, Any]) -> list[Callback]:
    """What an order.updated or order.fulfillment.updated says; nothing: no more than is known.

    The order is found by Square's id: the events have no ``metadata``. A paid order may be COMPLETED once its
    fulfillment is COMPLETED, CANCELED or FAILED (Fulfillment, ``entries``): the fulfillment's state alone says whether
    the guest has the order.
    """
    name = {
        "order.updated": "order_updated",
        "order.fulfillment.updated": "order_fulfillment_updated",
    }.get(str(event.get("type")), "")
    found = inside(event, "data", "object", name)
    updates = found.get("fulfillment_update")
    last = updates[-1] if isinstance(updates, list) and updates else None
    state = inside({"last": last}, "last").get("new_state")
    is_cancelled = found.get("state") == "CANCELED"
    meaning = Kind.CANCELLED if is_cancelled else _FULFILLING.get(str(state))
    known_as, location = (identifier(found.get(each)) for each in ("order_id", "location_id"))
    if meaning is None or known_as is None or location is None:
        return []
    return [
        Callback(
            str(event.get("event_id")),
            meaning,
            external_id=known_as,
            occurred_at=unix_time(found.get("updated_at") or event.get("created_at")),
            reason=FAILED if state == "FAILED" and not is_cancelled else None,
            account=("location_id", location),
        )
    ]


def _said(found: dict[str, Any], merchant: Merchant) -> list[Callback]:
    """The order given up, or the furthest state of a fulfillment."""
    outcome, states = standing(found), fulfilling(found)
    meaning: Kind | Lifecycle | None
    if outcome.kind in (Kind.CANCELLED, Kind.REJECTED):
        meaning = Kind.CANCELLED
    else:
        reached = set(map(_FULFILLING.get, states))
        meaning = next((each for each in reversed(Lifecycle) if each in reached), None)
    if outcome.kind is Kind.IN_DOUBT or found.get("location_id") != merchant.pos["location_id"]:
        return []
    return callbacks_of(
        outcome.external_id, meaning, unix_time(found.get("updated_at")), outcome.reason
    )
