"""``pos-gateway orders``: the ledger's orders, and decisions that need an operator."""

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
    """Look orders up in the ledger, and resolve those in doubt at a POS without look-up.

    The POS may or may not have an order in doubt: ask the merchant, then resolve it.
    """
