"""``pos-gateway events prune``."""

from datetime import UTC, datetime, timedelta

import click

from pos_gateway.cli.database import database
from pos_gateway.cli.moments import Length
from pos_gateway.cli.progress import progress_to
from pos_gateway.runtime.clock import shown


@click.command()
@click.option(
    "--older-than", type=Length(), required=True, metavar="LENGTH", help="Happened before that: 7d."
)
@click.option("--dry-run", is_flag=True, help="Only say how many there are.")
def prune(older_than: timedelta, dry_run: bool) -> None:
    """Remove published events of this age. They cannot be replayed any more.

    Unpublished events stay, however old. Workers keep running.

    \b
    Examples:
      pos-gateway events prune --older-than 7d --dry-run
      pos-gateway events prune --older-than 7d
    """
    from pos_gateway.events import pruning
    from pos_gateway.ledger.pruning import present

    with database() as engine:
        before = present(engine, datetime.now(UTC).timestamp()) - older_than.total_seconds()
        removed = count = pruning.countable(engine, before)
        if not dry_run:
            removed = 0
            with progress_to(count) as progress:
                for some in pruning.prune(engine, before):
                    removed += some
                    progress.update(f"{removed} of {count}", removed)
    would = "would be " if dry_run else ""
    click.echo(f"{removed} events {would}removed, from before {shown(before)}")
