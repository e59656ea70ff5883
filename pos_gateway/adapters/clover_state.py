"""The state of an order at Clover: there, paid, on paper, begun.

Sources, on docs.clover.com: "Manage orders data", "Print orders with the REST API"; the model of an Order in
Clover's Android SDK, and of a Payment there.
"""

from typing import Any

from pos_gateway.adapters.clover_api import listed
from pos_gateway.adapters.replies import decision
from pos_gateway.domain.outcome import Kind, Outcome

_OPEN = "open"
_STATES = {_OPEN: Kind.ACCEPTED, "locked": Kind.ACCEPTED, "paid": Kind.ACCEPTED}
#: Milliseconds after the creation for which Clover may still write an order.
_MAKING = 10_000
_PAID = "SUCCESS"
#: Results of payments that took no money, in the SDK's model of a Payment. Any other may still take money.
_UNPAID = ("FAIL", "VOIDED")


def standing(found: dict[str, Any]) -> Outcome:
    """The outcome of an order's state, paid or not: ACCEPTED, CANCELLED, or in doubt."""
    if found.get("deletedTime"):
        return decision({"deleted": Kind.CANCELLED}, "deleted", found.get("id"))
    return decision(_STATES, _state(found), found.get("id"))


def payments(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The order's payments that took money, or may, if the request has expanded the list."""
    return [each for each in listed(found, "payments") if _result(each) not in _UNPAID]


def amount_paid(found: dict[str, Any]) -> int:
    """The sum of the order's payments that took money."""
    taken = [each.get("amount") for each in payments(found) if _result(each) == _PAID]
    return sum(each for each in taken if type(each) is int)


def is_open(found: dict[str, Any]) -> bool:
    """Whether the order can be paid: Clover locks a paid order."""
    return _state(found) == _OPEN


def is_printed(found: dict[str, Any]) -> bool:
    """Whether the whole order is on paper. Clover shows a hundred lines, and prints all at once."""
    lines = listed(found, "lineItems")
    return bool(lines) and all(each.get("printed") is True for each in lines)


def is_on_paper(found: dict[str, Any]) -> bool:
    """Whether any line of the order is on paper."""
    return any(each.get("printed") is True for each in listed(found, "lineItems"))


def has_begun(found: dict[str, Any]) -> bool:
    """Whether the shop has begun with the order, or changed the order since the creation."""
    made, last = found.get("createdTime"), found.get("modifiedTime")
    is_edited = type(made) is int and type(last) is int and last - made > _MAKING
    return not is_open(found) or is_edited or bool(payments(found)) or is_on_paper(found)


def _result(payment: dict[str, Any]) -> str:
    return "VOIDED" if payment.get("voided") is True else str(payment.get("result", _PAID)).upper()


def _state(found: dict[str, Any]) -> str:
    """In lower case: the documentation has both cases."""
    return str(found.get("state")).lower()
