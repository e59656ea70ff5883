"""``pos-gateway dlq``: the queue ``orders.dead``."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from functools import wraps
from time import time
from typing import TYPE_CHECKING, Any

import click

from pos_gateway.broker.dead_letter_selection import Selection
from pos_gateway.cli import bulk, options, output, revealing
from pos_gateway.cli.database import database, order_admin
from pos_gateway.cli.exit_codes import INTERRUPTED
from pos_gateway.cli.groups import Group
from pos_gateway.cli.interrupt import CtrlC
from pos_gateway.cli.moments import age, deadline, new_deadline
from pos_gateway.domain.errors import AdminError
from pos_gateway.runtime.clock import shown

if TYPE_CHECKING:
    from pos_gateway.administration.bulk.filter import BulkFilter
    from pos_gateway.administration.bulk.options import BulkOptions
    from pos_gateway.administration.bulk.run import BulkAction
    from pos_gateway.broker.dead_letter import DeadLetter
    from pos_gateway.broker.dead_letter_queue import DeadLetterQueue

#: Headers set by the gateway or the broker.
_KNOWN_HEADERS = {"task", "x-attempts", "x-in-doubt", "x-orders", "x-deliver-by", "x-content-type"}


@dataclass(frozen=True, slots=True)
class _Change:
    """What ``replay`` and ``discard`` are both given."""

    ids: tuple[str, ...]
    everything: bool
    narrowed: dict[str, Any]
    limit: int | None
    rate: float
    run_id: int | None
    dry_run: bool
    as_json: bool
    operator: str

    @property
    def is_named(self) -> bool:
        """Whether letters are named, by id or by option."""
        return bool(self.ids or self.everything or any(self.narrowed.values()))


def _change_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that ``replay`` and ``discard`` share, as one ``_Change``."""

    @wraps(command)
    def gathered(**given: Any) -> None:
        narrowed = {name: given.pop(name) for name in bulk.FILTERS}
        shared = {each.name: given.pop(each.name) for each in fields(_Change) if each.name in given}
        command(_Change(narrowed=narrowed, **shared), **given)

    for option in (
        options.by_operator,
        click.option("--json", "as_json", is_flag=True, help="JSON Lines: the outcome of each."),
        click.option("--dry-run", is_flag=True, help="Only say what would be done."),
        bulk.running,
        options.limit_of_changes,
        bulk.filters,
    ):
        gathered = option(gathered)
    return gathered


@click.group(cls=Group)
def dlq() -> None:
    """Administer dead letters: orders that could not be delivered, and invalid messages.

    They stay in the queue orders.dead until an operator replays or discards them. A letter's ID is
    its order's, if the message has one.
    """


@dlq.command("list", short_help="List dead letters, and why.")
@bulk.filters
@options.limit
@options.as_json_lines
def list_(limit: int, as_json: bool, **narrowed: Any) -> None:
    """List dead letters and their reasons, the oldest first. Nothing is taken from the queue.

    Workers may run meanwhile, but no other pos-gateway dlq.

    \b
    Examples:
      pos-gateway dlq list --since 2h --provider square
      pos-gateway dlq list --reason unknown_merchant --json | jq -r .merchant_id | sort | uniq -c
    """
    found: list[DeadLetter] = []
    count = 0
    incomplete: AdminError | None = None
    try:
        for letter in _selected(narrowed):
            count += 1
            if count <= limit:
                found.append(replace(letter, body=b""))
    except AdminError as error:
        incomplete = error
    if as_json:
        for letter in found:
            output.json_line(_summary(letter))
    else:
        now = time()
        rows = [
            (each.id, each.merchant_id, age(each.at, now), each.code, each.reason) for each in found
        ]
        output.table(("ID", "MERCHANT", "AGE", "CODE", "REASON"), rows)
    if count > limit:
        output.notice(f"there are {count}; --limit N shows N")
    if incomplete is not None:
        raise incomplete


