"""``pos-gateway cancel``."""

from datetime import datetime, timedelta

import click

from pos_gateway.cli.moments import deadline, new_deadline


@click.command()
@click.argument("order_id", metavar="ORDER_ID")
@click.option("--merchant", "merchant_id", required=True, metavar="ID", help="Whose order it is.")
@new_deadline
def cancel(
    order_id: str, merchant_id: str, moment: datetime | None, length: timedelta | None
) -> None:
    """Request an order's cancellation. To ask again is harmless.

    An order that was not sent is never sent; otherwise its POS is asked to cancel it, for 15
    minutes by default. The outcome is in an event, and in pos-gateway orders show.

    \b
    Examples:
      pos-gateway cancel A-1001 --merchant m1
      pos-gateway cancel A-1001 --merchant m1 --for 2m
    """
    from pos_gateway.client import OrderClient

    until = deadline(moment, length)
    with OrderClient() as client:
        client.cancel(order_id, merchant_id, deliver_by=until)
    click.echo(f"asked to cancel order {order_id!r} of merchant {merchant_id!r}")
