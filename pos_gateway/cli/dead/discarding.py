"""``pos-gateway dlq discard``."""

import click

from pos_gateway.cli.counts import LIMIT
from pos_gateway.cli.database import desk
from pos_gateway.cli.dead.queue import DeadLetters
from pos_gateway.cli.dead.selection import Selection, require_named, selecting
from pos_gateway.cli.operator import by_operator
from pos_gateway.ledger.states import Key
from pos_gateway.settings import Settings


@click.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All of them; needs --yes.")
@click.option("--yes", is_flag=True, help="That they are lost for good is what you want.")
@selecting
@click.option("--limit", type=LIMIT, metavar="N", help="At most N of them.")
@by_operator
def discard(
    ids: tuple[str, ...],
    everything: bool,
    yes: bool,
    code: str | None,
    merchant_id: str | None,
    limit: int | None,
    operator: str,
) -> None:
    """Remove the letters with these IDs for good. The audit and the order's row are kept.

    \b
    Examples:
      pos-gateway dlq discard A-1001
      pos-gateway dlq discard --all --reason undecodable --yes
    """
    require_named(ids, everything=everything)
    if everything and not yes:
        raise click.UsageError("--all removes letters for good; say --yes too")
    selection = Selection(ids, code, merchant_id)
    discarded = 0
    try:
        with desk() as ledger, DeadLetters(Settings.from_environment().broker_url) as letters:
            for letter in selection.to_change(letters, limit):
                key = Key(letter.merchant_id or "", letter.order_id or letter.id)
                # First: better audited and not removed than removed without an audit.
                ledger.note(
                    key,
                    operator=operator,
                    what="dead.discard",
                    details=f"{letter.code}: {letter.reason}",
                )
                letters.acknowledge(letter)
                discarded += 1
    finally:
        click.echo(f"{discarded} discarded")
