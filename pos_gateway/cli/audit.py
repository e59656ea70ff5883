"""``pos-gateway audit``: who did what, when and why."""

from collections import deque
from collections.abc import Iterable, Iterator
from datetime import datetime
from threading import Event
from typing import TYPE_CHECKING, Any

import click

from pos_gateway.cli import options, output
from pos_gateway.cli.database import database
from pos_gateway.cli.moments import Since
from pos_gateway.runtime.clock import shown

if TYPE_CHECKING:
    from pos_gateway.audit.log import AuditFilter, AuditLine, AuditLog

_COLUMNS = ("AT", "OPERATOR", "WHAT", "MERCHANT", "ORDER", "DETAILS", "REASON")
#: Seconds between two looks for new lines.
EVERY = 1.0
#: What the audit calls a command group that has another name now.
_NAMES = {"dlq": "dead"}


@click.command(short_help="Say who did what, when and why.")
@options.of_merchant
@click.option("--order", "order_id", metavar="ID", help="Only what was done to this order.")
@click.option("--operator", metavar="NAME", help="Only what this operator, or token, did.")
@click.option("--since", type=Since(), metavar="TIME", help="Only since then: a time, or 2h, 7d.")
@click.option("--what", metavar="WHAT", help="Only this: merchants.pause, or all of merchants.")
@options.limit
@click.option("--all", "everything", is_flag=True, help="Every line, however many there are.")
@click.option("--follow", is_flag=True, help="Go on with new ones, until Ctrl-C.")
@options.as_json_lines
def audit(
    merchant_id: str | None,
    order_id: str | None,
    operator: str | None,
    since: datetime | None,
    what: str | None,
    limit: int,
    everything: bool,
    follow: bool,
    as_json: bool,
) -> None:
    """List the lines of the audit, the newest last: what operators did to merchants, orders, dead
    letters, events and tokens, and what was done over HTTP.

    Of a change of a merchant it has each field before and after; of a secret only that it was changed.

    \b
    Examples:
      pos-gateway audit --merchant m1
      pos-gateway audit --what merchants.pause --since 12h
      pos-gateway audit --all --json > audit.jsonl
      pos-gateway audit --operator kim --follow
    """
    from pos_gateway.audit.log import AuditFilter, AuditLog

    first, _, rest = (what or "").partition(".")
    name = ".".join(filter(None, (_NAMES.get(first, first), rest))) or None
    moment = since.timestamp() if since else None
    wanted = AuditFilter(merchant_id, order_id, operator, moment, name)
    with database() as engine:
        log = AuditLog(engine)
        lines = log.all(wanted) if everything else iter(log.last(wanted, limit))
        if not follow:
            _print(lines, as_json=as_json)
            return
        try:
            _print(_and_new(log, wanted, lines), as_json=as_json, one_by_one=True)
        except KeyboardInterrupt:
            return


def _and_new(
    log: "AuditLog", wanted: "AuditFilter", lines: "Iterator[AuditLine]"
) -> "Iterator[AuditLine]":
    from pos_gateway.audit.log import KEPT, AuditTail

    listed: deque[AuditLine] = deque(maxlen=KEPT)
    for each in lines:
        listed.append(each)
        yield each
    tail = AuditTail(log, wanted, list(listed))
    while True:
        yield from tail.look()
        Event().wait(EVERY)


def _print(lines: "Iterable[AuditLine]", *, as_json: bool, one_by_one: bool = False) -> None:
    if as_json:
        for each in lines:
            output.json_line(_record(each))
    elif one_by_one:
        for each in lines:
            output.line(*_parts(each))
    else:
        output.table(_COLUMNS, map(_row, lines))


def _row(line: "AuditLine") -> list[object]:
    about = [line.merchant_id or None, line.order_id or None]
    return [shown(line.at), line.operator, line.what, *about, line.in_words or None, line.reason]


def _parts(line: "AuditLine") -> list[tuple[str, str]]:
    cells = [str(each) for each in _row(line) if each]
    return [(f"{cells[0]}  ", "dim"), *((f"{each}  ", "") for each in cells[1:])]


def _record(line: "AuditLine") -> dict[str, Any]:
    return {
        "id": line.id,
        "at": shown(line.at),
        "operator": line.operator,
        "what": line.what,
        "merchant_id": line.merchant_id or None,
        "order_id": line.order_id or None,
        "details": line.details or None,
        "changes": dict(line.changes),
        "reason": line.reason,
    }
