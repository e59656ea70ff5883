"""Options that several commands have."""

import socket

import click

from pos_gateway.domain.outcome import one_line

_LONGEST_NAME, _LONGEST_REASON = 128, 500

#: A --limit, and an event's position: what the database can hold.
LIMIT = click.IntRange(1, 2**31 - 1)
POSITION = click.IntRange(1, 2**63 - 1)

limit = click.option("--limit", type=LIMIT, default=100, show_default=True, metavar="N", help="At most N of them.")  # fmt: skip
limit_of_changes = click.option("--limit", type=LIMIT, metavar="N", help="At most N of them.")
whose_order = click.option("--merchant", "merchant_id", metavar="ID", help="Whose, if several have that id.")  # fmt: skip
of_merchant = click.option("--merchant", "merchant_id", metavar="ID", help="Only this merchant's.")
only_count = click.option("--dry-run", is_flag=True, help="Only say how many there are.")
as_json_lines = click.option("--json", "as_json", is_flag=True, help="JSON Lines.")
as_json_object = click.option("--json", "as_json", is_flag=True, help="One JSON object.")
as_json_document = click.option("--json", "as_json", is_flag=True, help="One JSON document.")


def _named(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    name = value.strip()
    if not name or len(name) > _LONGEST_NAME or not name.isprintable():
        raise click.BadParameter(f"a name has 1 to {_LONGEST_NAME} characters that can be shown")
    return name


def _of_reason(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    reason = " ".join((value or "").split())
    if len(reason) > _LONGEST_REASON or one_line(reason) != reason:
        raise click.BadParameter(
            f"a reason has at most {_LONGEST_REASON} characters that can be shown"
        )
    return reason or None


reason = click.option("--reason", metavar="TEXT", callback=_of_reason, help="Why, for the audit and the next operator.")  # fmt: skip

by_operator_if_named = click.option(
    "--as",
    "operator",
    envvar="USER",
    metavar="NAME",
    callback=lambda ctx, param, value: value and _named(ctx, param, value),
    help="Who does this, for the audit. Default: $USER.",
)
by_operator = click.option(
    "--as",
    "operator",
    envvar="USER",
    default=socket.gethostname,
    metavar="NAME",
    callback=_named,
    help="Who does this, for the audit and others. Default: $USER, or this machine's name.",
)
