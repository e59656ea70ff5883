"""Finds an order by an id that several merchants may use."""

from pos_gateway.cli.failure import Failure
from pos_gateway.ledger.order_admin import OrderAdmin, OrderStanding

#: Maximum merchants named when several have the id.
_NAMED = 10


def the_order(ledger: OrderAdmin, order_id: str, merchant_id: str | None) -> OrderStanding:
    """Raises Failure if there is none, or if several merchants have one."""
    found = ledger.orders(order_id=order_id, merchant_id=merchant_id, limit=_NAMED + 1)
    if not found:
        whose = f" of merchant {merchant_id!r}" if merchant_id else ""
        raise Failure(f"the ledger knows no order {order_id!r}{whose}")
    if len(found) > 1:
        whose = ", ".join(each.merchant_id for each in found[:_NAMED])
        more = ", …" if len(found) > _NAMED else ""
        raise Failure(
            f"several merchants have an order {order_id!r}: {whose}{more}; "
            "say which with --merchant ID"
        )
    return found[0]
