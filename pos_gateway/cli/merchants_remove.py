"""``pos-gateway merchants remove``."""

import click

from pos_gateway.cli import options
from pos_gateway.cli.database import database
from pos_gateway.cli.merchants import known_to, on


@click.command(short_help="Remove one.")
@click.argument("merchant_id", metavar="ID")
@click.option("--force", is_flag=True, help="Even while orders of it have not ended.")
@options.reason
@options.by_operator
def remove(merchant_id: str, force: bool, reason: str | None, operator: str) -> None:
    """Remove the merchant with this ID, and its catalog. Its orders and its audit are kept.

    It is refused while orders of it have not ended. With --force they are left without a merchant:
    those that its POS cannot have end as order.failed and are dead-lettered, those that its POS may
    have stay in doubt. Orders that no worker has taken from the queue yet are not counted.

    \b
    Example:
      pos-gateway merchants remove m1 --reason 'closed for good'

    Exit code: 0, or 1 if nothing was removed.
    """
    from pos_gateway.administration.removal import AFTERWARDS, counted
    from pos_gateway.administration.removal import remove as remove_it
    from pos_gateway.audit.note import By

    with database() as engine:
        admin = on(engine)
        known_to(admin, merchant_id)
        removed = remove_it(admin, engine, merchant_id, By(operator, reason), force=force)
    click.echo("1 merchant removed")
    if numbers := counted(removed):
        click.echo(f"orders that have not ended: {numbers}; {AFTERWARDS}")
