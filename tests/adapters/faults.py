"""Faults in the verification of callbacks and in the price of an order, each with the test that must find it.

``python -m tests.adapters.faults`` tries them.
"""

from tests.planting import Fault, try_all

SIGNATURES, TOAST, CREATE = "adapters/signatures", "adapters/toast", "adapters/toast_create"

FAULTS = [
    Fault(
        "a callback is signed",
        SIGNATURES,
        "    return any(compared)\n\n\ndef is_key",
        "    return bool(compared)\n\n\ndef is_key",
        "callbacks::another_key or altered",
    ),
    Fault(
        "a callback may have either key",
        SIGNATURES,
        "    return any(compared)\n\n\ndef is_key",
        "    return compared[0]\n\n\ndef is_key",
        "callbacks::while_a_key_changes",
    ),
    Fault(
        "a merchant without a key is called by no POS",
        SIGNATURES,
        "or (_NO_KEY,)",
        'or ("",)',
        "callbacks::without_a_key",
    ),
    Fault(
        "a call that is recorded is of no use after five minutes",
        SIGNATURES,
        "if any(compared) and is_recent else",
        "if any(compared) else",
        "callbacks::after_five_minutes or whole_number",
    ),
    Fault(
        "Square signs its URL",
        "adapters/square",
        "merchant, request.url.encode(), request.body)",
        "merchant, request.body)",
        "callbacks::square_signs",
    ),
    Fault(
        "Toast signs its time",
        TOAST,
        "merchant, request.body, ends=times)",
        "merchant, request.body)",
        "callbacks::calls_time_is_found",
    ),
    Fault(
        "an order with another total at Clover is not accepted",
        "adapters/clover",
        "        if reason is None:\n            return known",
        "        if True:\n            return known",
        "clover::taxes_is_deleted or clover::never_accepted",
    ),
    Fault(
        "a deletion that was not sent is no order that was not sent",
        "adapters/clover",
        "after_refusal(lambda: _deleted(known, merchant, send))",
        "_deleted(known, merchant, send)",
        "clover::deletion_that_is_not_sent",
    ),
    Fault(
        "a note that was lost at Clover is not an order that was",
        "adapters/clover",
        "total <= order.total * _MOST_TAX",
        "total <= order.total",
        "clover::note_was_lost",
    ),
    Fault(
        "a total without tax is not Toast's",
        "adapters/toast_state",
        "lines.mispriced(order, total)",
        "lines.mispriced(order, net)",
        "toast::only_before_tax",
    ),
    Fault(
        "an order that turned out otherwise at Toast is not accepted",
        CREATE,
        "    if reason is None:\n        return known",
        "    if True:\n        return known",
        "toast::turns_out_otherwise",
    ),
    Fault(
        "an order that Toast shows unpaid is not accepted",
        "adapters/toast_state",
        'return False if said <= {*_PAID, "OPEN"} else None',
        "return True",
        "toast::turns_out_otherwise or toast::nothing_known",
    ),
    Fault(
        "an order without its total at Toast is not accepted",
        CREATE,
        "if total is None or is_settled is None:",
        "if is_settled is None:",
        "conformance::each_state",
    ),
    Fault(
        "an order whose double Toast refuses is not refused",
        CREATE,
        "if refusal.status == 409 or _DOUBLE.search(words):",
        "if refusal.status == 409:",
        "toast::refused_order_is_looked_up",
    ),
    Fault(
        "a delivery is made at an address alone",
        "adapters/toast_dining",
        '    elif type_ == "delivery":',
        "    elif False:",
        "toast::delivery_is_refused or further_fields::delivery",
    ),
    Fault(
        "a modifier's modifiers are in the order's price",
        "adapters/lines",
        "return modifier.price if isinstance(modifier, DeepModifier) else modifier.unit_price",
        "return modifier.unit_price",
        "toast_truth::cooked_as_it_was_ordered",
    ),
    Fault(
        "a voiding that was not sent is no order that was not sent",
        CREATE,
        "after_refusal(lambda: _voided(known, order, merchant, send))",
        "_voided(known, order, merchant, send)",
        "toast::voiding_that_is_not_sent",
    ),
    Fault(
        "a modifier has its item's quantity at Toast",
        "adapters/toast_order",
        '"optionGroup"), "quantity": quantity}',
        '"optionGroup"), "quantity": modifier.quantity}',
        "toast::has_its_items_quantity",
    ),
    Fault(
        "a paid order is not completed by that",
        "adapters/toast_state",
        "    by_order = _STAGES.get(status)",
        '    by_order = Lifecycle.COMPLETED if found.get("closedDate") else _STAGES.get(status)',
        "callbacks::not_completed_by_that",
    ),
    Fault(
        "Clover's deletions alone are cancellations",
        "adapters/clover",
        'each.get("type") != "DELETE"',
        "False",
        "callbacks::several_things",
    ),
    Fault(
        "an order of another location is not ours",
        "adapters/square_search",
        ' or found.get("location_id") != merchant.pos["location_id"]:',
        ":",
        "square::another_location",
    ),
    Fault(
        "an order at another price than Square's is not accepted",
        "adapters/square_steps",
        "if reason := mispriced(order, amount, currency) or (",
        "if reason := (",
        "square_total::both_totals",
    ),
    Fault(
        "an order is rejected for its price once it is cancelled at Square",
        "adapters/square_undo",
        "        return by_status(reply, LIMITS.unprocessed)",
        "        return stopped",
        "square_total::fails_or_is_lost",
    ),
    Fault(
        "an order that the shop has begun with is not cancelled at Square, whatever reply is old",
        "adapters/square_undo",
        "!= order.total and has_begun(found):",
        "!= order.total and False:",
        "square_total::begun_with",
    ),
    Fault(
        "an order is accepted at Square once it is paid",
        "adapters/square_steps",
        "facts=facts) if is_settled else None",
        "facts=facts)",
        "square_truth::paid_once",
    ),
    Fault(
        "an order that no POS shows is not paid",
        "adapters/square_steps",
        " or (None if fulfilling(found) else _UNSEEN)",
        "",
        "square_truth::without_a_fulfillment",
    ),
    Fault(
        "a cancelled order's payment is refunded at Square",
        "adapters/square_undo",
        "after_refusal(lambda: _refunded(payments, order, merchant, send)) or outcome",
        "outcome",
        "square_truth::stopped_and_refunded",
    ),
    Fault(
        "money that the shop took is not refunded",
        "adapters/square_undo",
        'payment.get("source_type") != "EXTERNAL" or ',
        "",
        "square_truth::took_money",
    ),
    Fault(
        "an order is not cancelled at Square until its refund is recorded",
        "adapters/square_undo",
        "return replace(outcome, kind=Kind.IN_DOUBT)",
        "return None",
        "square_truth::recorded_later",
    ),
    Fault(
        "an order in preparation is not voided at Toast for its price",
        CREATE,
        "if not is_new and stage(found) is not None:",
        'if not is_new and stage(found) not in (None, "preparing"):',
        "toast::begun_with",
    ),
    Fault(
        "an order that the shop has changed is not deleted at Clover for its price",
        "adapters/clover",
        " or _is_edited(found)",
        "",
        "clover::shop_has_changed",
    ),
]


if __name__ == "__main__":
    try_all(FAULTS, "adapters")
