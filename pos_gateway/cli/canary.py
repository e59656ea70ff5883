"""``pos-gateway canary``: moves merchants to the canary workers, and back."""

from collections.abc import Sequence

import click

from pos_gateway.cli import options, output
from pos_gateway.cli.groups import Group, Lazy

COMMANDS = {
    "status": Lazy("pos_gateway.cli.canary_status:status", "Say who is in it, and how it does."),
}


@click.group(cls=Group, lazy=COMMANDS)
def canary() -> None:
    """Administer the canary: workers of another kind or release, with some merchants' orders.

    The broker keeps the split. Order backends follow within seconds.
    """


@canary.command("set", short_help="Move merchants to it, or back.")
@click.argument("percent", type=click.FloatRange(0, 100))
@click.option("--pin", "pins", multiple=True, metavar="ID", help="Also this merchant: a pilot.")
@click.option("--unpin", "unpins", multiple=True, metavar="ID", help="No pilot any more.")
@options.by_operator
def set_(percent: float, pins: Sequence[str], unpins: Sequence[str], operator: str) -> None:
    """Send the orders of PERCENT percent of merchants, and of pilots, to the canary workers.

    Merchants that are in at 10 percent are in at 50. Pilots stay until they are unpinned, whatever
    the percentage is. Order backends follow within seconds, without a restart; queued orders stay
    where they are.

    \b
    Examples:
      pos-gateway canary set 0 --pin m1 --pin m2     # two pilots
      pos-gateway canary set 10
      pos-gateway canary set 10 --unpin m1

    It refuses while no worker consumes orders.canary.
    """
    from pos_gateway.canary.administration import change
    from pos_gateway.settings import Settings

    settings = Settings.from_environment()
    done = change(
        *(settings.broker_url, settings.canary_percent, operator, percent), pins=pins, unpins=unpins
    )
    click.echo(str(done))


@canary.command(short_help="Move all of them back at once.")
@options.by_operator
def abort(operator: str) -> None:
    """Send all orders to the stable workers again: 0 percent, and no pilots.

    It takes effect within seconds. Orders in orders.canary by then, or that return to it for a
    retry, are delivered by its consumers: the canary workers, if you leave them running, or workers
    without -Q.

    \b
    Example:
      pos-gateway canary abort
    """
    from pos_gateway.canary import administration
    from pos_gateway.settings import Settings

    settings = Settings.from_environment()
    administration.abort(settings.broker_url, operator)
    click.echo("aborted: no merchant's orders go to orders.canary any more")
    if (left := administration.left_behind(settings.broker_url)) is not None:
        output.notice(left)
