"""``pos-gateway canary``: moves merchants to the canary workers, and back."""

from collections.abc import Sequence
from datetime import UTC, datetime

import click

from pos_gateway.cli import options, output
from pos_gateway.cli.failure import Failure
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
@options.by_any_operator
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
    from pos_gateway.broker.queue_state import queue_states
    from pos_gateway.routing.splits import changing, in_force
    from pos_gateway.settings import Settings

    settings = Settings.from_environment()
    _, theirs = queue_states(settings.broker_url)
    with changing(settings.broker_url) as publish:
        before = in_force(settings.broker_url, settings.canary_percent)
        if strangers := sorted(set(unpins) - before.pins):
            raise Failure(f"{', '.join(strangers)}: no pilot, so there is nothing to unpin")
        kept = (before.pins | set(pins)) - set(unpins)
        split = before.changed(operator, datetime.now(UTC), percent=percent, pins=kept)
        if split.takes_any and not theirs.consumers:
            raise Failure(
                "no worker consumes orders.canary: start a canary worker first, "
                "pos-gateway worker -Q orders.canary"
            )
        publish(split)
    click.echo(f"{split} (before: {before})")


@canary.command(short_help="Move all of them back at once.")
@options.by_any_operator
def abort(operator: str) -> None:
    """Send all orders to the stable workers again: 0 percent, and no pilots.

    It takes effect within seconds. Orders in orders.canary by then, or that return to it for a
    retry, are delivered by its consumers: the canary workers, if you leave them running, or workers
    without -Q.

    \b
    Example:
      pos-gateway canary abort
    """
    from pos_gateway.broker.queue_state import queue_states
    from pos_gateway.domain.split import Split
    from pos_gateway.routing.splits import changing
    from pos_gateway.settings import Settings

    settings = Settings.from_environment()
    with changing(settings.broker_url, at_once=True) as publish:
        publish(Split().changed(operator, datetime.now(UTC)))
    click.echo("aborted: no merchant's orders go to orders.canary any more")
    _, theirs = queue_states(settings.broker_url)
    if not theirs.consumers:
        output.notice(
            f"no worker consumes orders.canary, where {theirs.ready} messages are and others "
            "may come back to: start a worker without -Q"
        )
