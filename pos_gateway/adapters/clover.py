"""Clover's REST API v3, atomic orders. Built to Clover's public documentation, not certified.

An order is previewed, made, paid, printed, and accepted once the ticket is out (``clover_steps.py``). An item in
the merchant's catalog is sent as an inventory item, and its modifiers as inventory modifiers, at our
prices. Any other item is ad hoc: a name and a price.

Source of the callbacks, on docs.clover.com: "Use webhooks".
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from pos_gateway.adapters import clover_items, clover_location, clover_order
from pos_gateway.adapters.adapted import Adapted
from pos_gateway.adapters.clover_api import LIMITS
from pos_gateway.adapters.clover_search import deleted
from pos_gateway.adapters.clover_steps import (
    ask_to_print,
    create,
    created,
    paid,
    pay,
    printed,
)
from pos_gateway.adapters.clover_undo import undo, unprint
from pos_gateway.adapters.lines import time_problems
from pos_gateway.adapters.location import CLOSED_AS
from pos_gateway.adapters.polls import POLL, Page, Window, callbacks_of, said_in
from pos_gateway.adapters.pos_fields import PosField, problems
from pos_gateway.adapters.pos_items import PosItem
from pos_gateway.adapters.protocol import CallbackRequest, Guarantee
from pos_gateway.adapters.signatures import is_key, said
from pos_gateway.adapters.steps import COVERED, Step
from pos_gateway.domain.callback import Callback
from pos_gateway.domain.errors import FieldError
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Kind
from pos_gateway.domain.record import identifier
from pos_gateway.transport.exchange import Send

FIELDS = {
    "merchant_id": PosField("the Clover merchant's id (mId)", r"[A-Za-z0-9]{1,64}"),
    **clover_order.FIELDS,
    "tender": PosField(
        "the id of the tender for payments taken elsewhere; else external_payment is looked for",
        r"[A-Za-z0-9]{1,64}",
        required=False,
        names_pos=False,
    ),
    "closed_as": CLOSED_AS,
    "poll": POLL,
}

_CODE = re.compile(rb'\{\s*"verificationCode"\s*:\s*"([A-Za-z0-9-]{1,64})"\s*\}')


class CloverAdapter:
    """Create, pay, print, which is pending until the ticket is out; all queryable. Undone until the order is paid or its ticket asked for."""

    name = "clover"
    pos_fields = FIELDS
    guarantee = Guarantee.QUERYABLE
    limits = LIMITS
    steps: tuple[Step, ...] = (
        Step("create", Guarantee.QUERYABLE, create, created, undo),
        Step("pay", Guarantee.QUERYABLE, pay, paid, COVERED),
        Step("print", Guarantee.QUERYABLE, ask_to_print, printed, unprint),
    )

    def check(self, merchant: Merchant) -> list[FieldError]:
        return problems(merchant, FIELDS, self.limits) + time_problems(merchant)

    def adapted(self, order: Order, merchant: Merchant) -> Iterator[Adapted]:
        return clover_order.adapted(order, merchant)

    def location(self, merchant: Merchant, send: Send) -> Sequence[str]:
        return clover_location.described(merchant, send)

    def items(self, merchant: Merchant, send: Send) -> Iterator[Sequence[PosItem]]:
        return clover_items.items(merchant, send)

    def callbacks(self, request: CallbackRequest, merchant: Merchant) -> Sequence[Callback] | None:
        """Clover signs nothing: it sends the app's auth code, and says only what has changed.

        An order that was deleted is cancelled. Anything else is left to look-ups.
        """
        given = request.headers.get("x-clover-auth", "")
        return list(_callbacks(said(request.body))) if is_key(given, merchant) else None

    def changes(self, window: Window, merchant: Merchant, send: Send) -> Iterator[Page]:
        """The orders that were deleted, as in callbacks: Clover has no states of the kitchen."""

        def say(found: dict[str, Any]) -> list[Callback]:
            at = _moment(found.get("deletedTime"))  # missing where Clover ignores the filter
            return callbacks_of(identifier(found.get("id")), Kind.CANCELLED, at) if at else []

        return said_in(deleted(window.since, window.until, merchant, send), say)

    def verification_code(self, body: bytes) -> str | None:
        """The code that Clover sends, without its auth code, when a URL is entered."""
        code = _CODE.fullmatch(body.strip())
        return code[1].decode() if code else None


def _callbacks(message: dict[str, Any]) -> Iterator[Callback]:
    """The deletions of orders in a message, which may be about any of the app's merchants."""
    merchants = message.get("merchants")
    for known_as, updates in merchants.items() if isinstance(merchants, dict) else ():
        for each in updates if isinstance(updates, list) else ():
            if not isinstance(each, dict) or each.get("type") != "DELETE":
                continue
            what, _, order_id = str(each.get("objectId")).partition(":")
            if what != "O" or identifier(order_id) is None:
                continue
            at = each.get("ts")
            yield Callback(
                f"{known_as}:{order_id}:{at}",
                Kind.CANCELLED,
                external_id=order_id,
                occurred_at=_moment(at),
                account=("merchant_id", known_as),
            )


def _moment(milliseconds: object) -> float | None:
    """Unix time; None: no time of Clover's."""
    if isinstance(milliseconds, int) and 0 <= milliseconds < 10**14:
        return milliseconds / 1000
    return None
