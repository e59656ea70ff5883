"""``pos-gateway events replay``: republishes events."""

from collections.abc import Iterator
from dataclasses import replace

import click

from pos_gateway.broker.message import Message
from pos_gateway.broker.publisher import Publisher
from pos_gateway.cli import output
from pos_gateway.cli.counts import POSITION
from pos_gateway.cli.database import order_admin
from pos_gateway.cli.events.archive import archive
from pos_gateway.cli.failure import INTERRUPTED, Failure
from pos_gateway.cli.interrupt import CtrlC
from pos_gateway.cli.operator import by_operator
from pos_gateway.cli.progress import progress_to
from pos_gateway.domain.errors import BatchCutShort, PublishError
from pos_gateway.events.archive import Archive
from pos_gateway.ledger.states import Key
from pos_gateway.settings import Settings

#: Events that wait for their confirms at once.
BATCH = 500


@click.command()
@click.option("--from", "first", type=POSITION, required=True, metavar="P", help="The first position.")  # fmt: skip
@click.option("--to", "last", type=POSITION, required=True, metavar="Q", help="The last one.")  # fmt: skip
@click.option("--queue", metavar="NAME", help="Only to this queue. Default: to all that get events.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only say how many there are.")
@by_operator
def replay(first: int, last: int, queue: str | None, dry_run: bool, operator: str) -> None:
    """Publish the events with the positions P to Q again, in order, with the same ids.

    For a consumer that has lost events. A consumer that kept its last position drops them as
    repeats: reset that first, or replay to a separate queue. Pruned events cannot be replayed; an
    event whose order was pruned has "order": null and says so. To replay twice is harmless.

    \b
    Examples:
      pos-gateway events replay --from 4711 --to 5000 --dry-run
      pos-gateway events replay --from 4711 --to 5000 --queue order-events
    """
    if first > last:
        raise click.UsageError(f"--from {first} is behind --to {last}")
    with archive() as kept, order_admin() as ledger:
        count = _count(kept, first, last)
        if dry_run:
            click.echo(f"{count} would be published again")
            return
        publisher = Publisher(Settings.from_environment().broker_url)
        try:
            publisher.connect()
            to = "" if queue is None else f" to queue {queue}"
            details = f"positions {first} to {last}{to}"
            ledger.note(Key("", ""), operator=operator, what="events.replay", details=details)
            _replay(kept.read(first, last, BATCH), count, publisher, queue)
        finally:
            publisher.close()


def _count(kept: Archive, first: int, last: int) -> int:
    """The number of events. Reports pruned ones; raises Failure if there is nothing to publish."""
    there = kept.extent()
    if last > there.published:
        up_to = f"events are published up to position {there.published}"
        raise Failure(f"--to {last}: {up_to}" if there.published else "no event is published yet")
    count = kept.count(first, last)
    pruned = last - first + 1 - count
    if pruned:
        lowest = "none is kept" if there.first is None else f"the lowest kept is {there.first}"
        said = f"{pruned} of the positions {first} to {last} are pruned ({lowest})"
        if not count:
            raise Failure(f"{said}: there is nothing to publish")
        output.notice(said)
    return count


def _replay(
    batches: Iterator[list[tuple[int, Message]]],
    count: int,
    publisher: Publisher,
    queue: str | None,
) -> None:
    done, went_wrong = 0, list[PublishError]()
    with progress_to(count) as progress, CtrlC() as ctrl_c:
        for batch in ctrl_c.until_pressed(batches):
            messages = [
                message if queue is None else _only_to(queue, message) for _, message in batch
            ]
            try:
                stored = publisher.publish_batch(messages, on_trouble=went_wrong.append)
            except BatchCutShort as error:
                stored = error.confirmed
                went_wrong.append(error)
            done += stored
            if went_wrong:
                raise Failure(
                    f"{went_wrong[0]}; {done} published again, go on with --from {batch[stored][0]}"
                )
            go_on = batch[-1][0] + 1
            progress.update(f"{done} of {count}", done)
    click.echo(f"{done} published again")
    if done < count and ctrl_c.pressed:
        output.notice(f"broken off; go on with --from {go_on}" if done else "broken off")
        raise click.exceptions.Exit(INTERRUPTED)
    if done < count:
        output.notice(f"{count - done} were pruned meanwhile")


def _only_to(queue: str, message: Message) -> Message:
    # Through the default exchange, which routes by queue name.
    return replace(message, exchange="", routing_key=queue)
