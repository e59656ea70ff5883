"""``pos-gateway events tail``."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import click

from pos_gateway.cli import output
from pos_gateway.outcome import Kind

_PREFIX = "order."
#: Every event there is; that an order is tried again is no news to the backend.
TYPES = tuple(kind.value for kind in Kind if kind is not Kind.RETRY)
_STYLES = {
    "accepted": "green",
    "pending": "cyan",
    "cancelled": "yellow",
    "expired": "yellow",
    "rejected": "red",
    "failed": "bold red",
    "in_doubt": "bold magenta",
}


class _EventType(click.Choice[str]):
    """``accepted`` or ``order.accepted``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return super().convert(str(value).removeprefix(_PREFIX), param, ctx)


@click.command()
@click.option(
    "--type", "types", multiple=True, type=_EventType(TYPES), help="Only this type; repeatable."
)
@click.option("--merchant", metavar="ID", help="Only this merchant's orders.")
@click.option("--order", metavar="ID", help="Only this order.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="End after N events.")
@click.option("--json", "as_json", is_flag=True, help="JSON Lines: whole events.")
def tail(
    types: tuple[str, ...],
    merchant: str | None,
    order: str | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """Print events as they happen, until Ctrl-C. The backend still gets every one of them.

    What happened before is not shown, nor what happens while the broker is away.

    \b
    Examples:
      pos-gateway events tail --type failed --type in_doubt
      pos-gateway events tail --merchant m1 --json | jq .reason
    """
    from pos_gateway.cli.events.subscription import Subscription
    from pos_gateway.settings import Settings

    keys = [_PREFIX + each for each in dict.fromkeys(types)] or ["#"]
    url = Settings.from_environment().broker_url
    wanted = (
        event
        for event in _decoded(iter(Subscription(url, keys, notice=output.notice)))
        if merchant in (None, event.get("merchant_id")) and order in (None, event.get("order_id"))
    )
    try:
        for event in itertools.islice(wanted, limit):
            if as_json:
                output.json_line(event)
            else:
                _print(event)
    except KeyboardInterrupt:
        return


def _decoded(bodies: Iterator[bytes]) -> Iterator[dict[str, Any]]:
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
    output.line(
        (f"{event.get('occurred_at')}  ", "dim"),
        (f"{kind:<9}", _STYLES.get(kind, "")),
        (f"  merchant {event.get('merchant_id')}  order {event.get('order_id')}", ""),
        (f"  POS id {event['external_id']}" if event.get("external_id") else "", ""),
        (f"  attempts {event['attempts']}" if event.get("attempts") else "", ""),
        (f"  position {position}" if position is not None else "", "dim"),
        (
            f"  {reason.get('code')}: {reason.get('message')}" if isinstance(reason, dict) else "",
            "",
        ),
    )
