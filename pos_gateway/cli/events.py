"""``pos-gateway events``: status events and their publication."""

import contextlib
import itertools
import json
import signal
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from pos_gateway import __version__
from pos_gateway.cli import options, output
from pos_gateway.cli.database import archive, database, order_admin, payloads
from pos_gateway.cli.exit_codes import INTERRUPTED
from pos_gateway.cli.failure import Failure
from pos_gateway.cli.groups import Group
from pos_gateway.cli.interrupt import CtrlC
from pos_gateway.cli.moments import Length
from pos_gateway.cli.progress import progress_to
from pos_gateway.domain.errors import (
    BatchCutShort,
    BrokerUnavailable,
    LedgerUnavailable,
    PublishError,
)
from pos_gateway.domain.outcome import Kind, Lifecycle
from pos_gateway.runtime.clock import shown
from pos_gateway.runtime.wakeup import Wakeup

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from pos_gateway.broker.message import Message
    from pos_gateway.broker.publisher import Publisher
    from pos_gateway.events.archive import Archive
    from pos_gateway.events.relay import EventRelay
    from pos_gateway.ledger.ledger import Ledger

_PREFIX = "order."
#: Every event type; a retry publishes none.
TYPES = tuple(kind.value for kind in (*Kind, *Lifecycle) if kind is not Kind.RETRY)
#: Maximum earlier events shown.
MAX_LAST = 10_000
_STYLES = {
    "accepted": "green",
    "pending": "cyan",
    "cancelled": "yellow",
    "expired": "yellow",
    "rejected": "red",
    "failed": "bold red",
    "in_doubt": "bold magenta",
}
#: Events that wait for their confirms at once.
BATCH = 500


class _EventType(click.Choice[str]):
    """``accepted`` or ``order.accepted``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return super().convert(str(value).removeprefix(_PREFIX), param, ctx)


@click.group(cls=Group)
def events() -> None:
    """Follow and republish status events: one for each change of an order's state."""


