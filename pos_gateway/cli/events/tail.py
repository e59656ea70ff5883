"""``pos-gateway events tail``."""

import itertools
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from pos_gateway.cli import output
from pos_gateway.cli.counts import LIMIT
from pos_gateway.cli.moments import Length
from pos_gateway.domain.outcome import Kind

_PREFIX = "order."
#: Every event type; a retry publishes none.
TYPES = tuple(kind.value for kind in Kind if kind is not Kind.RETRY)
#: Maximum earlier events shown.
MOST = 10_000
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
@click.option("--merchant", "merchants", multiple=True, metavar="ID", help="Only this merchant's orders; repeatable.")  # fmt: skip
@click.option("--order", "orders", multiple=True, metavar="ID", help="Only this order; repeatable.")
@click.option("-n", "last", type=click.IntRange(1, MOST), metavar="N", help="The last N first.")
@click.option("--since", type=Length(), metavar="LENGTH", help="Those of the last 10m first.")
@click.option("--limit", type=LIMIT, metavar="N", help="End after N events.")
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
    wanted = _Wanted(types, merchants, orders)
    print_one = output.json_line if as_json or not sys.stdout.isatty() else _print
    try:
        for event in itertools.islice(_events(wanted, last, since), limit):
            print_one(event)
    except KeyboardInterrupt:
        return


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A filter of events; an empty field matches any."""

    types: tuple[str, ...]
    merchants: tuple[str, ...]
    orders: tuple[str, ...]

    def has(self, event: dict[str, Any]) -> bool:
        """Whether this event matches. The broker has filtered by type."""
        return (not self.merchants or event.get("merchant_id") in self.merchants) and (
            not self.orders or event.get("order_id") in self.orders
        )


def _events(wanted: _Wanted, last: int | None, since: timedelta | None) -> Iterator[dict[str, Any]]:
    from pos_gateway.cli.events.archive import archive
    from pos_gateway.cli.events.subscription import Subscription
    from pos_gateway.settings import Settings

    keys = [_PREFIX + each for each in dict.fromkeys(wanted.types)] or ["#"]
    shown: set[str] = set()

    def earlier() -> Iterator[bytes]:
        if last is None and since is None:
            return
        moment = None if since is None else (datetime.now(UTC) - since).timestamp()
        with archive() as kept:
            for message in kept.latest(
                last or MOST,
                since=moment,
                types=wanted.types,
                merchant_ids=wanted.merchants,
                order_ids=wanted.orders,
            ):
                yield message.body
                shown.add(message.message_id)

    url = Settings.from_environment().broker_url
    for event in _decoded(Subscription(url, keys, notice=output.notice, earlier=earlier)):
        number = str(event.get("id"))  # another publisher's id may have any type
        if number in shown:
            # Published while the earlier ones were read: skipped once; a second time it is a
            # replay.
            shown.remove(number)
        elif wanted.has(event):
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
