"""Finds an order at Toast, by Toast's id if known, else by the external identifier.

Source: "External identifiers" on doc.toasttab.com. Toast refuses a second order with the same external
identifier. How soon a new order is found by the identifier is not documented: a look-up is believed once
the longest reply has passed.
"""

from datetime import datetime, timedelta
from typing import Any

from pos_gateway.adapters.marks import the_only
from pos_gateway.adapters.replies import in_doubt, is_absent, json_object, no_answer
from pos_gateway.adapters.toast_api import asking
from pos_gateway.adapters.toast_order import external_id, unmarked
from pos_gateway.adapters.toast_state import amounts
from pos_gateway.adapters.window import windows
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.order import Order
from pos_gateway.domain.outcome import Outcome
from pos_gateway.transport.exchange import Reply, Send

#: Clock skew between Toast, the backend and us in the time of an order that names no merchant.
_SKEW = timedelta(hours=1)


def find(order: Order, merchant: Merchant, send: Send) -> dict[str, Any] | Outcome | None:
    """The order as Toast has it; None if Toast does not know it; an Outcome if that is in doubt.

    The release before has sent it with a mark that names no merchant.
    """
    for name in filter(None, (order.external_id, external_id(order, merchant))):
        reply = send(asking(name, merchant))
        if not is_absent(reply):
            return no_answer(reply) if reply.status != 200 else answered(reply, order, merchant)
    reply = send(asking(unmarked(order, merchant), merchant))
    if reply.status != 200:
        return None if is_absent(reply) else no_answer(reply)
    found = answered(reply, order, merchant)
    if isinstance(found, Outcome) or not _in_its_time(found, order):
        return found if isinstance(found, Outcome) else None
    known = amounts(found)
    return the_only([found], lambda _: known == (None, None) or order.total in known)


def answered(reply: Reply, order: Order, merchant: Merchant) -> dict[str, Any] | Outcome:
    """The order in a 200; in doubt if the reply has none, or another one."""
    found = json_object(reply)
    if found is None:
        return in_doubt("a 200 whose body is not a JSON object")
    if found.get("externalId") not in (external_id(order, merchant), unmarked(order, merchant)):
        return in_doubt("the reply is about another order")
    return found


def _in_its_time(found: dict[str, Any], order: Order) -> bool:
    """Whether it was created when ours may have been; also if it does not say when."""
    try:
        created = datetime.fromisoformat(str(found.get("createdDate")))
    except ValueError:
        return True
    times = windows(order, _SKEW) if created.tzinfo else []
    return not times or any(since <= created <= until for since, until in times)
