"""``pos-gateway merchants pause`` and ``resume``."""

from collections.abc import Sequence

import click

from pos_gateway.cli.database import merchant_store
from pos_gateway.cli.failure import Failure
from pos_gateway.cli.merchants.showing import unknown


@click.command()
@click.argument("merchant_ids", metavar="ID...", nargs=-1, required=True)
def pause(merchant_ids: Sequence[str]) -> None:
    """Send the merchants with these IDs nothing until they are resumed.

    Their orders wait in the worker or parked in the broker, and expire at their deliver_by. Orders
    in flight are finished.

    \b
    Example:
      pos-gateway merchants pause m1 m2
    """
    _set_paused(merchant_ids, paused=True)


@click.command()
@click.argument("merchant_ids", metavar="ID...", nargs=-1, required=True)
def resume(merchant_ids: Sequence[str]) -> None:
    """Send orders to the merchants with these IDs again.

    \b
    Example:
      pos-gateway merchants resume m1 m2
    """
    _set_paused(merchant_ids, paused=False)


def _set_paused(ids: Sequence[str], *, paused: bool) -> None:
    """All of them, or none if one does not exist."""
    with merchant_store() as store:
        missing = store.pause(ids, paused=paused)
        if missing:
            raise Failure("\n".join(unknown(merchant_id, store) for merchant_id in missing))
    number = len(set(ids))
    done = "paused" if paused else "resumed"
    click.echo(f"{number} merchant{'s' if number != 1 else ''} {done}")
