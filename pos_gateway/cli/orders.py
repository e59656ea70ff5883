"""``pos-gateway orders``: the ledger's orders, and decisions that need an operator."""

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from pos_gateway.cli import bulk, options, output, revealing
from pos_gateway.cli.database import database, order_admin
from pos_gateway.cli.groups import Group
from pos_gateway.cli.moments import Length, Moment, deadline, new_deadline
from pos_gateway.domain.outcome import one_line
from pos_gateway.ledger.states import Action, Key, State
from pos_gateway.runtime.clock import shown

if TYPE_CHECKING:
    from pos_gateway.ledger.attempts import RecordedAttempt
    from pos_gateway.ledger.order_admin import OrderAdmin, OrderStanding

_STYLES = {
    State.ACCEPTED: "green",
    State.REJECTED: "red",
    State.FAILED: "bold red",
    State.EXPIRED: "yellow",
    State.CANCELLED: "yellow",
    State.PENDING: "cyan",
    State.IN_DOUBT: "bold magenta",
}
#: Headings narrow enough for a terminal.
_COLUMNS = {
    "ORDER": "order_id",
    "MERCHANT": "merchant_id",
    "STATE": "state",
    "CANCEL": "cancellation",
    "ATTEMPTS": "attempts",
    "REASON": "reason",
    "POS_ID": "external_id",
    "SINCE": "updated_at",
    "DELIVER_BY": "deliver_by",
}
#: What ``show`` has of an attempt; --json has the rest.
_OF_ATTEMPT = ("at", "action", "did", "seconds", "came", "outcome", "reason", "worker")
#: A message may be redelivered this late, and must find its order's outcome.
_LEAST_AGE = timedelta(days=1)


@click.group(cls=Group)
def orders() -> None:
    """Look orders up in the ledger, and resolve those in doubt at a POS without look-up.

    The POS may or may not have an order in doubt: ask the merchant, then resolve it.
    """


@orders.command("list", short_help="List orders and how they stand.")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([state.value for state in State]),
    help="Only those in this state; repeatable.",
)
@options.of_merchant
@click.option("--order", "order_id", metavar="ID", help="Only this order, whosever it is.")
@click.option("--older-than", type=Length(), metavar="LENGTH", help="Nothing happened since: 10m.")
@click.option("--newer-than", type=Length(), metavar="LENGTH", help="Something happened since: 1h.")
@options.limit
@options.as_json_lines
def list_(
    states: tuple[str, ...],
    merchant_id: str | None,
    order_id: str | None,
    older_than: timedelta | None,
    newer_than: timedelta | None,
    limit: int,
    as_json: bool,
) -> None:
    """List orders and their state, the most recently changed first.

    CANCEL is the state of the order's cancel request. A rejection's reason is in the POS's own
    words, which may repeat the customer's: orders show has it.

    \b
    Examples:
      pos-gateway orders list --state in_doubt
      pos-gateway orders list --state new --older-than 10m --merchant m1
      pos-gateway orders list --state failed --newer-than 1h --json | jq -r .order_id
    """
    with order_admin() as ledger:
        found = ledger.orders(
            states=[State(each) for each in states],
            merchant_id=merchant_id,
            order_id=order_id,
            older_than=older_than.total_seconds() if older_than else None,
            newer_than=newer_than.total_seconds() if newer_than else None,
            limit=limit + 1,
        )
    records = [_summary(each) for each in found[:limit]]
    if as_json:
        for record in records:
            output.json_line(record)
    else:
        rows = [[record[name] for name in _COLUMNS.values()] for record in records]
        output.table(tuple(_COLUMNS), rows, style=lambda row: _STYLES.get(State(str(row[2])), ""))
    if len(found) > limit:
        output.notice(f"there are more than these {limit}; --limit N shows N")


