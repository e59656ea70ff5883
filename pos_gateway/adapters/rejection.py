"""Reasons to reject an order, the same for every POS."""

from enum import StrEnum

from pos_gateway.domain.outcome import Kind, Outcome, Reason


class Rejection(StrEnum):
    """The reason code in an event. The POS's own words are in its message."""

    ITEM_UNAVAILABLE = "item_unavailable"  # an item or modifier is not available, now or ever
    STORE_CLOSED = "store_closed"  # the merchant takes no orders now
    PRICE_MISMATCH = "price_mismatch"  # its prices are not the POS's, or do not add up
    INVALID_ORDER = "invalid_order"  # the POS cannot take an order of this form
    UNSUPPORTED_FIELD = "unsupported_field"  # a field that the POS's API has no place for
    TEXT_TOO_LONG = "text_too_long"  # a text that the POS would cut
    DUPLICATE = "duplicate"  # the POS has another order with this id
    PAYMENT_REQUIRED = "payment_required"  # the payment is missing or refused
    UNKNOWN_ORDER = "unknown_order"  # cancel request for an order that the POS does not know
    OTHER = "other"  # see the message


def rejected(why: Rejection, message: object) -> Outcome:
    """A rejection by the POS, or by us before anything was sent."""
    return Outcome(Kind.REJECTED, Reason.of(why, message))


class Refused(Exception):
    """Raised while a request is written: the POS cannot take the order. Nothing was sent."""

    def __init__(self, why: Rejection, message: object) -> None:
        super().__init__(message)
        self.outcome = rejected(why, message)
