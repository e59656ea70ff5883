"""Bulk runs on the command line: preview, confirmation, progress, and how to resume."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pos_gateway.cli import output
from pos_gateway.cli.database import database, payloads
from pos_gateway.cli.exit_codes import INTERRUPTED
from pos_gateway.cli.failure import Failure
from pos_gateway.cli.interrupt import CtrlC
from pos_gateway.cli.moments import Since
from pos_gateway.cli.options import LIMIT
from pos_gateway.cli.progress import ShownProgress, progress_to

if TYPE_CHECKING:
    from pos_gateway.administration.bulk.filter import BulkFilter
    from pos_gateway.administration.bulk.operations import BulkOperations
    from pos_gateway.administration.bulk.options import BulkOptions
    from pos_gateway.administration.bulk.run import (
        BulkAction,
        BulkItem,
        BulkRun,
        NewItem,
        RefusalCount,
    )
    from pos_gateway.administration.refusal import Refusal

Command = TypeVar("Command", bound=Callable[..., Any])

#: Seconds between two tries to resume a run whose process may have died.
_RETRY_AFTER = 1.0
#: What one of a run's items is called, and several.
_NAMES = {"dlq": ("letter", "letters"), "orders": ("order", "orders")}


#: The parameters of ``filters``.
FILTERS = ("codes", "merchants", "providers", "since", "until", "only")


def filters(command: Command) -> Command:
    """The options that narrow dead letters down; ``filter_of`` combines them."""
    for option in (
        click.option("--only", type=click.Choice(["orders", "cancel-requests"]), help="Only orders, or only requests to cancel one."),
        click.option("--until", type=Since(), metavar="TIME", help="Dead-lettered before that."),
        click.option("--since", type=Since(), metavar="TIME", help="Dead-lettered since then: 2h (ago), or 2026-01-31T12:00:00Z."),
        click.option("--provider", "providers", multiple=True, metavar="NAME", help="Only this provider's merchants'; repeatable."),
        click.option("--merchant", "merchants", multiple=True, metavar="ID", help="Only this merchant's; repeatable."),
        click.option("--reason", "codes", multiple=True, metavar="CODE", help="Only those with this reason; repeatable."),
    ):  # fmt: skip
        command = option(command)
    return command


def running(command: Command) -> Command:
    """The options of a command that may start a run."""
    for option in (
        click.option("--resume", "run_id", type=LIMIT, metavar="RUN", help="Go on with a run that was stopped or interrupted."),
        click.option("--rate", type=click.FloatRange(0.1, 1000), default=20.0, show_default=True, metavar="N", help="At most N a second."),
    ):  # fmt: skip
        command = option(command)
    return command


def filter_of(
    *,
    codes: Sequence[str] = (),
    merchants: Sequence[str] = (),
    providers: Sequence[str] = (),
    ids: Sequence[str] = (),
    since: datetime | None = None,
    until: datetime | None = None,
    only: str | None = None,
) -> "BulkFilter":
    """The filter that the options describe."""
    from pos_gateway.administration.bulk.filter import BulkFilter

    if since is not None and until is not None and until <= since:
        raise click.UsageError("--until is not after --since, so nothing can be between them")
    return BulkFilter(
        codes=tuple(codes),
        merchants=tuple(merchants),
        providers=tuple(providers),
        ids=tuple(ids),
        since=None if since is None else since.timestamp(),
        until=None if until is None else until.timestamp(),
        only=only,
    )


def options_of(
    *,
    rate: float,
    moment: datetime | None = None,
    length: timedelta | None = None,
    even_open: bool = False,
) -> "BulkOptions":
    """The options that a run has."""
    from pos_gateway.administration.bulk.options import BulkOptions

    return BulkOptions(
        rate=rate,
        seconds=length.total_seconds() if length else None,
        deliver_by=moment.isoformat() if moment else None,
        even_open=even_open,
    )


@contextmanager
def operations() -> "Iterator[BulkOperations]":
    """Bulk operations on the configured broker and database while entered."""
    from pos_gateway.administration.bulk.operations import BulkOperations
    from pos_gateway.settings import Settings

    with database() as engine:
        yield BulkOperations(Settings.from_environment(), engine, payloads())


def dry_run(
    action: "BulkAction",
    filter_: "BulkFilter",
    options: "BulkOptions",
    *,
    limit: int | None,
    as_json: bool,
) -> None:
    """Say what a run would do; nothing is stored. Exits with 1 if anything would be refused."""
    from pos_gateway.administration.bulk.run import Refusals

    accepted = refused = 0
    refusals = Refusals()
    with operations() as bulk:
        for item in bulk.found(action, filter_, options):
            is_refused = item.refusal is not None
            refused, accepted = refused + is_refused, accepted + (not is_refused)
            if as_json:
                result = "refused" if is_refused else f"would_be_{action.past}".replace(" ", "_")
                output.json_line(_line(item, result, item.refusal))
            if item.refusal is not None:
                refusals.add(item.letter, item.refusal)
            if limit is not None and accepted + refused >= limit:
                break
    if not as_json:
        for each in refusals.most(refused):
            output.notice(_because(each))
        click.echo(f"{accepted} would be {action.past}, {refused} refused")
    if refused:
        raise click.exceptions.Exit(1)


def start(
    action: "BulkAction",
    filter_: "BulkFilter",
    options: "BulkOptions",
    *,
    operator: str,
    limit: int | None,
    is_confirmed: bool,
    as_json: bool,
) -> None:
    """Preview a run, have it confirmed unless it is, and run it to the end.

    Exits with 1 if anything was refused or was gone, or the run was stopped; 130 after Ctrl-C.
    """
    if not is_confirmed and not _is_asked():
        raise click.UsageError("say --yes to have it done, or --dry-run to see what would be")
    with operations() as bulk:
        run = bulk.preview(action, filter_, options, operator, limit=limit)
        if not is_confirmed:
            for line in in_words(run, bulk.store.refusals(run.id)).splitlines():
                output.notice(line)
        if run.left and not is_confirmed and not click.confirm(_question(run), err=True):
            bulk.store.previews.discard(run.id)
            raise Failure("nothing was done")
        if as_json or is_confirmed:
            for item, refusal in bulk.store.refused(run.id):
                _say(item, refusal, action, ShownProgress(), as_json=as_json)
        if run.left == 0:
            bulk.store.previews.discard(run.id)
            _end(run, as_json=as_json, is_pressed=False)
            return
        _run(bulk, run, operator, as_json=as_json, is_resumed=False)


def resume(run_id: int, actions: "Sequence[BulkAction]", *, operator: str, as_json: bool) -> None:
    """Go on with a run, whose process may have died a moment ago."""
    with operations() as bulk:
        run = bulk.store.run(run_id)
        if run.action not in actions:
            raise Failure(
                f"{run} is not one of this command's; pos-gateway runs list shows which is"
            )
        until = time.monotonic() + _lease()
        while bulk.store.run(run_id).is_leased and time.monotonic() < until:
            if time.monotonic() + _RETRY_AFTER < until:
                output.notice(f"{run} has a process; waiting in case it died")
            time.sleep(_RETRY_AFTER)
        _run(bulk, run, operator, as_json=as_json, is_resumed=True)


def in_words(run: "BulkRun", refusals: "Sequence[RefusalCount]") -> str:
    """A preview: how many, and why the others would be refused."""
    one, several = _NAMES[run.action.partition(".")[0]]
    text = (
        f"{run.total:,} {one if run.total == 1 else several}: "
        f"{run.left:,} would be {run.action.past}, {run.refused:,} refused"
    )
    return "\n".join([text, *map(_because, refusals)])


def _because(refused: "RefusalCount") -> str:
    more = ", …" if refused.count > len(refused.examples) else ""
    return f"  {refused.count:,} because {refused.kind} ({', '.join(refused.examples)}{more})"


def counted(run: "BulkRun") -> str:
    """What a run has done, in words."""
    is_plain = run.action == "dlq.discard" and not run.refused
    refused = "" if is_plain else f", {run.refused} refused"
    return f"{run.done} {run.action.past}{refused}"


def _run(
    bulk: "BulkOperations", run: "BulkRun", operator: str, *, as_json: bool, is_resumed: bool
) -> None:
    from pos_gateway.administration.bulk.runner import Watcher
    from pos_gateway.domain.errors import PosGatewayError

    expected = None if is_resumed else run.total
    began, acted = time.monotonic(), 0
    done, refused = run.done, run.refused
    with CtrlC() as ctrl_c, progress_to(run.total) as shown:

        def on_item(item: "BulkItem", refusal: "Refusal | None") -> None:
            nonlocal acted, done, refused
            acted += 1
            done, refused = done + (refusal is None), refused + (refusal is not None)
            if refusal is not None or as_json:
                _say(item, refusal, run.action, shown, as_json=as_json)
            a_second = acted / max(time.monotonic() - began, 0.001)
            left = run.total - done - refused
            words = f"{done} {run.action.past}, {refused} refused, {left} left, {a_second:.1f}/s"
            shown.update(words, done + refused)

        watcher = Watcher(is_stopped=lambda: ctrl_c.pressed, on_item=on_item)
        try:
            ended = bulk.run(
                run.id,
                operator,
                total=expected,
                refused=None if is_resumed else run.refused,
                watcher=watcher,
            )
        except PosGatewayError:
            now = bulk.store.run(run.id)
            if now.left and now.started_at is not None:
                _end_notice(now)
            raise
    _end(ended, as_json=as_json, is_pressed=ctrl_c.pressed)


def _end(run: "BulkRun", *, as_json: bool, is_pressed: bool) -> None:
    is_cut_short = run.left > 0 and run.started_at is not None
    if is_cut_short:
        _end_notice(run)
    if run.gone:
        output.notice(f"{run.gone} were not in the queue any more: another operator had them")
    if not as_json:
        click.echo(counted(run))
    if is_cut_short and is_pressed:
        raise click.exceptions.Exit(INTERRUPTED)
    if run.refused or run.gone or is_cut_short:
        raise click.exceptions.Exit(1)


def _end_notice(run: "BulkRun") -> None:
    by = "" if run.stopped_by is None else f" by {run.stopped_by}"
    output.notice(
        f"run {run.id} was stopped{by} with {run.left} of {run.total} left; "
        f"to go on: pos-gateway runs resume {run.id}"
    )


def _say(
    item: "BulkItem | NewItem",
    refusal: "Refusal | None",
    action: "BulkAction",
    shown: ShownProgress,
    *,
    as_json: bool,
) -> None:
    if as_json:
        result = action.past.replace(" ", "_") if refusal is None else "refused"
        output.json_line(_line(item, result, refusal))
    elif refusal is not None:
        shown.say(f"{item.letter}: {refusal}")


def _line(item: "BulkItem | NewItem", result: str, refusal: "Refusal | None") -> dict[str, Any]:
    return {
        "id": item.letter,
        "order_id": item.order_id,
        "merchant_id": item.merchant_id,
        "result": result,
        "why": None if refusal is None else refusal.why,
    }


def _is_asked() -> bool:
    """Whether there is a person to answer a question."""
    return sys.stdin.isatty()


def _question(run: "BulkRun") -> str:
    verbs = {"dlq.replay": "replay", "dlq.discard": "remove for good", "orders.accepted": "accept"}
    return f"{verbs.get(run.action, 'send again')} {run.left:,} now?"


def _lease() -> float:
    from pos_gateway.administration.bulk.store import LEASE

    return LEASE + _RETRY_AFTER
