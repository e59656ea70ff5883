"""Why an order is rejected, in words that are the same for every POS."""

from enum import StrEnum

from pos_gateway.domain.outcome import Kind, Outcome, Reason


class Rejection(StrEnum):
    """The reason's code in an event. The POS's own words are in its message."""

    ITEM_UNAVAILABLE = "item_unavailable"  # something in it cannot be had, at present or ever
    STORE_CLOSED = "store_closed"  # the merchant takes no orders at present
    PRICE_MISMATCH = "price_mismatch"  # its prices are not the POS's, or do not add up
    INVALID_ORDER = "invalid_order"  # the POS cannot take an order of this form
    DUPLICATE = "duplicate"  # the POS has another order by this id
    PAYMENT_REQUIRED = "payment_required"  # the payment is missing or refused
    UNKNOWN_ORDER = "unknown_order"  # to be cancelled, and the POS never heard of it
    OTHER = "other"  # see the message


def rejected(why: Rejection, message: object) -> Outcome:
    """The POS has decided against the order, or we have on its behalf, before it was sent."""
    return Outcome(Kind.REJECTED, Reason.of(why, message))
