"""``pos-gateway merchants catalog clear``."""

from collections.abc import Sequence

import click

from pos_gateway.cli.database import catalog_store
from pos_gateway.cli.merchants.showing import require


@click.command()
@click.argument("merchant_ids", metavar="ID...", nargs=-1, required=True)
def clear(merchant_ids: Sequence[str]) -> None:
    """Remove the catalogs of the merchants with these IDs.

    Their orders are sent as if there had been none.

    \b
    Example:
      pos-gateway merchants catalog clear m1 m2
    """
    require(merchant_ids)
    with catalog_store() as catalogs:
        catalogs.put({merchant_id: {} for merchant_id in merchant_ids})
    number = len(set(merchant_ids))
    click.echo(f"{number} catalog{'' if number == 1 else 's'} cleared")
