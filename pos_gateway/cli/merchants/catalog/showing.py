"""``pos-gateway merchants catalog show``."""

import click

from pos_gateway.cli import output
from pos_gateway.cli.database import catalog_store
from pos_gateway.cli.merchants.showing import require


@click.command()
@click.argument("merchant_id", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="JSON Lines, as catalog import takes them.")
def show(merchant_id: str, as_json: bool) -> None:
    """Show the catalog of the merchant with this ID, by sku.

    \b
    Examples:
      pos-gateway merchants catalog show m1
      pos-gateway merchants catalog show m1 --json > catalog.jsonl
    """
    require([merchant_id])
    with catalog_store() as catalogs:
        entries = sorted(catalogs.get(merchant_id).items())
    if as_json:
        for sku, pos_id in entries:
            output.json_line({"merchant_id": merchant_id, "sku": sku, "pos_id": pos_id})
    else:
        output.table(("SKU", "POS_ID"), entries)