@dlq.command(short_help="Count them, by reason, merchant, provider, hour.")
@click.option(
    "--by",
    "names",
    multiple=True,
    type=click.Choice(["reason", "provider", "merchant", "hour"]),
    default=("reason", "provider"),
    show_default=True,
    help="What they are counted by; repeatable.",
)
@bulk.filters
@options.limit
@options.as_json_lines
def count(names: tuple[str, ...], limit: int, as_json: bool, **narrowed: Any) -> None:
    """Count dead letters in groups, the largest first, each with its oldest and newest letter.

    \b
    Examples:
      pos-gateway dlq count
      pos-gateway dlq count --by reason --by merchant --since 1d
      pos-gateway dlq count --by hour --reason expired --json
    """
    from pos_gateway.administration.bulk.groups import LetterGroups
    from pos_gateway.merchants.search import provider_of_each

    with database() as engine:
        groups = LetterGroups(names, provider_of_each(engine))
    for letter in _selected(narrowed):
        groups.add(letter)
    found = groups.largest(limit)
    records = [
        {
            **each.key,
            "letters": each.count,
            "oldest": shown(each.oldest),
            "newest": shown(each.newest),
        }
        for each in found
    ]
    if as_json:
        for record in records:
            output.json_line(record)
    else:
        columns = (*names, "letters", "oldest", "newest")
        rows = [[record[name] for name in columns] for record in records]
        output.table([name.upper() for name in columns], rows)
    if len(groups) > limit:
        output.notice(f"there are {len(groups)} groups; --limit N shows N")


@dlq.command(short_help="Show one of them.")
@click.argument("letter_id", metavar="ID")
@revealing.options_of("With the whole body, customer and all; the audit has it.")
@options.as_json_lines
def show(
    letter_id: str, reveal: bool, reason: str | None, operator: str | None, as_json: bool
) -> None:
    """Show the letters with this ID: why they are there, their headers, and the order.

    The customer's data is masked. An invalid message's body is not shown at all, since its personal
    data cannot be located. --reveal shows both, once the audit has a line of that: without the
    database, or where it is read-only, nothing is revealed.

    \b
    Examples:
      pos-gateway dlq show A-1001
      pos-gateway dlq show A-1001 --reveal --reason 'find the publisher' --json
    """
    with _dead_letters() as letters:
        found = list(Selection((letter_id,)).of(letters))
    if reveal:
        from pos_gateway.audit.note import Note

        notes = [
            Note(
                "dead.reveal",
                each.merchant_id or "",
                each.order_id or "",
                f"dlq show; letter {each.id}: {each.code}",
            )
            for each in found
        ]
        revealing.record(notes, operator, reason)
    for letter in found:
        record = {**_summary(letter), **_content(letter, reveal=reveal)}
        if as_json:
            output.json_line(record)
            continue
        body = record.pop("body")
        output.table(("FIELD", "VALUE"), record.items())
        if body is not None:
            output.json_document(body)


@dlq.command(short_help="Have orders sent after all.")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All of them, without a question.")
@click.option(
    "--yes", is_flag=True, help="Replay those that the options select, without a question."
)
@new_deadline
@_change_options
def replay(change: _Change, yes: bool, moment: datetime | None, length: timedelta | None) -> None:
    """Send the orders with these IDs, or those that the options select, once the cause is fixed.

    A failed or expired order is reopened, if it has time left or is given new time. An open one is
    put back on the queue: without time left it is only looked up, or expires. An order that the POS
    has decided on, that is in doubt and left to an operator, or that has a cancel request is
    refused. An invalid message is never replayed. Refused letters stay where they are.

    Without IDs it is a run: previewed, confirmed, at --rate letters a second. Ctrl-C ends it after
    the current letter; stopped or killed, it is resumed where it was, and a letter that arrives
    meanwhile is not part of it. --for counts from each letter's turn on.

    \b
    Examples:
      pos-gateway dlq replay --reason unknown_merchant --dry-run
      pos-gateway dlq replay --provider square --since 2h --for 30m --rate 50
      pos-gateway dlq replay --all --reason unknown_merchant --for 30m
      pos-gateway dlq replay A-1001 A-1002
      pos-gateway dlq replay --resume 12

    Exit code: 0; 1 if anything was refused, not all letters came, or the run was stopped; or 130 if
    it was broken off with Ctrl-C.
    """
    from pos_gateway.administration.bulk.run import BulkAction

    until = deadline(moment, length)
    if _is_resumed(BulkAction.REPLAY, change):
        return
    if change.ids:
        _replay_by_id(change, until)
        return
    how = bulk.options_of(rate=change.rate, moment=moment, length=length)
    _run(BulkAction.REPLAY, change, how, is_confirmed=change.everything or yes)


