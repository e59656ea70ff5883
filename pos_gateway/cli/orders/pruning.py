"""``pos-gateway orders prune``."""

from datetime import UTC, datetime, timedelta

import click

from pos_gateway.cli.database import database
from pos_gateway.cli.moments import Length, shown
from pos_gateway.cli.output import notice

#: A message may come again for as long as that, and must find what became of its order.
LEAST = timedelta(days=1)


@click.command()
@click.option(
    "--older-than", type=Length(), required=True, metavar="LENGTH", help="Ended before that: 30d."
)
@click.option("--dry-run", is_flag=True, help="Only say how many there are.")
def prune(older_than: timedelta, dry_run: bool) -> None:
    """Remove orders that have ended, with their cancellations and events. What operators did stays.

    An order goes once its deliver_by has passed for as long, too. Workers go on meanwhile.

    \b
    Examples:
      pos-gateway orders prune --older-than 30d --dry-run
      pos-gateway orders prune --older-than 30d
    """
    from pos_gateway.ledger import pruning

    if older_than < LEAST:
        raise click.BadParameter(
            "less than 1d: a message that comes again must still find its order",
            param_hint="--older-than",
        )
    before = (datetime.now(UTC) - older_than).timestamp()
    rows = told = 0
    with database() as engine:
        if dry_run:
            rows, told = pruning.countable(engine, before)
        else:
            for some_rows, some_told in pruning.prune(engine, before):
                if (rows + told) // 10_000 < (rows + told + some_rows + some_told) // 10_000:
                    notice(f"{rows + some_rows} orders and {told + some_told} events so far")
                rows, told = rows + some_rows, told + some_told
    would = "would be " if dry_run else ""
    click.echo(
        f"{rows} orders and cancellations and {told} events {would}removed, from before {shown(before)}"
    )
