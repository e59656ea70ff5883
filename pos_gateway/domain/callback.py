"""A callback: what a POS says by itself about one of its orders, as its adapter has read it."""

from collections.abc import Iterable
from dataclasses import dataclass

from pos_gateway.domain.errors import FieldError, InvalidCallback
from pos_gateway.domain.outcome import Kind, Lifecycle, Reason


@dataclass(frozen=True, slots=True)
class Callback:
    """One thing that a POS says about one order. Its signature was verified."""

    #: The POS's id of this message: the same one comes again until it is answered.
    event_id: str
    #: ACCEPTED, REJECTED or CANCELLED: the POS's decision; or how far an accepted order is.
    meaning: Kind | Lifecycle
    #: Our order id, if the message has it; else the order is found by ``external_id``.
    order_id: str | None = None
    #: The POS's id of the order.
    external_id: str | None = None
    #: When, by the POS's clock (Unix time).
    occurred_at: float | None = None
    #: Why, in the POS's words.
    reason: Reason | None = None
    #: The field of a merchant's ``pos``, and its value, of the merchants that it may be about: a
    #: vendor's application has one URL for all of them. None: of the URL's merchant alone.
    account: tuple[str, str] | None = None
    #: Whether it is about an accepted order alone: of an open one a look-up has to judge.
    only_accepted: bool = False


def require_text(callbacks: Iterable[Callback]) -> None:
    """Raise InvalidCallback if ids or accounts are not printable: no order and no merchant has such.

    A database refuses some (NUL, half of a surrogate pair), and with them a whole transaction.
    """
    errors = []
    for each in callbacks:
        named = {"order_id": each.order_id, "external_id": each.external_id}
        if each.account is not None:
            named["account"] = "".join(each.account)
        for name, value in named.items():
            if value is not None and not value.isprintable():
                errors.append(FieldError(name, "should be printable text"))
    if errors:
        raise InvalidCallback(errors)
