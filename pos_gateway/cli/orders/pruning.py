"""``pos-gateway orders prune``."""

from datetime import UTC, datetime, timedelta

import click

from pos_gateway.cli.database import database
from pos_gateway.cli.moments import Length, shown
from pos_gateway.cli.output import notice

#: A message may be redelivered this late, and must find its order's outcome.
LEAST = timedelta(days=1)


@click.command()
@click.option(
    "--older-than", type=Length(), required=True, metavar="LENGTH", help="Ended before that: 30d."
)
@click.option("--dry-run", is_flag=True, help="Only say how many there are.")
def prune(older_than: timedelta, dry_run: bool) -> None:
    """Remove the content of orders that have ended, and their events. What operators did stays.

    An order is pruned only once its deliver_by has passed for as long, too. Its outcome is kept for
    30 days more. Workers keep running; they prune by themselves with POS_GATEWAY_KEEP_ORDERS.

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
    counts = (0, 0, 0)
    with database() as engine:
        now = pruning.present(engine, datetime.now(UTC).timestamp())
        before = now - older_than.total_seconds()
        if dry_run:
            counts = pruning.countable(engine, before)
        else:
            for some in pruning.prune(engine, before):
                so_far = sum(counts) // 10_000
                counts = (counts[0] + some[0], counts[1] + some[1], counts[2] + some[2])
                if so_far < sum(counts) // 10_000:
                    notice(f"{counts[0]} orders, {counts[1]} rows and {counts[2]} events so far")
    would = "would be " if dry_run else ""
    click.echo(
        f"{counts[0]} orders {would}emptied, {counts[1]} rows and {counts[2]} events {would}removed, "
        f"from before {shown(before)}"
    )