@dlq.command(short_help="Remove them for good.")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All of them; needs --yes.")
@click.option("--yes", is_flag=True, help="That they are lost for good is what you want.")
@click.option("--open", "even_open", is_flag=True, help="Also those of orders that have not ended.")
@_change_options
def discard(change: _Change, yes: bool, even_open: bool) -> None:
    """Remove the letters with these IDs, or those that the options select, for good. The audit and
    the order's row are kept.

    The letter of an order that has not ended may be its only message: without it no event of the
    order comes. It is refused, and stays where it is, unless --open is given.

    Without IDs it is a run, as with replay: previewed, confirmed, resumed where it was.

    \b
    Examples:
      pos-gateway dlq discard A-1001
      pos-gateway dlq discard --reason undecodable --until 7d
      pos-gateway dlq discard --all --reason undecodable --yes

    Exit code: 0; 1 if anything was refused, not all letters came, or the run was stopped; or 130 if
    it was broken off with Ctrl-C.
    """
    from pos_gateway.administration.bulk.run import BulkAction

    if _is_resumed(BulkAction.DISCARD, change):
        return
    if change.ids:
        if change.dry_run or change.as_json:
            raise click.UsageError("--dry-run and --json are for letters that the options select")
        _discard_by_id(change, even_open=even_open)
        return
    if change.everything and not yes and not change.dry_run:
        raise click.UsageError("--all removes letters for good; say --yes too")
    how = bulk.options_of(rate=change.rate, even_open=even_open)
    _run(BulkAction.DISCARD, change, how, is_confirmed=yes)


def _is_resumed(action: "BulkAction", change: _Change) -> bool:
    """Whether it was to resume a run, which has been done; else letters are named."""
    if change.run_id is None:
        _require_named(change)
        return False
    if change.is_named:
        raise click.UsageError("--resume goes on with the letters of its run; give no others")
    bulk.resume(change.run_id, [action], operator=change.operator, as_json=change.as_json)
    return True


def _run(action: "BulkAction", change: _Change, how: "BulkOptions", *, is_confirmed: bool) -> None:
    """Preview and run it; or only say what would be done."""
    filter_ = bulk.filter_of(**change.narrowed)
    if change.dry_run:
        bulk.dry_run(action, filter_, how, limit=change.limit, as_json=change.as_json)
        return
    bulk.start(
        action,
        filter_,
        how,
        operator=change.operator,
        limit=change.limit,
        is_confirmed=is_confirmed,
        as_json=change.as_json,
    )


def _replay_by_id(change: _Change, until: datetime | None) -> None:
    from pos_gateway.administration.replay import Replay
    from pos_gateway.broker.publisher import Publisher
    from pos_gateway.routing.splits import in_force
    from pos_gateway.settings import Settings

    settings = Settings.from_environment()
    would_be = "would be " if change.dry_run else ""
    refused = replayed = 0
    publisher = Publisher(settings.broker_url)
    try:
        with order_admin() as ledger, _dead_letters() as letters, CtrlC() as ctrl_c:
            replaying = Replay(
                ledger,
                publish=publisher.publish,
                acknowledge=letters.acknowledge,
                operator=change.operator,
                split=in_force(settings.broker_url, settings.canary_percent),
                until=until,
                largest=settings.max_order_bytes,
                dry_run=change.dry_run,
            )
            selected = _by_id(change).to_change(letters, change.limit)
            for letter in ctrl_c.until_pressed(selected):
                why_not = replaying.replay(letter)
                refused, replayed = refused + bool(why_not), replayed + (not why_not)
                if change.as_json:
                    result = "refused" if why_not else f"{would_be}replayed".replace(" ", "_")
                    output.json_line(
                        {
                            "id": letter.id,
                            "order_id": letter.order_id,
                            "merchant_id": letter.merchant_id,
                            "result": result,
                            "why": why_not and why_not.why,
                        }
                    )
                elif why_not:
                    output.notice(f"{letter.id}: {why_not}")
    finally:
        publisher.close()
        if not change.as_json and replayed + refused:
            click.echo(f"{replayed} {would_be}replayed, {refused} refused")
    if ctrl_c.pressed or refused:
        raise click.exceptions.Exit(INTERRUPTED if ctrl_c.pressed else 1)


