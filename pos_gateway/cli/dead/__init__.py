"""``pos-gateway dlq``: the queue ``orders.dead``."""

import click

from pos_gateway.cli.lazy import Lazy, LazyGroup

COMMANDS = {
    "list": Lazy("pos_gateway.cli.dead.listing:list_", "List dead letters, and why."),
    "show": Lazy("pos_gateway.cli.dead.showing:show", "Show one of them."),
    "replay": Lazy("pos_gateway.cli.dead.replaying:replay", "Have orders sent after all."),
    "discard": Lazy("pos_gateway.cli.dead.discarding:discard", "Remove them for good."),
}


@click.group("dlq", cls=LazyGroup, lazy=COMMANDS)
def dead() -> None:
    """Administer dead letters: orders that could not be delivered, and invalid messages.

    They stay in the queue orders.dead until an operator replays or discards them. A letter's ID is
    its order's, if the message has one.
    """
