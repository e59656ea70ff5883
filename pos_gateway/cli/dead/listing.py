"""``pos-gateway dlq list``."""

from dataclasses import replace
from time import time
from typing import Any

import click

from pos_gateway.cli import output
from pos_gateway.cli.counts import LIMIT
from pos_gateway.cli.dead.letter import Letter
from pos_gateway.cli.dead.queue import DeadLetters
from pos_gateway.cli.dead.selection import Selection, selecting
from pos_gateway.cli.failure import Failure
from pos_gateway.cli.moments import age, shown
from pos_gateway.settings import Settings


@click.command("list")
@selecting
@click.option(
    "--limit",
    type=LIMIT,
    default=100,
    show_default=True,
    metavar="N",
    help="At most N of them.",
)
@click.option("--json", "as_json", is_flag=True, help="JSON Lines.")
def list_(code: str | None, merchant_id: str | None, limit: int, as_json: bool) -> None:
    """List dead letters and their reasons, the oldest first. Nothing is taken from the queue.

    Workers may run meanwhile, but no other pos-gateway dlq.

    \b
    Examples:
      pos-gateway dlq list
      pos-gateway dlq list --reason unknown_merchant --json | jq -r .merchant_id | sort | uniq -c
    """
    selection = Selection(code=code, merchant_id=merchant_id)
    found: list[Letter] = []
    count = 0
    incomplete: Failure | None = None
    with DeadLetters(Settings.from_environment().broker_url) as letters:
        try:
            for letter in selection.of(letters):
                count += 1
                if count <= limit:
                    found.append(replace(letter, body=b""))
        except Failure as failure:
            incomplete = failure
    if as_json:
        for letter in found:
            output.json_line(summary(letter))
    else:
        now = time()
        output.table(
            ("ID", "MERCHANT", "AGE", "CODE", "REASON"),
            [
                (each.id, each.merchant_id, age(each.at, now), each.code, each.reason)
                for each in found
            ],
        )
    if count > limit:
        output.notice(f"there are {count}; --limit N shows N")
    if incomplete is not None:
        raise incomplete


def summary(letter: Letter) -> dict[str, Any]:
    """A letter's data without the order's content, which may be shown to any operator."""
    return {
        "id": letter.id,
        "order_id": letter.order_id,
        "merchant_id": letter.merchant_id,
        "code": letter.code,
        "reason": letter.reason,
        "at": shown(letter.at),
    }
