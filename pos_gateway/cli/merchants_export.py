"""``pos-gateway merchants export``: records as an import takes them."""

from collections.abc import Sequence

import click

from pos_gateway.cli import options, output
from pos_gateway.cli.merchants import administration, require


@click.command(short_help="Write records as import takes them.")
@click.argument("merchant_ids", metavar="[ID]...", nargs=-1)
@click.option("--reveal", is_flag=True, help="With the secrets in clear; the audit has it.")
@options.reason
@options.by_operator_if_named
def export(
    merchant_ids: Sequence[str], reveal: bool, reason: str | None, operator: str | None
) -> None:
    """Write the merchants with these IDs, or all, as JSON Lines that merchants import takes.

    Secrets are sealed: they open where POS_GATEWAY_SECRET_KEY has the same key, and for the same
    merchant alone. --reveal writes them in clear, for each merchant with a line in the audit.

    \b
    Examples:
      pos-gateway merchants export > merchants.jsonl
      pos-gateway merchants export m1 --reveal --reason 'moves to the other region'
      pos-gateway merchants export | pos-gateway merchants import -
    """
    from pos_gateway.audit.note import By

    ids = list(dict.fromkeys(merchant_ids)) or None
    if ids:
        require(ids)
    with administration() as admin:
        if not reveal:
            for record in admin.exported(ids):
                output.json_line(record)
            return
        if operator is None:
            raise click.UsageError("--reveal needs --as NAME: who is shown the secrets")
        for record in admin.revealed(ids, By(operator, reason)):
            output.json_line(record)
