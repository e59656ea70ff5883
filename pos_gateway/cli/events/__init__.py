"""``pos-gateway events``: status events and their publication."""

import click

from pos_gateway.cli.lazy import Lazy, LazyGroup

COMMANDS = {
    "tail": Lazy("pos_gateway.cli.events.tail:tail", "Follow the events as they happen."),
    "replay": Lazy("pos_gateway.cli.events.replay:replay", "Publish events again."),
    "prune": Lazy("pos_gateway.cli.events.prune:prune", "Remove old events."),
    "run": Lazy("pos_gateway.cli.events.run:run", "Publish events: run the pipeline alone."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def events() -> None:
    """Follow and republish status events: one for each change of an order's state."""
