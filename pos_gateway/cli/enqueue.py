"""``pos-gateway enqueue`` and ``cancel``: what an order backend does, from a file or by hand."""

from datetime import datetime, timedelta
from typing import BinaryIO

import click

from pos_gateway.cli.exit_codes import INTERRUPTED
from pos_gateway.cli.failure import Failure
from pos_gateway.cli.moments import deadline, new_deadline


@click.command()
@click.argument("file", type=click.File("rb"))
@click.option(
    "--canary-percent",
    type=click.FloatRange(0, 100),
    metavar="PERCENT",
    help="Percent of merchants whose orders go to the canary workers. "
    "Default: what pos-gateway canary status says.",
)
@click.option("--again", is_flag=True, help="Send late orders too: they may have been sent before.")
def enqueue(file: BinaryIO, canary_percent: float | None, again: bool) -> None:
    """Publish the orders in FILE (- is standard input), one JSON object a line, to the broker.

    Every line that is not an order is reported on standard error with its number, and the others
    are sent. The format of an order is in docs/order.schema.json. Sending an order again is
    harmless: its merchant gets it once. With --again that holds for one whose deliver_by has passed
    meanwhile, too: it ends as order.expired if it was never sent.

    \b
    Examples:
      pos-gateway enqueue orders.jsonl
      jq -c '.orders[]' export.json | pos-gateway enqueue -
      pos-gateway enqueue --again without-event.jsonl

    Exit code: 0 if every line was sent, 1 if one was not, 130 after Ctrl-C.
    """
    from pos_gateway.cli.interrupt import CtrlC
    from pos_gateway.cli.progress import progress_of
    from pos_gateway.cli.sending import OrderSending
    from pos_gateway.client import OrderClient
    from pos_gateway.settings import Settings

    settings = Settings.from_environment()
    with (
        OrderClient(
            settings.broker_url,
            canary_percent=canary_percent,
            max_order_bytes=settings.max_order_bytes,
        ) as client,
        CtrlC() as ctrl_c,
    ):
        sending = OrderSending(client, again=again)
        with progress_of(file) as progress:
            for problems in sending.send(file, ctrl_c):
                for problem in problems:
                    progress.say(problem)
                progress.update(sending.summary)
        click.echo(sending.summary)
        exit_code = INTERRUPTED if ctrl_c.pressed else 1
        if sending.broken_off:
            raise Failure(sending.broken_off, exit_code=exit_code)
        if ctrl_c.pressed or sending.refused:
            raise click.exceptions.Exit(exit_code)


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
