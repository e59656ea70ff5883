"""``pos-gateway merchants``: the merchants' records in the database."""

import click

from pos_gateway.cli.lazy import Lazy, LazyGroup

COMMANDS = {
    "catalog": Lazy("pos_gateway.cli.merchants.catalog:catalog", "What POSes call our items."),
    "check": Lazy("pos_gateway.cli.merchants.checking:check", "Try everything but an order."),
    "import": Lazy("pos_gateway.cli.merchants.importing:import_", "Write records from a file."),
    "list": Lazy("pos_gateway.cli.merchants.listing:list_", "List every merchant."),
    "pause": Lazy("pos_gateway.cli.merchants.pausing:pause", "Send merchants nothing for now."),
    "resume": Lazy("pos_gateway.cli.merchants.pausing:resume", "Send them orders again."),
    "show": Lazy("pos_gateway.cli.merchants.showing:show", "Show one merchant."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def merchants() -> None:
    """Administer the merchants: their POS's address and their limits.

    Workers see a change within seconds.
    """
