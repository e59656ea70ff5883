"""When an order may have been made at its POS, for those that are looked through by time."""

from datetime import datetime, timedelta

from pos_gateway.domain.order import Order


def windows(order: Order, skew: timedelta) -> list[tuple[datetime, datetime]]:
    """From when to when, with so much for clocks that differ, as far as there is a calendar.

    An order that was placed long before the ledger heard of it is looked for from then on first, since
    nothing was sent earlier. Only what is found there is believed: the ledger may have been restored.
    A ``deliver_by`` at the end of the year 9999 is how some say that there is none.
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