@events.command(short_help="Follow the events as they happen.")
@click.option(
    "--type", "types", multiple=True, type=_EventType(TYPES), help="Only this type; repeatable."
)
@click.option("--merchant", "merchants", multiple=True, metavar="ID", help="Only this merchant's orders; repeatable.")  # fmt: skip
@click.option("--order", "orders", multiple=True, metavar="ID", help="Only this order; repeatable.")
@click.option("-n", "last", type=click.IntRange(1, MAX_LAST), metavar="N", help="The last N first.")
@click.option("--since", type=Length(), metavar="LENGTH", help="Those of the last 10m first.")
@click.option("--limit", type=options.LIMIT, metavar="N", help="End after N events.")
@click.option("--json", "as_json", is_flag=True, help="Whole events, as they are into a pipe.")
def tail(
    types: tuple[str, ...],
    merchants: tuple[str, ...],
    orders: tuple[str, ...],
    last: int | None,
    since: timedelta | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """Print events as they are published, until Ctrl-C. The backend still gets every one of them.

    One line each on a terminal; JSON Lines into a pipe. Earlier events are shown with -n or --since
    (10,000 at most); events published while the broker is unreachable are not.

    \b
    Examples:
      pos-gateway events tail --type failed --type in_doubt
      pos-gateway events tail --order A-1001 -n 20
      pos-gateway events tail --merchant m1 --since 1h | jq .reason
    """
    print_one = output.json_line if as_json or not output.is_terminal() else _print
    wanted = _wanted(types, merchants, orders, last, since)
    try:
        for event in itertools.islice(wanted, limit):
            print_one(event)
    except KeyboardInterrupt:
        return


def _wanted(
    types: tuple[str, ...],
    merchants: tuple[str, ...],
    orders: tuple[str, ...],
    last: int | None,
    since: timedelta | None,
) -> Iterator[dict[str, Any]]:
    """The events that match all filters, of which an empty one matches any."""
    from pos_gateway.events.subscription import Subscription
    from pos_gateway.settings import Settings

    keys = [_PREFIX + each for each in dict.fromkeys(types)] or ["#"]
    seen: set[str] = set()

    def earlier() -> Iterator[bytes]:
        if last is None and since is None:
            return
        moment = None if since is None else (datetime.now(UTC) - since).timestamp()
        with archive() as kept:
            for message in kept.latest(
                last or MAX_LAST,
                since=moment,
                types=types,
                merchant_ids=merchants,
                order_ids=orders,
            ):
                yield message.body
                seen.add(message.message_id)

    url = Settings.from_environment().broker_url
    for event in _decoded(Subscription(url, keys, notice=output.notice, earlier=earlier)):
        number = str(event.get("id"))  # another publisher's id may have any type
        if number in seen:
            # Published while the earlier ones were read: skipped once; a second time it is a
            # replay.
            seen.remove(number)
        elif (not merchants or event.get("merchant_id") in merchants) and (
            not orders or event.get("order_id") in orders  # the broker has filtered by type
        ):
            yield event


def _decoded(bodies: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for body in bodies:
        try:
            event = json.loads(body)
        except ValueError:
            event = None
        if isinstance(event, dict):
            yield event
        else:
            output.notice("skipped a message that is not an event")


def _print(event: dict[str, Any]) -> None:
    kind = str(event.get("type")).removeprefix(_PREFIX)
    position = event.get("position")
    reason = event.get("reason")
    why = f"  {reason.get('code')}: {reason.get('message')}" if isinstance(reason, dict) else ""
    output.line(
        (f"{event.get('occurred_at')}  ", "dim"),
        (f"{kind:<9}", _STYLES.get(kind, "")),
        (f"  merchant {event.get('merchant_id')}  order {event.get('order_id')}", ""),
        (f"  POS id {event['external_id']}" if event.get("external_id") else "", ""),
        (f"  attempts {event['attempts']}" if event.get("attempts") else "", ""),
        (f"  position {position}" if position is not None else "", "dim"),
        (why, ""),
    )


@events.command(short_help="Publish events again.")
@click.option("--from", "first", type=options.POSITION, required=True, metavar="P", help="The first position.")  # fmt: skip
@click.option("--to", "last", type=options.POSITION, required=True, metavar="Q", help="The last one.")  # fmt: skip
@click.option("--queue", metavar="NAME", help="Only to this queue. Default: to all that get events.")  # fmt: skip
@options.only_count
@options.by_operator
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
    from pos_gateway.broker.publisher import Publisher
    from pos_gateway.ledger.states import Key
    from pos_gateway.settings import Settings

    if first > last:
        raise click.UsageError(f"--from {first} is after --to {last}")
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


def _count(kept: "Archive", first: int, last: int) -> int:
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
    batches: "Iterator[list[tuple[int, Message]]]",
    count: int,
    publisher: "Publisher",
    queue: str | None,
) -> None:
    done, went_wrong = 0, list[PublishError]()
    with progress_to(count) as progress, CtrlC() as ctrl_c:
        for batch in ctrl_c.until_pressed(batches):
            messages = [message for _, message in batch]
            if queue is not None:  # through the default exchange, which routes by queue name
                messages = [replace(each, exchange="", routing_key=queue) for each in messages]
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


@events.command(short_help="Remove old events.")
@click.option(
    "--older-than", type=Length(), required=True, metavar="LENGTH", help="Happened before that: 7d."
)
@options.only_count
def prune(older_than: timedelta, dry_run: bool) -> None:
    """Remove published events of this age. They cannot be replayed any more.

    Unpublished events stay, however old. Workers keep running.

    \b
    Examples:
      pos-gateway events prune --older-than 7d --dry-run
      pos-gateway events prune --older-than 7d
    """
    from pos_gateway.events import pruning
    from pos_gateway.ledger.pruning import present

    with database() as engine:
        before = present(engine, datetime.now(UTC).timestamp()) - older_than.total_seconds()
        removed = count = pruning.countable(engine, before)
        if not dry_run:
            removed = 0
            with progress_to(count) as progress:
                for some in pruning.prune(engine, before):
                    removed += some
                    progress.update(f"{removed} of {count}", removed)
    would = "would be " if dry_run else ""
    click.echo(f"{removed} events {would}removed, from before {shown(before)}")


@events.command(short_help="Publish events: run the pipeline alone.")
def run() -> None:
    """Publish status events, and do nothing else, until SIGTERM or Ctrl-C.

    Of all processes that publish events one leads, and the others stand by: any number of these may
    run, beside workers or instead of them (with POS_GATEWAY_PUBLISH_EVENTS=false workers do not).
    It logs when it leads and when it stands by, and survives the loss of the broker or the
    database.

    \b
    Examples:
      pos-gateway events run
      POS_GATEWAY_METRICS_PORT=9809 pos-gateway events run     # a second one on this machine

    Exit code: 0. A second SIGTERM or Ctrl-C ends it at once; the next leader then publishes the
    events in flight again.
    """
    import structlog

    from pos_gateway.database.engine import ANSWER
    from pos_gateway.events.hydration import Hydration
    from pos_gateway.events.relay import EventRelay
    from pos_gateway.ledger.ledger import Ledger
    from pos_gateway.ledger.polls import Polls
    from pos_gateway.ledger.schema_watch import SchemaWatch
    from pos_gateway.runtime import failpoints
    from pos_gateway.settings import DAY, Settings
    from pos_gateway.telemetry import log
    from pos_gateway.telemetry.port import MetricsPort

    settings = Settings.from_environment()
    log.configure(lines=settings.log_buffer)
    log.report_crashes()
    failpoints.arm_all(settings.failpoints)
    tracing = None
    if settings.tracing:
        from pos_gateway.telemetry.tracing import ExportedTracing

        tracing = ExportedTracing()
        tracing.start()
    with _until_signal() as stopping, database(answer=ANSWER) as engine:
        keys = payloads()
        ledger, schema = Ledger(engine, keys), SchemaWatch(engine, Polls(engine))
        relay = EventRelay(
            engine,
            Hydration(keys),
            ledger,
            broker_url=settings.broker_url,
            to_broker=settings.events_to_broker,
            keep=settings.keep_events * DAY,
            keep_orders=settings.keep_orders * DAY,
            tracing=tracing,
        )
        try:
            relay.publisher.connect()  # reports a queue with other arguments now
        except BrokerUnavailable as error:
            structlog.get_logger(__name__).warning("broker.unavailable", error=str(error))
        port = MetricsPort(settings.metrics_port, settings.metrics_host)
        port.require("database", lambda: schema.problem or ledger.problem)
        port.before_scrape(relay.show)
        port.start()
        ledger.start()
        schema.start()
        with contextlib.suppress(LedgerUnavailable):
            ledger.catch_up()  # the first heartbeat, which leading requires
        relay.start()
        with _reporting(engine, ledger, relay, settings.broker_url):
            stopping.wait()
        schema.stop()
        relay.stop()
        ledger.close()  # last: its lease keeps other processes from leading
        if tracing is not None:
            tracing.stop()
        port.stop()


@contextlib.contextmanager
def _reporting(
    engine: "Engine", ledger: "Ledger", relay: "EventRelay", broker_url: str
) -> Iterator[None]:
    """Reports this process: how late events are, and the queues."""

    from pos_gateway.broker.queue_metrics import QueueMetrics
    from pos_gateway.reports.counters import counters
    from pos_gateway.reports.report import EVENTS, WorkerReport
    from pos_gateway.reports.reporter import Figures, Reporter

    queue_metrics = QueueMetrics(broker_url)

    def figures() -> Figures:
        report = WorkerReport(
            EVENTS,
            release=__version__,
            events_age=relay.age,
            queues=queue_metrics.ready,
            consumers=queue_metrics.consumers,
        )
        return Figures(report, counters(0, {}, ()))

    reporter = Reporter(engine, lambda: ledger.lease.worker, figures)
    queue_metrics.start()
    reporter.start()
    try:
        yield
    finally:
        reporter.stop()
        queue_metrics.stop()


@contextlib.contextmanager
def _until_signal() -> Iterator[Wakeup]:
    """Notified by the first SIGTERM or SIGINT; the second has its default effect."""
    stopping = Wakeup()
    before: dict[signal.Signals, object] = {}

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stopping.notify()
        for each in before:
            signal.signal(each, signal.SIG_DFL)

    for each in (signal.SIGTERM, signal.SIGINT):
        before[each] = signal.signal(each, on_signal)
    try:
        yield stopping
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)  # type: ignore[arg-type]
