"""What an order at Square is: made, paid, in the kitchen, given up.

Sources, on developer.squareup.com: the objects Order, Tender, OrderState and FulfillmentState; "Pay for
Orders", "Fulfillments". A POS shows an order that has a fulfillment and is paid. The order stays OPEN
then, until the shop has completed the fulfillment.
"""

from dataclasses import replace
from typing import Any

from pos_gateway.adapters.rejection import Rejection
from pos_gateway.adapters.replies import decision
from pos_gateway.adapters.signatures import inside
from pos_gateway.domain.outcome import Kind, Outcome, Reason

#: OrderState, without DRAFT: no order is created as one here.
_STATES = {"OPEN": Kind.ACCEPTED, "COMPLETED": Kind.ACCEPTED, "CANCELED": Kind.CANCELLED}
#: FulfillmentState: without a fulfillment in another state nothing is made.
_GIVEN_UP = {"CANCELED", "FAILED"}
#: The shop has not begun.
_WAITING = {"PROPOSED", *_GIVEN_UP}
FAILED = Reason(Rejection.OTHER, "the fulfillment has failed at Square: it was not completed")
_CANCELLED = Reason(Rejection.OTHER, "the fulfillment was cancelled at Square")


def standing(found: dict[str, Any]) -> Outcome:
    """The outcome of an order's state, paid or not: ACCEPTED, CANCELLED, or in doubt.

    REJECTED: the shop has given up the order, and the order's payment has not been refunded.
    """
    outcome, states = decision(_STATES, found.get("state"), found.get("id")), fulfilling(found)
    if outcome.kind is not Kind.ACCEPTED or not states or not states <= _GIVEN_UP:
        return outcome
    kind = Kind.REJECTED if tenders(found) and not found.get("refunds") else Kind.CANCELLED
    return replace(outcome, kind=kind, reason=FAILED if "FAILED" in states else _CANCELLED)


def is_given_up(found: dict[str, Any]) -> bool:
    """Whether the order is cancelled, or the kitchen has no fulfillment to make."""
    return standing(found).kind in (Kind.CANCELLED, Kind.REJECTED)


def has_begun(found: dict[str, Any]) -> bool:
    """Whether the shop has begun with the order."""
    return found.get("state") != "OPEN" or bool(fulfilling(found) - _WAITING)


def is_over(found: dict[str, Any]) -> bool:
    """Whether the guest has the order: nothing can be cancelled."""
    return found.get("state") == "COMPLETED" or "COMPLETED" in fulfilling(found)


def is_paid(found: dict[str, Any]) -> bool | None:
    """Whether nothing is due; None: the order does not say.

    An order of 0 shows no payment: its fulfillment does, as soon as the shop has begun.
    """
    if found.get("state") == "COMPLETED":
        return True
    due, paid = inside(found, "net_amount_due_money").get("amount"), bool(tenders(found))
    if type(due) is not int:
        return None if paid else False
    return due == 0 and (paid or has_begun(found))


def tenders(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The order's payments."""
    return _listed(found, "tenders")


def payment_id(tender: dict[str, Any]) -> str:
    """The payment of a tender: ``payment_id``, or ``id``, which is the same."""
    return str(tender.get("payment_id") or tender.get("id"))


def open_fulfillments(found: dict[str, Any]) -> list[object]:
    """Ids of the fulfillments that can be cancelled."""
    open_ones = [each for each in _listed(found, "fulfillments") if not _is_ended(each)]
    return [each.get("uid") for each in open_ones]


def fulfilling(found: dict[str, Any]) -> set[str]:
    """The states of the order's fulfillments."""
    return {str(each.get("state")) for each in _listed(found, "fulfillments")}


def _is_ended(fulfillment: dict[str, Any]) -> bool:
    return fulfillment.get("state") in (*_GIVEN_UP, "COMPLETED")


def _listed(found: dict[str, Any], name: str) -> list[dict[str, Any]]:
    listed = found.get(name)
    return [inside(each) for each in listed] if isinstance(listed, list) else []