@orders.command(short_help="Show all that is known of one.")
@click.argument("order_id", metavar="ORDER_ID")
@options.whose_order
@revealing.options_of("With the customer, the notes and the POS's words; the audit has it.")
@options.as_json_object
def show(
    order_id: str,
    merchant_id: str | None,
    reveal: bool,
    reason: str | None,
    operator: str | None,
    as_json: bool,
) -> None:
    """Show all that the ledger has of an order: its state and its cancellation's, the steps at its POS,
    the last attempts, the events, what operators did, what of the order its POS has in a note, and the order itself.

    Personal data is masked. --reveal shows it, once the audit has a line of that: where the database
    is read-only, nothing is revealed.

    \b
    Examples:
      pos-gateway orders show A-1001
      pos-gateway orders show A-1001 --merchant m1 --reveal --reason 'the merchant asks' --json
    """
    with order_admin() as ledger:
        found = ledger.find(order_id, merchant_id)
        if reveal:
            from pos_gateway.audit.note import Note

            note = Note("orders.reveal", found.merchant_id, found.order_id, "orders show")
            revealing.record([note], operator, reason)
        record = _record(ledger, found, reveal=reveal)
    if as_json:
        output.json_document(record)
        return
    for part in ("order", "cancellation"):
        if record[part] is not None:
            output.table((part.upper(), "VALUE"), record[part].items())
    if record["steps"]:
        rows = [list(each.values()) for each in record["steps"]]
        output.table(("STEP", "STATE", "SINCE"), rows)
    for sentence in filter(None, (record["at_pos"], record["advice"])):
        output.line((sentence, ""))
    if record["attempt_history"]:
        rows = [[each[name] for name in _OF_ATTEMPT] for each in record["attempt_history"]]
        output.table([name.upper() for name in _OF_ATTEMPT], rows)
    for part in filter(record.get, ("events", "audit", "adapted")):
        rows = [list(row.values()) for row in record[part]]
        output.table([name.upper() for name in record[part][0]], rows)
    if record["adapted_more"]:
        output.line((f"further adapted fields: {record['adapted_more']:,}", ""))
    if record["content"]:
        output.json_document(record["content"])
    else:
        output.line((record["no_content"], ""))


