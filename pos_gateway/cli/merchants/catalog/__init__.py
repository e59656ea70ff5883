"""``pos-gateway merchants catalog``: what merchants' POSes call the items of our orders."""

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
    """Say what a merchant's POS calls the items and modifiers of our orders, by their sku.

    What is in a merchant's catalog is sent under the POS's own id, anything else by its name and
    price as far as the POS takes that. Workers see a change within seconds.
    """
