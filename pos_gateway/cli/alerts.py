"""``pos-gateway alerts``: what needs a person, and a trial of the webhook."""

import time

import click

from pos_gateway.cli import options, output
from pos_gateway.cli.database import database
from pos_gateway.cli.failure import Failure
from pos_gateway.cli.groups import Group
from pos_gateway.cli.moments import age


@click.group(cls=Group)
def alerts() -> None:
    """What needs a person, as pos-gateway serve sends it to POS_GATEWAY_ALERT_URL.

    \b
    Examples:
      pos-gateway alerts test
      pos-gateway alerts list
    """


@alerts.command("test", short_help="Send a test alert, and say what came back.")
def try_out() -> None:
    """Send a test alert to POS_GATEWAY_ALERT_URL, and say what came back.

    It is signed like the others, is sent once, and changes nothing. It needs no database.

    \b
    Example:
      export POS_GATEWAY_ALERT_URL=https://alerts.example.com/hook
      export POS_GATEWAY_ALERT_SECRET_FILE=/run/secrets/alerts
      pos-gateway alerts test

    Exit code: 0, or 1 if the receiver has not confirmed it with a status of 2xx.
    """
    from pos_gateway.alerts.message import trial_message
    from pos_gateway.alerts.sender import sender_of
    from pos_gateway.runtime.clock import SYSTEM_CLOCK
    from pos_gateway.settings import Settings

    sender = sender_of(Settings.from_environment(), SYSTEM_CLOCK)
    if sender is None:
        raise Failure(
            "POS_GATEWAY_ALERT_URL is not set: no alerts are sent. docs/alerts.md says how"
        )
    message = trial_message(SYSTEM_CLOCK.now())
    began = time.monotonic()
    problem = sender.send(message)
    if problem is not None:
        raise Failure(f"{sender.host} has not confirmed the test alert {message.id}: {problem}")
    took = time.monotonic() - began
    click.echo(f"{sender.host} has confirmed the test alert {message.id} in {took * 1000:.0f} ms")


@alerts.command("list", short_help="Show the alerts that have begun.")
@options.as_json_lines
def show(as_json: bool) -> None:
    """Show the alerts that have begun, the oldest first, and whether they were sent.

    Of a server without POS_GATEWAY_ALERT_URL there are none.

    \b
    Examples:
      pos-gateway alerts list
      pos-gateway alerts list --json | jq -r 'select(.state == "firing").says'
    """
    from pos_gateway.alerts.store import AlertStore

    with database() as engine:
        found = AlertStore(engine).all()
    if as_json:
        for each in found:
            output.json_line(
                {
                    "alert": each.condition,
                    "subject": each.subject,
                    "state": each.state,
                    "since": each.since,
                    "says": each.says,
                    "count": each.count,
                    "sent": each.is_sent,
                    "attempts": each.attempts,
                }
            )
        return
    output.table(
        ("ALERT", "SUBJECT", "STATE", "SINCE", "SENT", "ATTEMPTS", "WHAT"),
        [
            (
                each.condition,
                each.subject,
                each.state,
                age(each.since, time.time()),
                each.is_sent,
                each.attempts,
                each.says,
            )
            for each in found
        ],
    )