@orders.command(short_help="Decide on those in doubt.")
@click.argument("order_id", metavar="[ORDER_ID]", required=False)
@click.option(
    "--merchant",
    "merchants",
    multiple=True,
    metavar="ID",
    help="Whose, if several have that id; without an id: only this merchant's, repeatable.",
)
@click.option("--accepted", "decision", flag_value="accepted", help="The POS has it.")
@click.option("--not-sent", "decision", flag_value="not_sent", help="The POS does not have it.")
@click.option("--external-id", metavar="ID", help="The POS's own id for it, with --accepted.")
@click.option(
    "--since",
    type=Moment(),
    metavar="TIME",
    help="Only if nothing has happened to it since: SINCE of orders list, before the merchant was asked.",
)
@click.option("--all", "everything", is_flag=True, help="All that are in doubt.")
@click.option(
    "--reason",
    "codes",
    multiple=True,
    metavar="CODE",
    help="Only those with this reason; repeatable.",
)
@click.option(
    "--provider",
    "providers",
    multiple=True,
    metavar="NAME",
    help="Only this provider's merchants'; repeatable.",
)
@click.option(
    "--older-than", type=Length(), metavar="LENGTH", help="In doubt for longer than that: 1h."
)
@click.option("--newer-than", type=Length(), metavar="LENGTH", help="In doubt for less: 1d.")
@options.limit_of_changes
@click.option(
    "--yes", is_flag=True, help="Decide on all that the options select, without a question."
)
@bulk.running
@click.option("--dry-run", is_flag=True, help="Only say which would be decided on.")
@click.option("--json", "as_json", is_flag=True, help="JSON Lines: the outcome of each.")
@new_deadline
@options.by_operator
def resolve(
    order_id: str | None,
    merchants: tuple[str, ...],
    decision: str | None,
    external_id: str | None,
    since: datetime | None,
    everything: bool,
    codes: tuple[str, ...],
    providers: tuple[str, ...],
    older_than: timedelta | None,
    newer_than: timedelta | None,
    limit: int | None,
    yes: bool,
    rate: float,
    run_id: int | None,
    dry_run: bool,
    as_json: bool,
    moment: datetime | None,
    length: timedelta | None,
    operator: str,
) -> None:
    """Decide on an order in doubt, or on those that the options select, after asking the merchant
    whether the POS has them.

    --accepted ends it, and publishes order.accepted. --not-sent has it sent again; if its
    deliver_by has passed it ends as order.expired, unless it is given a new one; if it has a cancel
    request, or was made at a POS that takes several steps, as order.cancelled. If the command is
    interrupted, run it again.

    Without an ORDER_ID it is a run: previewed, confirmed, at --rate orders a second; an order to
    which something happens after the preview is refused. Stopped or killed, it is resumed.

    \b
    Examples:
      pos-gateway orders resolve A-1001 --accepted --external-id K-77
      pos-gateway orders resolve A-1001 --merchant m1 --not-sent --for 30m
      pos-gateway orders resolve A-1001 --not-sent --since 2026-01-31T12:00:00Z
      pos-gateway orders resolve --not-sent --merchant m1 --reason blind --older-than 1h
      pos-gateway orders resolve --resume 12

    Exit code: 0, or 1 if an order is not in doubt, a worker has it at this moment, its external id
    is another order's, or a run was stopped; 130 if it was broken off with Ctrl-C.
    """
    from pos_gateway.administration.bulk.run import BulkAction

    narrows = any((everything, codes, providers, older_than, newer_than))
    if run_id is not None:
        if narrows or order_id or merchants or decision:
            raise click.UsageError("--resume goes on with the orders of its run; give no others")
        actions = (BulkAction.ACCEPTED, BulkAction.NOT_SENT)
        bulk.resume(run_id, actions, operator=operator, as_json=as_json)
        return
    until = deadline(moment, length)
    there = _is_there(decision, external_id, until)
    if order_id is not None:
        if narrows or dry_run or as_json or len(merchants) > 1:
            raise click.UsageError("with an ORDER_ID give no options for many orders")
        merchant_id = merchants[0] if merchants else None
        _resolve_one(
            order_id, merchant_id, external_id, since, until, there=there, operator=operator
        )
        return
    if not narrows and not merchants:
        raise click.UsageError(
            "give an ORDER_ID, or --all, or which with --merchant, --provider, --reason, "
            "--older-than or --newer-than"
        )
    if external_id is not None or since is not None:
        raise click.UsageError("--external-id and --since are for one order: give its ORDER_ID")
    now = datetime.now(UTC)
    filter_ = bulk.filter_of(
        codes=codes,
        merchants=merchants,
        providers=providers,
        since=now - newer_than if newer_than else None,
        until=now - older_than if older_than else None,
    )
    action = BulkAction.ACCEPTED if there else BulkAction.NOT_SENT
    how = bulk.options_of(rate=rate, moment=moment, length=length)
    if dry_run:
        bulk.dry_run(action, filter_, how, limit=limit, as_json=as_json)
        return
    bulk.start(
        action, filter_, how, operator=operator, limit=limit, is_confirmed=yes, as_json=as_json
    )


def _is_there(decision: str | None, external_id: str | None, until: datetime | None) -> bool:
    """Whether the merchant said that the POS has the order; a usage error if the options differ."""
    if decision is None:
        raise click.UsageError("say what the merchant said: --accepted or --not-sent")
    there = decision == "accepted"
    if there and until is not None:
        raise click.UsageError("--for and --deliver-by are for an order that is --not-sent")
    if not there and external_id is not None:
        raise click.UsageError("--external-id is for an order that is --accepted")
    if external_id is not None and not _is_an_id(external_id):
        raise click.UsageError(
            "--external-id has 1 to 256 characters on one line that can be printed"
        )
    return there


