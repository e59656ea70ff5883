"""``pos-gateway dlq show``."""

import json
from typing import Any

import click

from pos_gateway.cli import output
from pos_gateway.cli.dead.letter import Letter, NotReplayable
from pos_gateway.cli.dead.listing import summary
from pos_gateway.cli.dead.queue import DeadLetters
from pos_gateway.cli.dead.selection import Selection
from pos_gateway.cli.masking import masked
from pos_gateway.domain.order import CancelRequest, Order
from pos_gateway.settings import Settings


@click.command()
@click.argument("letter_id", metavar="ID")
@click.option("--reveal", is_flag=True, help="With the whole body, customer and all.")
@click.option("--json", "as_json", is_flag=True, help="JSON Lines.")
def show(letter_id: str, reveal: bool, as_json: bool) -> None:
    """Show the letters with this ID: why they are there, their headers, and the order.

    The customer's data is masked. An invalid message's body is not shown at all, since its personal
    data cannot be located. --reveal shows both.

    \b
    Examples:
      pos-gateway dlq show A-1001
      pos-gateway dlq show A-1001 --reveal --json
    """
    with DeadLetters(Settings.from_environment().broker_url) as letters:
        found = list(Selection(ids=(letter_id,)).of(letters))
    for letter in found:
        record = {**summary(letter), **_content(letter, reveal=reveal)}
        if as_json:
            output.json_line(record)
            continue
        body = record.pop("body")
        output.table(("FIELD", "VALUE"), record.items())
        if body is not None:
            output.json_document(body)


def _content(letter: Letter, *, reveal: bool) -> dict[str, Any]:
    plain = {
        name: value for name, value in letter.headers.items() if isinstance(value, str | int | bool)
    }
    why_not, body = None, None
    try:
        content = letter.content()
    except NotReplayable as error:
        why_not = str(error)
    else:
        if isinstance(content, Order):
            body = masked(content)
        elif isinstance(content, CancelRequest):
            body = content.model_dump(
                mode="json", include={"order_id", "merchant_id", "deliver_by"}
            )
    if reveal:
        body = _whole(letter.body)
    return {
        "bytes": len(letter.body),
        "headers": plain if reveal else {name: plain[name] for name in _TOLD & plain.keys()},
        "not_replayable": why_not,
        "body": body,
    }


#: Headers set by the gateway or the broker.
_TOLD = {"task", "x-attempts", "x-in-doubt", "x-orders", "x-deliver-by", "x-content-type"}


def _whole(body: bytes) -> Any:
    try:
        whole = json.loads(body)
        json.dumps(whole, indent=2)  # as it will be shown: it may be nested too deeply for that
        return whole
    except (ValueError, RecursionError):
        return body.decode(errors="backslashreplace")
