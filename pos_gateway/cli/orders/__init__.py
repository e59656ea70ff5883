"""``pos-gateway orders``: what the ledger knows of orders, and decisions that only people can take."""

import click

from pos_gateway.cli.lazy import Lazy, LazyGroup

COMMANDS = {
    "list": Lazy("pos_gateway.cli.orders.listing:list_", "List orders and how they stand."),
    "show": Lazy("pos_gateway.cli.orders.showing:show", "Show all that is known of one."),
    "resolve": Lazy("pos_gateway.cli.orders.resolving:resolve", "Decide on one in doubt."),
    "prune": Lazy("pos_gateway.cli.orders.pruning:prune", "Remove those that are long over."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def orders() -> None:
    """Look orders up in the ledger, and decide on those whose POS cannot be asked.

    An order that is in doubt may be at its POS, or not: ask the merchant, then resolve it.
    """
