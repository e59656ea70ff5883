"""``pos-gateway canary``: moves merchants to the canary workers and back, and compares them."""

import click

from pos_gateway.cli.lazy import Lazy, LazyGroup

COMMANDS = {
    "status": Lazy("pos_gateway.cli.canary.showing:status", "Say who is in it, and how it does."),
    "set": Lazy("pos_gateway.cli.canary.moving:set_", "Move merchants to it, or back."),
    "abort": Lazy("pos_gateway.cli.canary.moving:abort", "Move all of them back at once."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def canary() -> None:
    """Administer the canary: workers of another kind or release, with some merchants' orders.

    The broker keeps the split. Order backends follow within seconds.
    """
