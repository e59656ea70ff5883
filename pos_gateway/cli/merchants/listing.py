"""``pos-gateway merchants list``."""

import click

from pos_gateway.cli import output
from pos_gateway.cli.database import merchant_store

#: Headings narrow enough for a terminal.
_COLUMNS = {
    "ID": "id",
    "PROVIDER": "provider",
    "ADAPTER": "adapter",
    "BASE_URL": "base_url",
    "LIMIT": "max_concurrency",
    "TIMEOUT": "request_timeout",
    "PAUSED": "paused",
}


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="JSON Lines, as merchants import takes them.")
def list_(as_json: bool) -> None:
    """List every merchant, by id: a table on a terminal, tab-separated values into a pipe.

    \b
    Examples:
      pos-gateway merchants list
      pos-gateway merchants list --json > merchants.jsonl
    """
    with merchant_store() as store:
        found = store.all()
        if as_json:
            for merchant in found:
                output.json_line(merchant.model_dump(mode="json", exclude_none=True))
            return
        output.table(
            tuple(_COLUMNS),
            ([getattr(merchant, name) for name in _COLUMNS.values()] for merchant in found),
        )
