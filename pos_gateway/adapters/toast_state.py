"""What an order at Toast is: its standing, how far the kitchen is, what it comes to, whether it is paid.

Sources, on doc.toasttab.com: the orders API reference (Order, Check, Selection), "Orders webhook", "Guest
order fulfillment status webhook".
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

from pos_gateway.adapters import lines
from pos_gateway.adapters.rejection import Rejection
from pos_gateway.adapters.replies import decision
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import CallResult, Kind, Lifecycle, Outcome, Reason

Amount = Decimal | int | None
#: Order.approvalStatus.
STATES: Mapping[str, Kind] = {
    "APPROVED": Kind.ACCEPTED,
    "FUTURE": Kind.ACCEPTED,
    "NEEDS_APPROVAL": Kind.PENDING,
    "NOT_APPROVED": Kind.REJECTED,
}
#: Order.guestOrderStatus, beside RECEIVED and VOIDED.
_STAGES = {
    "IN_PREPARATION": Lifecycle.PREPARING,
    "READY_FOR_PICKUP": Lifecycle.READY,
    "CLOSED": Lifecycle.COMPLETED,
}
#: Check.paymentStatus of a check of which nothing is due. Another payment than a card's makes it CLOSED.
_PAID = frozenset({"PAID", "CLOSED"})
#: Most cents of an amount: Toast's JSON may have numbers of thousands of digits, and infinite ones.
_LARGEST = 10**15
NOT_APPROVED = Reason(Rejection.OTHER, "the restaurant did not approve the order")
COMBINED = Reason(
    Rejection.OTHER,
    "the restaurant has combined the order with another, or removed it: ask there whether its food is made",
)


def standing(found: dict[str, Any]) -> Outcome:
    """The outcome by the order's states alone, whatever the order comes to.

    In doubt, for an operator, if the order's check is a part of another order: the kitchen may make it.
    """
    known = decision(STATES, found.get("approvalStatus"), found.get("guid"))
    if known.kind is Kind.IN_DOUBT:
        return known
    if is_voided(found):
        return replace(known, kind=Kind.CANCELLED)
    if is_combined(found):
        doubt = known.after(CallResult.ANSWERED)
        return replace(doubt, kind=Kind.IN_DOUBT, reason=COMBINED, for_operator=True)
    return replace(known, reason=NOT_APPROVED) if known.kind is Kind.REJECTED else known


def is_voided(found: dict[str, Any]) -> bool:
    return found.get("voided") is True or found.get("guestOrderStatus") == "VOIDED"


def is_combined(found: dict[str, Any]) -> bool:
    """Whether the order is ``deleted`` and not voided: its check was combined into another order."""
    is_over = is_voided(found) or STATES.get(str(found.get("approvalStatus"))) is Kind.REJECTED
    return found.get("deleted") is True and not is_over


def stage(found: dict[str, Any]) -> Lifecycle | None:
    """How far the kitchen is: by the order's own status, or by those of its items.

    An order's and a check's ``closedDate`` say when they were paid.
    """
    status = str(found.get("guestOrderStatus"))
    items = set(_fulfillments(found))
    by_items = None
    if items and items <= {"READY"}:
        by_items = Lifecycle.READY
    elif items & {"SENT", "READY"}:
        by_items = Lifecycle.PREPARING
    by_order = _STAGES.get(status)
    if by_order is None or by_items is None:
        return by_order or by_items
    return by_items if by_items.is_after(by_order) else by_order


def _fulfillments(found: dict[str, Any]) -> Iterator[str]:
    """The ``fulfillmentStatus`` of each item that is not voided."""
    for check in _checks(found):
        for item in _objects(check.get("selections")):
            if item.get("voided") is not True and check.get("voided") is not True:
                yield str(item.get("fulfillmentStatus"))


def amounts(found: dict[str, Any]) -> tuple[Amount, Amount]:
    """What the order's checks come to in minor units, before tax and with tax; None: unknown."""
    checks = _checks(found)
    if not checks or len(_objects(found["checks"])) < len(found["checks"]):
        return None, None
    net, total = (_sum(each.get(name) for each in checks) for name in ("amount", "totalAmount"))
    return net, total


def _sum(dollars: Iterable[object]) -> Amount:
    total = Decimal(0)
    for each in dollars:
        if isinstance(each, bool) or not isinstance(each, int | float):
            return None
        cents = Decimal(str(each)) * 100
        if not cents.is_finite() or abs(cents) > _LARGEST:
            return None
        total += cents
    return int(total) if total == total.to_integral_value() else total


def mispriced(net: Amount, total: Amount, order: Order) -> Reason | None:
    """Why amounts, before tax and with tax, are not the order's total; None: they are."""
    reason = lines.mispriced(order, total)
    if reason is None or net == total:
        return reason
    return Reason.of(reason.code, f"{reason.message}; before tax the POS's is {net}")


def is_paid(found: dict[str, Any], order: Order, merchant: Merchant) -> bool | None:
    """Whether nothing is due; None: the order does not say.

    Of a merchant without ``payment`` in ``pos`` staff collects what is due.
    """
    if "payment" not in merchant.pos or not (order.total or order.tip):
        return True
    said = {str(each.get("paymentStatus")) for each in _checks(found)}
    if said <= _PAID:
        return bool(said) or None
    return False if said <= {*_PAID, "OPEN"} else None


def owes(found: dict[str, Any]) -> bool:
    """Whether a payment is missing, or is not the check's total, so that a look-up must judge the order.

    Also where staff collects: the check's total may be another one than the order's.
    """
    return any(map(_owes, _checks(found)))


def _owes(check: dict[str, Any]) -> bool:
    listed, total = _objects(check.get("payments")), _sum([check.get("totalAmount")])
    if check.get("paymentStatus") == "OPEN":
        return total != 0
    paid = _sum(each.get("amount") for each in listed if not each.get("voidInfo"))
    return bool(listed) and (paid is None or paid != total)


def _checks(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The order's checks, but for deleted ones: of two checks combined by staff, one is deleted with its amounts."""
    return [each for each in _objects(found.get("checks")) if each.get("deleted") is not True]


def _objects(found: Any) -> list[dict[str, Any]]:
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
