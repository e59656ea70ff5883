"""CreatePayment, GetPayment, CancelPayment, RefundPayment, PayOrder.

*Document*: payments from outside Square are EXTERNAL or CASH, each with details; the amount, without
the tip, is the amount due on the order; an order of 0 is paid by PayOrder without payments; only an
APPROVED payment is cancelled; refunds never exceed their payment. *Judgement*: these payments and
refunds are COMPLETED at once.
"""

from collections.abc import Mapping
from copy import deepcopy

from testkit.vendors.square.access import moment
from testkit.vendors.square.refusals import Refused
from testkit.vendors.square.seller import Json, Kept, Seller


def create_payment(seller: Seller, given: Json) -> Json:
    """Record a payment, usually of an order."""
    source, money = given["source_id"], given["amount_money"]
    details = {"EXTERNAL": "external_details", "CASH": "cash_details"}.get(source)
    if details is None:
        raise Refused(
            "UNSUPPORTED_SOURCE_TYPE", "only EXTERNAL and CASH are simulated", "source_id"
        )
    if not given.get(details):
        raise Refused("MISSING_REQUIRED_PARAMETER", f"is required for {source}", details)
    if given.get("autocomplete") is False:
        raise Refused("BAD_REQUEST", f"{source} cannot be captured later", "autocomplete")
    if given.get("location_id") not in (None, seller.location_id):
        raise Refused("LOCATION_MISMATCH", "no such location", "location_id")
    tip = given.get("tip_money") or {"amount": 0, "currency": seller.currency}
    for name, each in (("amount_money", money), ("tip_money", tip)):
        if each["currency"] != seller.currency:
            raise Refused("CURRENCY_MISMATCH", f"the seller's is {seller.currency}", name)
    if not money["amount"]:
        raise Refused("VALUE_TOO_LOW", "a payment is above 0: see PayOrder", "amount_money")
    kept = seller.kept(given["order_id"], "order_id") if given.get("order_id") else None
    if kept is not None:
        _check_payable(kept, money["amount"])
    now = moment(seller.clock())
    kept_fields = ("order_id", "reference_id", "note", "external_details", "cash_details")
    payment = {
        **{name: given[name] for name in kept_fields if given.get(name)},
        "id": seller.new_id("payment"),
        "status": "COMPLETED",
        "source_type": source,
        "location_id": seller.location_id,
        "amount_money": money,
        "tip_money": tip,
        "total_money": {**money, "amount": money["amount"] + tip["amount"]},
        "created_at": now,
        "updated_at": now,
    }
    seller.payments[payment["id"]] = payment
    if kept is not None:
        kept.payments.append(payment)
        seller.paid(kept, payment)
    seller.notify_payment(payment)
    return {"payment": deepcopy(payment)}


def _check_payable(kept: Kept, amount: int) -> None:
    due = kept.order["net_amount_due_money"]["amount"]
    if kept.is_paid or kept.order["state"] != "OPEN":
        raise Refused("BAD_REQUEST", "the order is paid, or not OPEN", "order_id")
    if amount != due:
        detail = f"the payment of {amount} does not match the order's due amount, {due}"
        raise Refused("PAYMENT_AMOUNT_MISMATCH", detail, "amount_money")


def pay_order(seller: Seller, known: str, given: Json) -> Json:
    """Settle an order of 0."""
    kept = seller.kept(known)
    if given.get("order_version") not in (None, kept.order["version"]):
        raise Refused("VERSION_MISMATCH", "another version", "order_version")
    if given.get("payment_ids"):
        raise Refused("BAD_REQUEST", "no payment is waiting for its capture", "payment_ids")
    _check_payable(kept, 0)
    seller.paid(kept, None)
    return {"order": deepcopy(kept.order)}


def get_payment(seller: Seller, known: str) -> Json:
    """The payment."""
    return {"payment": deepcopy(_known(seller.payments, known))}


def cancel_payment(seller: Seller, known: str) -> Json:
    """Refuse: no payment here is APPROVED."""
    _known(seller.payments, known)
    raise Refused("BAD_REQUEST", "a COMPLETED payment cannot be canceled: refund it")


def refund_payment(seller: Seller, given: Json) -> Json:
    """Record a refund."""
    if given.get("unlinked") or not given.get("payment_id"):
        raise Refused("MISSING_REQUIRED_PARAMETER", "is required", "payment_id")
    payment, money = _known(seller.payments, given["payment_id"]), given["amount_money"]
    if money["currency"] != seller.currency:
        raise Refused("CURRENCY_MISMATCH", f"the seller's is {seller.currency}", "amount_money")
    refunded = payment.get("refunded_money", {"amount": 0})["amount"] + money["amount"]
    if not money["amount"] or refunded > payment["total_money"]["amount"]:
        raise Refused("REFUND_AMOUNT_INVALID", "more than is left of the payment", "amount_money")
    kept, now = seller.orders.get(payment.get("order_id", "")), moment(seller.clock())
    refund = {
        **{name: given[name] for name in ("payment_id", "reason") if given.get(name)},
        **({"order_id": kept.order["id"]} if kept else {}),
        "id": seller.new_id("refund"),
        "status": "COMPLETED",
        "location_id": seller.location_id,
        "amount_money": money,
        "created_at": now,
        "updated_at": now,
    }
    payment |= {"refunded_money": {**money, "amount": refunded}, "updated_at": now}
    payment.setdefault("refund_ids", []).append(refund["id"])
    seller.refunds[refund["id"]] = refund
    if kept is not None:
        kept.order.setdefault("refunds", []).append(refund)
        seller.changed(kept)
    seller.notify_payment(payment)
    return {"refund": deepcopy(refund)}


def get_payment_refund(seller: Seller, known: str) -> Json:
    """The refund."""
    return {"refund": deepcopy(_known(seller.refunds, known))}


def _known(objects: Mapping[str, Json], known: str) -> Json:
    if known not in objects:
        raise Refused("NOT_FOUND", f"{known} not found.")
    return objects[known]
