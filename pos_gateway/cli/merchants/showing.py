"""``pos-gateway merchants show``."""

import difflib
from collections.abc import Iterable

import click

from pos_gateway.cli import output
from pos_gateway.cli.database import merchant_store
from pos_gateway.cli.failure import Failure
from pos_gateway.domain.merchant import Merchant
from pos_gateway.merchants.store import MerchantStore


@click.command()
@click.argument("merchant_id", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def show(merchant_id: str, as_json: bool) -> None:
    """Show the merchant with this ID.

    \b
    Example:
      pos-gateway merchants show m1
    """
    [merchant] = require([merchant_id])
    record = merchant.model_dump(mode="json")
    if as_json:
        output.json_document(record)
    else:
        output.table(("FIELD", "VALUE"), record.items())


def require(ids: Iterable[str]) -> list[Merchant]:
    """The merchants with these ids, each once. Raises Failure for missing ones."""
    wanted = list(dict.fromkeys(ids))
    with merchant_store() as store:
        found = store.get(wanted)
        missing = [merchant_id for merchant_id in wanted if merchant_id not in found]
        if missing:
            raise Failure("\n".join(unknown(merchant_id, store) for merchant_id in missing))
    return [found[merchant_id] for merchant_id in wanted]


def unknown(merchant_id: str, store: MerchantStore) -> str:
    """The message for a missing merchant, with similar ids."""
    near = difflib.get_close_matches(merchant_id, (m.id for m in store.all()), n=3)
    advice = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    return f"no merchant has the id {merchant_id!r}{advice}"
