"""``pos-gateway events``: what becomes of orders."""

import click

from pos_gateway.cli.lazy import Lazy, LazyGroup

COMMANDS = {
    "tail": Lazy("pos_gateway.cli.events.tail:tail", "Follow the events as they happen."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def events() -> None:
    """Watch what becomes of orders: one event for each change of an order's state."""
