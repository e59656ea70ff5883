"""Reasons to reject an order, the same for every POS."""

from enum import StrEnum

from pos_gateway.domain.outcome import Kind, Outcome, Reason


class Rejection(StrEnum):
    """The reason code in an event. The POS's own words are in its message."""

    ITEM_UNAVAILABLE = "item_unavailable"  # an item or modifier is not available, now or ever
    STORE_CLOSED = "store_closed"  # the merchant takes no orders now
    PRICE_MISMATCH = "price_mismatch"  # its prices are not the POS's, or do not add up
    INVALID_ORDER = "invalid_order"  # the POS cannot take an order of this form
    DUPLICATE = "duplicate"  # the POS has another order with this id
    PAYMENT_REQUIRED = "payment_required"  # the payment is missing or refused
    UNKNOWN_ORDER = "unknown_order"  # cancel request for an order that the POS does not know
    OTHER = "other"  # see the message


def rejected(why: Rejection, message: object) -> Outcome:
    """A rejection by the POS, or by us before anything was sent."""
    return Outcome(Kind.REJECTED, Reason.of(why, message))
