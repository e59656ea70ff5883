"""``pos-gateway merchants slow``: which merchants are in trouble."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from pos_gateway.cli import options, output
from pos_gateway.cli.database import database
from pos_gateway.cli.failure import Failure
from pos_gateway.reports.report import GREEN
from pos_gateway.reports.words import duration, seconds

if TYPE_CHECKING:
    from pos_gateway.administration.troubles import InTrouble, Troubles
    from pos_gateway.reports.fleet_view import Fleet

#: Seconds within which a worker that lives reports again.
NEXT_REPORT = 2.5
_COLUMNS = ("MERCHANT", "STATE", "REPLY", "IN_FLIGHT", "WAITING", "PARKED", "SINCE", "LAST_ERROR")


@click.command(short_help="Say which are in trouble, worst first.")
@click.option("--limit", type=options.LIMIT, default=50, show_default=True, metavar="N", help="At most N of them.")  # fmt: skip
@options.as_json_lines
def slow(limit: int, as_json: bool) -> None:
    """List the merchants in trouble over all workers, the one that holds up most orders first.

    REPLY is the last reply time, and what is usual. IN_FLIGHT is of the limit in force. The workers
    report themselves every two seconds: none has to be asked, and no metrics are needed. A merchant
    most of whose orders failed in the last ten minutes is listed, too. Before it says that no merchant
    is in trouble, it waits for each worker's next report.

    \b
    Examples:
      pos-gateway merchants slow
      pos-gateway merchants slow --json | jq -r 'select(.parked > 100) | .merchant_id'

    Exit code: 0, or 1 if no green worker reports: then only failing orders are known.
    """
    from pos_gateway.administration.troubles import troubles

    with database() as engine:
        found = _of_now(lambda: troubles(engine, limit))
    if as_json:
        for each in found.worst:
            output.json_line(_record(each))
    elif found.worst:
        output.table(_COLUMNS, map(_row, found.worst))
    if not found.fleet.watching:
        raise Failure(_no_worker(found.fleet))
    _notice(found)


def _of_now(
    look: "Callable[[], Troubles]",
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> "Troubles":
    """What there is, or what the next reports of all workers say if none has trouble yet."""
    began, found = monotonic(), look()
    while not found.worst and (passed := monotonic() - began) < NEXT_REPORT:
        if all(each.age < passed for each in found.fleet.workers if each.report.kind == GREEN):
            break
        sleep(0.1)
        found = look()
    return found


def _no_worker(fleet: "Fleet") -> str:
    lost = ""
    if fleet.lost:
        name, age = min(fleet.lost.items(), key=lambda each: each[1])
        lost = f"; the last one, {name}, was lost {duration(age)} ago"
    return (
        f"no green worker reports to this database{lost}. Is one running, of this release, and with the same "
        "POS_GATEWAY_DATABASE_URL? pos-gateway doctor says what is wrong here"
    )


def _notice(found: "Troubles") -> None:
    number = found.fleet.watching
    reporting = "1 worker reports" if number == 1 else f"{number} workers report"
    if not found.worst:
        output.notice(f"no merchant is in trouble: {reporting}")
    elif found.more:
        output.notice(f"there are at least {found.more} more; --limit N shows N")


def _row(each: "InTrouble") -> list[object]:
    seen = each.trouble
    reply = " / ".join(filter(None, (seconds(seen.latest), seconds(seen.usual))))
    error = f"{seen.error}, {duration(seen.error_ago)} ago" if seen.error else None
    if not seen.workers:  # only its outcomes are known
        return [seen.merchant_id, each.words, *[None] * 6]
    in_flight = f"{seen.in_flight} of {seen.limit}"
    since = duration(seen.since)
    return [seen.merchant_id, each.words, reply, in_flight, seen.waiting, seen.parked, since, error]


def _record(each: "InTrouble") -> dict[str, Any]:
    seen = each.trouble
    return {
        "merchant_id": seen.merchant_id,
        "state": each.words,
        "paused": each.record.paused,
        "breaker": seen.breaker,
        "breakers": dict(seen.breakers),
        "reply_seconds": seen.latest,
        "usual_reply_seconds": seen.usual,
        "in_flight": seen.in_flight,
        "limit": seen.limit,
        "waiting": seen.waiting,
        "parked": seen.parked,
        "since_seconds": round(seen.since, 1),
        "last_error": seen.error,
        "last_error_seconds": round(seen.error_ago, 1) if seen.error else None,
        "workers": seen.workers,
        "outcomes": seen.failing._asdict() if seen.failing else None,
    }
