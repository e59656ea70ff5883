"""``pos-gateway merchants catalog``: the POSes' ids for the items of our orders."""

from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import click

from pos_gateway.adapters.pos_fields import POS_ID
from pos_gateway.adapters.registry import adapters
from pos_gateway.audit.note import By
from pos_gateway.cli import jsonl, options, output
from pos_gateway.cli.database import catalog_store, merchant_store
from pos_gateway.cli.failure import Failure
from pos_gateway.cli.groups import Group, Lazy
from pos_gateway.cli.merchants import require, unusable
from pos_gateway.domain.catalog import MAX_ENTRIES, CatalogEntry
from pos_gateway.domain.errors import FieldError, InvalidCatalogEntry, InvalidRecord
from pos_gateway.domain.merchant import Merchant

COMMANDS = {"pull": Lazy("pos_gateway.cli.catalog_pull:pull", "Make one from the POS's own.")}


@click.group(cls=Group, lazy=COMMANDS)
def catalog() -> None:
    """Map the items and modifiers of our orders, by sku, to a merchant's POS's ids.

    An item in the catalog is sent under the POS's id, any other by its name and price if the POS
    accepts that. Workers see a change within seconds.
    """


@catalog.command("import", short_help="Write catalogs from a file.")
@click.argument("file", type=click.File("rb"))
@options.reason
@options.by_operator
def import_(file: BinaryIO, reason: str | None, operator: str) -> None:
    """Write the catalogs in FILE (- is standard input): one JSON object a line, or one list.

    An object has a merchant_id, one of our skus, and the merchant's POS's pos_id for it. A
    merchant's entries are its whole catalog, and replace the previous one; merchants that are not
    in FILE keep theirs. Every entry is checked first, and if one is wrong nothing is written.

    \b
    Examples:
      pos-gateway merchants catalog import catalogs.jsonl
      echo '{"merchant_id": "m1", "sku": "burger", "pos_id": "W62UWFY35CWMYGVWK6TWJDNI"}' \\
        | pos-gateway merchants catalog import -

    Exit code: 0, or 1 if nothing was written.
    """
    given = [(place, _entry(record)) for place, record in jsonl.records(file)]
    if not given:
        raise Failure(jsonl.EMPTY)
    ids = {entry.merchant_id for _, entry in given if isinstance(entry, CatalogEntry)}
    with merchant_store() as merchants:
        checked = _Checked(merchants.get(sorted(ids)))
    for place, entry in given:
        checked.add(place, entry)
    if checked.problems:
        raise Failure(f"{checked.problems} of {len(given)} entries are wrong; none was written")
    with catalog_store() as catalogs:
        catalogs.put(checked.catalogs, By(operator, reason))
    entries = "entry" if len(given) == 1 else "entries"
    of = "merchant" if len(ids) == 1 else "merchants"
    click.echo(f"{len(given)} {entries} imported for {len(ids)} {of}")


@catalog.command(short_help="Show a merchant's catalog.")
@click.argument("merchant_id", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="JSON Lines, as catalog import takes them.")
def show(merchant_id: str, as_json: bool) -> None:
    """Show the catalog of the merchant with this ID, by sku.

    \b
    Examples:
      pos-gateway merchants catalog show m1
      pos-gateway merchants catalog show m1 --json > catalog.jsonl
    """
    require([merchant_id])
    with catalog_store() as catalogs:
        entries = sorted(catalogs.get(merchant_id).items())
    if as_json:
        for sku, pos_id in entries:
            output.json_line({"merchant_id": merchant_id, "sku": sku, "pos_id": pos_id})
    else:
        output.table(("SKU", "POS_ID"), entries)


@catalog.command(short_help="Forget merchants' catalogs.")
@click.argument("merchant_ids", metavar="ID...", nargs=-1, required=True)
@options.reason
@options.by_operator
def clear(merchant_ids: Sequence[str], reason: str | None, operator: str) -> None:
    """Remove the catalogs of the merchants with these IDs.

    Their orders are sent as if there had been none.

    \b
    Example:
      pos-gateway merchants catalog clear m1 m2
    """
    require(merchant_ids)
    with catalog_store() as catalogs:
        catalogs.put({each: {} for each in merchant_ids}, By(operator, reason))
    number = len(set(merchant_ids))
    click.echo(f"{number} catalog{'' if number == 1 else 's'} cleared")


def _entry(record: Any) -> CatalogEntry | InvalidRecord:
    if isinstance(record, InvalidRecord):
        return record
    try:
        return CatalogEntry.parse(record)
    except InvalidCatalogEntry as error:
        return error


class _Checked:
    """The valid catalogs, by merchant; invalid entries are reported and counted."""

    def __init__(self, merchants: Mapping[str, Merchant]) -> None:
        self.catalogs: dict[str, dict[str, str]] = {}
        self.problems = 0
        self._merchants = merchants
        self._places: dict[tuple[str, str], str] = {}
        self._adapters = adapters(unusable)

    def add(self, place: str, entry: CatalogEntry | InvalidRecord) -> None:
        errors = entry.errors if isinstance(entry, InvalidRecord) else self._wrong(entry)
        if errors:
            self.problems += 1
            for each in errors:
                output.notice(f"{place}: {each}")
        elif isinstance(entry, CatalogEntry):
            self.catalogs.setdefault(entry.merchant_id, {})[entry.sku] = entry.pos_id
            self._places[entry.merchant_id, entry.sku] = place

    def _wrong(self, entry: CatalogEntry) -> Sequence[FieldError]:
        merchant = self._merchants.get(entry.merchant_id)
        if merchant is None:
            problem = "is no merchant's here; pos-gateway merchants import writes them"
            return [FieldError("merchant_id", problem, entry.merchant_id)]
        before = self._places.get((entry.merchant_id, entry.sku))
        if before is not None:
            return [FieldError("sku", f"was given by {before} already", entry.sku)]
        if len(self.catalogs.get(entry.merchant_id, ())) >= MAX_ENTRIES:
            return [
                FieldError("sku", f"is one more than the {MAX_ENTRIES} of a merchant", entry.sku)
            ]
        adapter = self._adapters.get(merchant.adapter)
        if adapter is None:
            return []
        problems = adapter.check(merchant.with_catalog({entry.sku: entry.pos_id}))
        return [each for each in problems if each.field == POS_ID]
