"""``pos-gateway orders show``."""

import json
from typing import Any

import click

from pos_gateway.cli import output
from pos_gateway.cli.database import desk
from pos_gateway.cli.masking import MASK, masked
from pos_gateway.cli.moments import shown
from pos_gateway.cli.orders.finding import the_order
from pos_gateway.cli.orders.listing import summary
from pos_gateway.ledger.order_admin import OrderAdmin, OrderStanding
from pos_gateway.ledger.states import Action, Key, State


@click.command()
@click.argument("order_id", metavar="ORDER_ID")
@click.option("--merchant", "merchant_id", metavar="ID", help="Whose, if several have that id.")
@click.option("--reveal", is_flag=True, help="With the customer, the notes and the POS's words.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def show(order_id: str, merchant_id: str | None, reveal: bool, as_json: bool) -> None:
    """Show all that the ledger has of an order: its state and its cancellation's, the events, what
    operators did, and the order itself.

    \b
    Examples:
      pos-gateway orders show A-1001
      pos-gateway orders show A-1001 --merchant m1 --reveal --json
    """
    with desk() as ledger:
        record = _record(ledger, the_order(ledger, order_id, merchant_id), reveal=reveal)
    if as_json:
        output.json_document(record)
        return
    for part in ("order", "cancellation"):
        if record[part] is not None:
            output.table((part.upper(), "VALUE"), record[part].items())
    for part in ("events", "audit"):
        if record[part]:
            output.table(
                [name.upper() for name in record[part][0]],
                [list(row.values()) for row in record[part]],
            )
    content = record["content"]
    if content:
        output.json_document(content)
    else:
        output.line((record["no_content"], ""))


def _record(ledger: OrderAdmin, order: OrderStanding, *, reveal: bool) -> dict[str, Any]:
    cancellation = ledger.one(Key(order.merchant_id, order.order_id, Action.CANCEL))
    content, why_not = _content(ledger, order, reveal=reveal)
    return {
        "order": _standing(order, reveal=reveal),
        "cancellation": cancellation and _standing(cancellation, reveal=reveal),
        "events": [_event(each, reveal=reveal) for each in ledger.events(order.key)],
        "audit": [
            {
                "at": shown(each["at"]),
                "operator": each["operator"],
                "what": each["what"],
                "details": each["details"],
            }
            for each in ledger.audit(order.key)
        ],
        "content": content,
        "no_content": why_not,
    }


def _content(ledger: OrderAdmin, order: OrderStanding, *, reveal: bool) -> tuple[Any, str | None]:
    """The order itself, or why it cannot be shown."""
    from pos_gateway.domain.order import Order
    from pos_gateway.runtime.vault import CannotOpen

    try:
        order_json = ledger.order_json(order.key)
    except CannotOpen as error:
        return None, f"the order is {error}"
    if order_json is None:
        return None, "the order itself is not kept: it was pruned, or only a cancel request came"
    return (json.loads(order_json) if reveal else masked(Order.parse_json(order_json))), None


def _standing(order: OrderStanding, *, reveal: bool) -> dict[str, Any]:
    words = order.state is State.REJECTED or order.reason_code == "not_cancelled"
    return {
        **summary(order),
        "deaths": order.deaths,
        "told": order.told,
        "reason": order.reason_code if reveal or not words else order.reason_code and MASK,
        "reason_message": order.reason_message if reveal or not words else MASK,
    }


def _event(event: dict[str, Any], *, reveal: bool) -> dict[str, Any]:
    words = event["type"] == "rejected" or event["reason_code"] == "not_cancelled"
    shows = reveal or not words
    return {
        "at": shown(event["occurred_at"]),
        "type": f"order.{event['type']}",
        "attempts": event["attempts"],
        "external_id": event["external_id"],
        "reason": event["reason_code"] if shows else MASK,
        "message": event["reason_message"] if shows else MASK,
        "id": event["event_id"],
    }
