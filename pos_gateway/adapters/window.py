"""When an order may have been created at its POS, for look-ups by time."""

from datetime import datetime, timedelta

from pos_gateway.domain.order import Order


def windows(order: Order, skew: timedelta) -> list[tuple[datetime, datetime]]:
    """The time windows to search, widened by ``skew``, within the calendar's range.

    For an order placed long before the ledger recorded it, the time since then comes first: nothing
    was sent earlier. The earlier time is searched too, since the ledger may have been restored.
    Some backends put ``deliver_by`` at the end of the year 9999 for "never".
    """
    known = order.known_since
    placed = order.placed_at if known is None else min(order.placed_at, known)
    since, until = _moved(placed, -skew), _moved(order.sent_until, skew)
    heard = since if known is None else _moved(known, -skew)
    return [(heard, until), (since, heard)] if placed < heard < until else [(since, until)]


def _moved(moment: datetime, by: timedelta) -> datetime:
    try:
        return moment + by
    except OverflowError:
        return moment
