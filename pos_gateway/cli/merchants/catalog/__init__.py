"""``pos-gateway merchants catalog``: the POSes' ids for the items of our orders."""

import click

from pos_gateway.cli.lazy import Lazy, LazyGroup

_HERE = "pos_gateway.cli.merchants.catalog"
COMMANDS = {
    "import": Lazy(f"{_HERE}.importing:import_", "Write catalogs from a file."),
    "show": Lazy(f"{_HERE}.showing:show", "Show a merchant's catalog."),
    "clear": Lazy(f"{_HERE}.clearing:clear", "Forget merchants' catalogs."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def catalog() -> None:
    """Map the items and modifiers of our orders, by sku, to a merchant's POS's ids.

    An item in the catalog is sent under the POS's id, any other by its name and price if the POS
    accepts that. Workers see a change within seconds.
    """
