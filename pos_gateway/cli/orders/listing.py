"""``pos-gateway orders list``."""

from datetime import timedelta
from typing import Any

import click

from pos_gateway.cli import output
from pos_gateway.cli.counts import LIMIT
from pos_gateway.cli.database import desk
from pos_gateway.cli.moments import Length, shown
from pos_gateway.ledger.order_admin import OrderStanding
from pos_gateway.ledger.states import State

_STYLES = {
    State.ACCEPTED: "green",
    State.REJECTED: "red",
    State.FAILED: "bold red",
    State.EXPIRED: "yellow",
    State.CANCELLED: "yellow",
    State.PENDING: "cyan",
    State.IN_DOUBT: "bold magenta",
}
#: Headings narrow enough for a terminal.
_COLUMNS = {
    "ORDER": "order_id",
    "MERCHANT": "merchant_id",
    "STATE": "state",
    "CANCEL": "cancellation",
    "ATTEMPTS": "attempts",
    "REASON": "reason",
    "POS_ID": "external_id",
    "SINCE": "updated_at",
    "DELIVER_BY": "deliver_by",
}


@click.command("list")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([state.value for state in State]),
    help="Only those in this state; repeatable.",
)
@click.option("--merchant", "merchant_id", metavar="ID", help="Only this merchant's.")
@click.option("--order", "order_id", metavar="ID", help="Only this order, whosever it is.")
@click.option("--older-than", type=Length(), metavar="LENGTH", help="Nothing happened since: 10m.")
@click.option("--newer-than", type=Length(), metavar="LENGTH", help="Something happened since: 1h.")
@click.option(
    "--limit",
    type=LIMIT,
    default=100,
    show_default=True,
    metavar="N",
    help="At most N of them.",
)
@click.option("--json", "as_json", is_flag=True, help="JSON Lines.")
def list_(
    states: tuple[str, ...],
    merchant_id: str | None,
    order_id: str | None,
    older_than: timedelta | None,
    newer_than: timedelta | None,
    limit: int,
    as_json: bool,
) -> None:
    """List orders and their state, the most recently changed first.

    CANCEL is the state of the order's cancel request. A rejection's reason is in the POS's own
    words, which may repeat the customer's: orders show has it.

    \b
    Examples:
      pos-gateway orders list --state in_doubt
      pos-gateway orders list --state new --older-than 10m --merchant m1
      pos-gateway orders list --state failed --newer-than 1h --json | jq -r .order_id
    """
    with desk() as ledger:
        found = ledger.orders(
            states=[State(each) for each in states],
            merchant_id=merchant_id,
            order_id=order_id,
            older_than=older_than.total_seconds() if older_than else None,
            newer_than=newer_than.total_seconds() if newer_than else None,
            limit=limit + 1,
        )
    records = [summary(each) for each in found[:limit]]
    if as_json:
        for record in records:
            output.json_line(record)
    else:
        rows = [[record[name] for name in _COLUMNS.values()] for record in records]
        output.table(tuple(_COLUMNS), rows, style=lambda row: _STYLES.get(State(str(row[2])), ""))
    if len(found) > limit:
        output.notice(f"there are more than these {limit}; --limit N shows N")


def summary(order: OrderStanding) -> dict[str, Any]:
    """An order's data without its content, which may be shown to any operator."""
    told = order.state is not State.REJECTED
    return {
        "order_id": order.order_id,
        "merchant_id": order.merchant_id,
        "state": order.state.value,
        "cancellation": order.cancellation.value if order.cancellation else None,
        "attempts": order.attempts,
        "reason": order.reason_code if told else None,
        "external_id": order.external_id,
        "held_by": order.owner,
        "in_doubt_since": shown(order.doubt_since),
        "deliver_by": shown(order.deliver_by),
        "created_at": shown(order.created_at),
        "updated_at": shown(order.updated_at),
        "reopened": order.reopened,
    }