def _discard_by_id(change: _Change, *, even_open: bool) -> None:
    from pos_gateway.administration.discard import Discard

    discarded = refused = 0
    try:
        with order_admin() as ledger, _dead_letters() as letters:
            discarding = Discard(ledger, letters.acknowledge, change.operator, even_open)
            for letter in _by_id(change).to_change(letters, change.limit):
                why_not = discarding.discard(letter)
                refused, discarded = refused + bool(why_not), discarded + (not why_not)
                if why_not:
                    output.notice(f"{letter.id}: {why_not}")
    finally:
        click.echo(f"{discarded} discarded" + (f", {refused} refused" if refused else ""))
    if refused:
        raise click.exceptions.Exit(1)


def _by_id(change: _Change) -> Selection:
    """The letters with these ids, among those that the options select."""
    filter_ = bulk.filter_of(**change.narrowed)
    providers = _providers(filter_)
    return Selection(
        change.ids,
        lambda letter: filter_.has_letter(letter, providers),
        names_merchant=bool(filter_.merchants),
    )


def _selected(narrowed: dict[str, Any]) -> "Iterator[DeadLetter]":
    """The letters that the options select, in the order of the queue."""
    filter_ = bulk.filter_of(**narrowed)
    providers = _providers(filter_)
    with _dead_letters() as letters:
        for letter in letters:
            if filter_.has_letter(letter, providers):
                yield letter


def _providers(filter_: "BulkFilter") -> dict[str, str | None]:
    from pos_gateway.merchants.search import provider_of_each

    if not filter_.providers:
        return {}
    with database() as engine:
        return provider_of_each(engine)


def _dead_letters() -> "DeadLetterQueue":
    from pos_gateway.broker.dead_letter_queue import DeadLetterQueue
    from pos_gateway.settings import Settings

    return DeadLetterQueue(Settings.from_environment().broker_url)


def _require_named(change: _Change) -> None:
    if change.ids and change.everything:
        raise click.UsageError("give the IDs of letters, or --all")
    if not change.is_named:
        raise click.UsageError(
            "give the IDs of letters, or --all, or which with --reason, --merchant, --provider, "
            "--since, --until or --only"
        )


def _summary(letter: "DeadLetter") -> dict[str, Any]:
    """A letter's data without the order's content, which may be shown to any operator."""
    return {
        "id": letter.id,
        "order_id": letter.order_id,
        "merchant_id": letter.merchant_id,
        "code": letter.code,
        "reason": letter.reason,
        "at": shown(letter.at),
    }


def _content(letter: "DeadLetter", *, reveal: bool) -> dict[str, Any]:
    from pos_gateway.broker.dead_letter import NotReplayable
    from pos_gateway.domain.masking import masked
    from pos_gateway.domain.order import CancelRequest, Order

    plain = {name: each for name, each in letter.headers.items() if isinstance(each, str | int)}
    why_not, body = None, None
    try:
        content = letter.content()
    except NotReplayable as error:
        why_not = str(error)
    else:
        if isinstance(content, Order):
            body = masked(content)
        elif isinstance(content, CancelRequest):
            fields = {"order_id", "merchant_id", "deliver_by"}
            body = content.model_dump(mode="json", include=fields)
    if reveal:
        body = _whole(letter.body)
    return {
        "bytes": len(letter.body),
        "headers": plain if reveal else {each: plain[each] for each in _KNOWN_HEADERS & {*plain}},
        "not_replayable": why_not,
        "body": body,
    }


def _whole(body: bytes) -> Any:
    try:
        whole = json.loads(body)
        json.dumps(whole, indent=2)  # as it will be shown: it may be nested too deeply for that
        return whole
    except (ValueError, RecursionError):
        return body.decode(errors="backslashreplace")
