"""When an order may have been made at its POS, for those that are looked through by time."""

from datetime import datetime, timedelta

from pos_gateway.order import Order


def window(order: Order, skew: timedelta) -> tuple[datetime, datetime]:
    """From when to when, with so much for clocks that differ, as far as there is a calendar.

    A ``deliver_by`` at the end of the year 9999 is how some say that there is none.
    """
    return _moved(order.placed_at, -skew), _moved(order.deliver_by, skew)


def _moved(moment: datetime, by: timedelta) -> datetime:
    try:
        return moment + by
    except OverflowError:
        return moment