def _resolve_one(
    order_id: str,
    merchant_id: str | None,
    external_id: str | None,
    since: datetime | None,
    until: datetime | None,
    *,
    there: bool,
    operator: str,
) -> None:
    from pos_gateway.administration.resolve import Resolution
    from pos_gateway.broker.publisher import Publisher
    from pos_gateway.domain.split import Split
    from pos_gateway.routing.splits import in_force
    from pos_gateway.settings import Settings

    settings = Settings.from_environment()
    publisher = Publisher(settings.broker_url)
    split = Split()
    try:
        if not there:  # before anything is written: the order must be published afterwards
            publisher.connect()
            split = in_force(settings.broker_url, settings.canary_percent)
        with order_admin() as ledger:
            resolution = Resolution(ledger, publisher, operator, split, since=since)
            order = ledger.find(order_id, merchant_id)
            if there:
                done = resolution.accepted(order, external_id)
            else:
                done = resolution.not_sent(order, until)
    finally:
        publisher.close()
    click.echo(f"order {order.order_id!r} of merchant {order.merchant_id!r} {done}")


@orders.command(short_help="Remove those that are long over.")
@click.option(
    "--older-than", type=Length(), required=True, metavar="LENGTH", help="Ended before that: 30d."
)
@options.only_count
def prune(older_than: timedelta, dry_run: bool) -> None:
    """Remove the content of orders that have ended, and their events. What operators did stays.

    An order is pruned only once its deliver_by has passed for as long, too. Its outcome is kept for
    30 days more. Workers keep running; they prune by themselves with POS_GATEWAY_KEEP_ORDERS.

    \b
    Examples:
      pos-gateway orders prune --older-than 30d --dry-run
      pos-gateway orders prune --older-than 30d
    """
    from pos_gateway.ledger import pruning

    if older_than < _LEAST_AGE:
        raise click.BadParameter(
            "less than 1d: a message that comes again must still find its order",
            param_hint="--older-than",
        )
    counts = (0, 0, 0)
    with database() as engine:
        now = pruning.present(engine, datetime.now(UTC).timestamp())
        before = now - older_than.total_seconds()
        if dry_run:
            counts = pruning.countable(engine, before)
        else:
            for some in pruning.prune(engine, before):
                so_far = sum(counts) // 10_000
                counts = (counts[0] + some[0], counts[1] + some[1], counts[2] + some[2])
                if so_far < sum(counts) // 10_000:
                    output.notice(
                        f"{counts[0]} orders, {counts[1]} rows and {counts[2]} events so far"
                    )
    would = "would be " if dry_run else ""
    click.echo(
        f"{counts[0]} orders {would}emptied, {counts[1]} rows and {counts[2]} events {would}removed, "
        f"from before {shown(before)}"
    )


def _is_an_id(text: str) -> bool:
    return 0 < len(text) <= 256 and one_line(text) == text


def _summary(order: "OrderStanding") -> dict[str, Any]:
    """An order's data without its content, which may be shown to any operator."""
    from pos_gateway.domain.masking import MASK

    code, _ = _reason(order.state, order.reason_code, None, reveal=False)
    return {
        "order_id": order.order_id,
        "merchant_id": order.merchant_id,
        "state": order.state.value,
        "cancellation": order.cancellation.value if order.cancellation else None,
        "attempts": order.attempts,
        "reason": None if code == MASK else code,
        "external_id": order.external_id,
        "held_by": order.owner,
        "in_doubt_since": shown(order.first_doubt),
        "deliver_by": shown(order.deliver_by),
        "created_at": shown(order.created_at),
        "updated_at": shown(order.updated_at),
        "reopened": order.reopened,
    }


def _record(ledger: "OrderAdmin", order: "OrderStanding", *, reveal: bool) -> dict[str, Any]:
    from pos_gateway.adapters.adapted import adapted_in

    cancel_request = Key(order.merchant_id, order.order_id, Action.CANCEL)
    cancellation = ledger.one(cancel_request)
    content, why_not = _content(ledger, order, reveal=reveal)
    fields, more = adapted_in(ledger.adapted(order.key))
    return {
        "order": _standing(order, reveal=reveal),
        "cancellation": cancellation and _standing(cancellation, reveal=reveal),
        **_steps(ledger, order),
        "attempt_history": [
            _attempt(each, key.action, reveal=reveal)
            for key in (order.key, cancel_request)
            for each in ledger.attempts(key)
        ],
        "events": [_event(each, reveal=reveal) for each in ledger.events(order.key)],
        "audit": [
            {
                "at": shown(each["at"]),
                **{name: each[name] for name in ("operator", "what", "details")},
            }
            for each in ledger.audit(order.key)
        ],
        "adapted": [{"field": each.field, "as": each.as_} for each in fields],
        "adapted_more": more,
        "content": content,
        "no_content": why_not,
    }


