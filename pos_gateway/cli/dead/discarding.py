"""``pos-gateway dlq discard``."""

from datetime import UTC, datetime

import click

from pos_gateway.broker.bundle import Bundle
from pos_gateway.cli import output
from pos_gateway.cli.counts import LIMIT
from pos_gateway.cli.database import desk
from pos_gateway.cli.dead.letter import Letter, NotReplayable
from pos_gateway.cli.dead.queue import DeadLetters
from pos_gateway.cli.dead.selection import Selection, require_named, selecting
from pos_gateway.cli.operator import by_operator
from pos_gateway.domain.order import CancelRequest
from pos_gateway.domain.outcome import Kind
from pos_gateway.ledger.order_admin import OrderAdmin
from pos_gateway.ledger.states import FINAL, Action, Key, State
from pos_gateway.settings import Settings


@click.command()
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All of them; needs --yes.")
@click.option("--yes", is_flag=True, help="That they are lost for good is what you want.")
@click.option("--open", "even_open", is_flag=True, help="Also those of orders that have not ended.")
@selecting
@click.option("--limit", type=LIMIT, metavar="N", help="At most N of them.")
@by_operator
def discard(
    ids: tuple[str, ...],
    everything: bool,
    yes: bool,
    even_open: bool,
    code: str | None,
    merchant_id: str | None,
    limit: int | None,
    operator: str,
) -> None:
    """Remove the letters with these IDs for good. The audit and the order's row are kept.

    The letter of an order that has not ended may be its only message: without it no event of the
    order comes. It is refused, and stays where it is, unless --open is given.

    \b
    Examples:
      pos-gateway dlq discard A-1001
      pos-gateway dlq discard --all --reason undecodable --yes

    Exit code: 0; or 1 if anything was refused, or not all letters came.
    """
    require_named(ids, everything=everything)
    if everything and not yes:
        raise click.UsageError("--all removes letters for good; say --yes too")
    selection = Selection(ids, code, merchant_id)
    discarded = refused = 0
    try:
        with desk() as ledger, DeadLetters(Settings.from_environment().broker_url) as letters:
            for letter in selection.to_change(letters, limit):
                key = Key(letter.merchant_id or "", letter.order_id or letter.id)
                why_not = None if even_open else _why_not(letter, key, ledger)
                if why_not is not None:
                    output.notice(f"{letter.id}: {why_not}")
                    refused += 1
                    continue
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
        click.echo(f"{discarded} discarded" + (f", {refused} refused" if refused else ""))
    if refused:
        raise click.exceptions.Exit(1)


def _why_not(letter: Letter, key: Key, ledger: OrderAdmin) -> str | None:
    """Why the letter may still be needed: its order has not ended."""
    try:
        content = letter.content()
    except NotReplayable:  # it can never end an order
        return None
    if isinstance(content, Bundle):
        return f"it has {content.orders} parked orders that have not ended; {_REPLAY}"
    is_cancel = isinstance(content, CancelRequest)
    if is_cancel and content.deliver_by <= datetime.now(UTC):
        return None  # replay refuses it, too: pos-gateway cancel ends it
    what = "cancel request" if is_cancel else "order"
    row = ledger.one(Key(key.merchant_id, key.order_id, Action.CANCEL) if is_cancel else key)
    if row is None:
        # With a reason a worker has ended it, and its row is pruned by now.
        unknown = f"the ledger does not know this {what}, which has had no event; {_REPLAY}"
        return None if letter.has_event else unknown
    has_open_cancel = not is_cancel and row.cancellation not in (None, *FINAL)
    if row.state.is_final or (row.state is State.NEW and has_open_cancel):
        return None  # the latter ends with its cancel request
    is_for_operator = row.is_in_doubt and row.told == Kind.IN_DOUBT
    remedy = _RESOLVE if is_for_operator else _REPLAY
    return f"this {what} has not ended: it is {row.state.value}; {remedy}"


_RESOLVE = (
    "ask the merchant, then pos-gateway orders resolve; or discard it all the same with --open"
)
_REPLAY = "pos-gateway dlq replay has it end; discard it all the same with --open"
