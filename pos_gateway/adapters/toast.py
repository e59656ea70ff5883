"""Toast's orders API. Built to Toast's public documentation, not certified by Toast.

An order takes one step (``toast_create.py``): Toast has no ad-hoc items and sets the prices itself, so that
they are asked first; an order is made with its payment if they come to its total with tax, and accepted
once Toast shows it approved and paid. The catalog's id for an item's ``sku``, or else the ``sku``
itself, is the GUID of the item's menu group (a modifier's: of its option group) and the item's own:
``group/item``.

Sources of the callbacks, on doc.toasttab.com: "Orders webhook", "Message signing".
"""

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from pos_gateway.adapters import (
    toast_create,
    toast_dining,
    toast_guest,
    toast_items,
    toast_location,
    toast_order,
)
from pos_gateway.adapters.adapted import Adapted
from pos_gateway.adapters.location import CLOSED_AS
from pos_gateway.adapters.polls import POLL, Page, Window, callbacks_of, said_in
from pos_gateway.adapters.pos_fields import GUID, PosField, problems
from pos_gateway.adapters.pos_items import PosItem
from pos_gateway.adapters.protocol import CallbackRequest, Guarantee
from pos_gateway.adapters.signatures import inside, is_signed, said, unix_time
from pos_gateway.adapters.toast_api import LIMITS
from pos_gateway.adapters.toast_search import changed
from pos_gateway.adapters.toast_state import (
    NOT_APPROVED,
    STATES,
    is_combined,
    is_voided,
    owes,
    stage,
)
from pos_gateway.domain.callback import Callback
from pos_gateway.domain.errors import FieldError
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind, Lifecycle, Outcome, Reason
from pos_gateway.domain.record import identifier
from pos_gateway.transport.exchange import Send

FIELDS = {
    "restaurant": PosField("the restaurant's GUID", GUID),
    **toast_dining.FIELDS,
    **toast_order.FIELDS,
    **toast_guest.FIELDS,
    "closed_as": CLOSED_AS,
    "poll": POLL,
}
#: A callback's time, and most that are tried: it is one of the first fields.
_TIMESTAMP, _TIMES = re.compile(rb'"timestamp"\s*:\s*"([^"\\]{1,64})"'), 4


class ToastAdapter:
    """``POST /orders/v2/orders`` with an ``externalId`` of order and merchant, which look-ups use."""

    name = "toast"
    pos_fields = FIELDS
    guarantee = Guarantee.QUERYABLE
    limits = LIMITS

    def check(self, merchant: Merchant) -> list[FieldError]:
        return problems(merchant, FIELDS, self.limits, toast_order.ITEM)

    def submit(self, order: Order, merchant: Merchant, send: Send) -> Outcome:
        return toast_create.create(order, merchant, send)

    def cancel(self, order: Order, merchant: Merchant, send: Send) -> Outcome:
        return toast_create.undo(order, merchant, send)

    def look_up(self, order: Order, merchant: Merchant, send: Send) -> Outcome | None:
        return toast_create.look_up(order, merchant, send)

    def adapted(self, order: Order, merchant: Merchant) -> Iterator[Adapted]:
        return toast_order.adapted(order, merchant)

    def location(self, merchant: Merchant, send: Send) -> Sequence[str]:
        return toast_location.described(merchant, send)

    def items(self, merchant: Merchant, send: Send) -> Iterator[Sequence[PosItem]]:
        return toast_items.items(merchant, send)

    def changes(self, window: Window, merchant: Merchant, send: Send) -> Iterator[Page]:
        def say(found: dict[str, Any]) -> list[Callback]:
            at = unix_time(found.get("modifiedDate"))
            return callbacks_of(identifier(found.get("guid")), _meaning(found), at, _why(found))

        return said_in(changed(window.since, window.until, merchant, send), say)

    def callbacks(self, request: CallbackRequest, merchant: Merchant) -> Sequence[Callback] | None:
        """The signature is over the body and then its ``timestamp``.

        Which of the body's texts that is, is not parsed before it is verified: each is tried.
        """
        given = request.headers.get("toast-signature", "")
        times = [each[1] for each in islice(_TIMESTAMP.finditer(request.body), _TIMES)] or [b""]
        is_its = is_signed(given, merchant, request.body, ends=times)
        return _callbacks(said(request.body)) if is_its else None


def _callbacks(message: dict[str, Any]) -> list[Callback]:
    """What an order_updated says of the order, which has no ``externalId`` in it.

    Unless paid at its total, an order is accepted by a look-up.
    """
    if message.get("eventType") not in ("order_updated", "channel_order_updated"):
        return []
    found = inside(message, "details", "order")
    known_as, meaning = identifier(found.get("guid")), _meaning(found)
    restaurant = identifier(inside(message, "details").get("restaurantGuid"))
    if known_as is None or restaurant is None or meaning in (None, Kind.PENDING):
        return []
    return [
        Callback(
            str(message.get("guid")),
            meaning,
            external_id=known_as,
            occurred_at=unix_time(message.get("timestamp")),
            reason=_why(found),
            account=("restaurant", restaurant),
            only_accepted=isinstance(meaning, Lifecycle) and owes(found),
        )
    ]


def _meaning(found: dict[str, Any]) -> Kind | Lifecycle | None:
    """The meaning of the order's states; None: no meaning, or a look-up must judge the order."""
    meaning: Kind | Lifecycle | None = STATES.get(str(found.get("approvalStatus")))
    if meaning is Kind.ACCEPTED:
        meaning = stage(found) or meaning
    if is_voided(found):
        meaning = Kind.CANCELLED
    if is_combined(found):
        return None
    return None if meaning is Kind.ACCEPTED and owes(found) else meaning


def _why(found: dict[str, Any]) -> Reason | None:
    is_rejected = STATES.get(str(found.get("approvalStatus"))) is Kind.REJECTED
    return NOT_APPROVED if is_rejected and not is_voided(found) else None