def _steps(ledger: "OrderAdmin", order: "OrderStanding") -> dict[str, Any]:
    """The order's steps at its POS, and what they mean for an operator."""
    from pos_gateway.adapters.registry import adapters
    from pos_gateway.adapters.steps import steps_of
    from pos_gateway.administration.order_steps import step_words, steps_at_pos

    adapter = adapters().get(ledger.adapter_of(order.merchant_id) or "")
    now = datetime.now(UTC).timestamp()
    steps = steps_at_pos(order, steps_of(adapter) if adapter else (), now)
    said = step_words(order, steps)
    return {
        "steps": [
            {"name": each.name, "state": each.state.value, "since": shown(each.since)}
            for each in steps
        ],
        "at_pos": said and said.known,
        "advice": said and (said.following or None),
    }


def _content(
    ledger: "OrderAdmin", order: "OrderStanding", *, reveal: bool
) -> tuple[Any, str | None]:
    """The order itself, or why it cannot be shown."""
    from pos_gateway.domain.errors import InvalidOrder
    from pos_gateway.domain.masking import masked
    from pos_gateway.domain.order import Order
    from pos_gateway.runtime.vault import CannotOpen

    try:
        order_json = ledger.order_json(order.key)
    except CannotOpen as error:
        return None, f"the order is {error}"
    if order_json is None:
        return None, "the order itself is not kept: it was pruned, or only a cancel request came"
    if reveal:
        return json.loads(order_json), None
    try:
        return masked(Order.parse_json(order_json)), None
    except InvalidOrder as error:  # kept by a release that took it
        wrong = ", ".join(each.field for each in error.errors)
        return None, f"the order itself is not valid in this release ({wrong}): see --reveal"


def _standing(order: "OrderStanding", *, reveal: bool) -> dict[str, Any]:
    code, message = _reason(order.state, order.reason_code, order.reason_message, reveal=reveal)
    return {
        **_summary(order),
        "deaths": order.deaths,
        "last_event": order.last_event,
        "reason": order.reason_code and code,
        "reason_message": message,
    }


def _attempt(attempt: "RecordedAttempt", action: Action, *, reveal: bool) -> dict[str, Any]:
    state = attempt.reason_kind(action)
    code, message = _reason(state, attempt.reason_code, attempt.reason_message, reveal=reveal)
    return {
        "at": shown(attempt.at),
        "action": action.value,
        "did": attempt.did,
        "waited_seconds": attempt.waited,
        "claim_seconds": attempt.claim,
        "connect_seconds": attempt.connect,
        "first_byte_seconds": attempt.first_byte,
        "seconds": attempt.seconds,
        "came": attempt.came,
        "outcome": attempt.outcome,
        "reason": code,
        "message": message,
        "worker": attempt.worker,
    }


def _event(event: dict[str, Any], *, reveal: bool) -> dict[str, Any]:
    code, message = _reason(
        event["type"], event["reason_code"], event["reason_message"], reveal=reveal
    )
    return {
        "at": shown(event["occurred_at"]),
        "type": f"order.{event['type']}",
        "attempts": event["attempts"],
        "external_id": event["external_id"],
        "reason": code,
        "message": message,
        "id": event["event_id"],
    }


def _reason(
    state: str, code: str | None, message: str | None, *, reveal: bool
) -> tuple[str | None, str | None]:
    """The reason, masked where it may be in the POS's own words, which may repeat the customer's."""
    from pos_gateway.domain.masking import is_in_pos_words, masked_reason

    is_hidden = not reveal and code and is_in_pos_words(state, code)
    return masked_reason(state, code) if is_hidden and code else (code, message)
