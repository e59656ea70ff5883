"""``pos-gateway merchants import``: writes records from a file, all of them or none."""

from collections.abc import Mapping
from importlib.metadata import EntryPoint
from typing import Any, BinaryIO

import click

from pos_gateway.adapters.protocol import Adapter
from pos_gateway.adapters.registry import adapters
from pos_gateway.cli import jsonl
from pos_gateway.cli.database import merchant_store
from pos_gateway.cli.failure import Failure
from pos_gateway.cli.merchants.records import records
from pos_gateway.cli.output import notice
from pos_gateway.domain.errors import FieldError, InvalidMerchant
from pos_gateway.domain.merchant import Merchant
from pos_gateway.runtime.vault import CannotOpen


@click.command("import")
@click.argument("file", type=click.File("rb"))
def import_(file: BinaryIO) -> None:
    """Write the merchants in FILE (- is standard input): one JSON object a line, or one list.

    Every record is checked first, and if one is wrong none is written. A record replaces the one
    with the same id; merchants that are not in FILE stay as they are. A paused merchant stays
    paused unless its record says otherwise.

    \b
    Examples:
      pos-gateway merchants import merchants.jsonl
      echo '{"id": "m1", "base_url": "https://pos.example.com/api"}' \\
        | pos-gateway merchants import -

    Exit code: 0, or 1 if nothing was written.
    """
    checked = _Checked()
    for place, record in records(file):
        checked.add(place, record)
    if checked.problems:
        raise Failure(f"{checked.problems} of {checked.count} records are wrong; none was written")
    with merchant_store() as store:
        try:
            written = store.put(checked.merchants.values())
        except CannotOpen as error:
            raise Failure(f"none was written: {error}") from error
    click.echo(f"{written} merchant{'' if written == 1 else 's'} imported")


class _Checked:
    """The valid records, by id; invalid ones are reported and counted."""

    def __init__(self) -> None:
        self.merchants: dict[str, Merchant] = {}
        self.count = 0
        self.problems = 0
        self._places: dict[str, str] = {}
        self._adapters = adapters(unusable)

    def add(self, place: str, record: Any) -> None:
        self.count += 1
        try:
            if isinstance(record, jsonl.InvalidLine):
                raise InvalidMerchant([record.error])
            merchant = Merchant.parse(record)
            if problems := misfits(merchant, self._adapters):
                raise InvalidMerchant(problems)
            self._require_first(merchant)
        except InvalidMerchant as error:
            self.problems += 1
            for each in error.errors:
                notice(f"{place}: {each.field}: {each.problem}")  # the value may be secret
        else:
            self.merchants[merchant.id] = merchant
            self._places[merchant.id] = place

    def _require_first(self, merchant: Merchant) -> None:
        before = self._places.get(merchant.id)
        if before is not None:
            raise InvalidMerchant([FieldError("id", f"was given by {before} already", merchant.id)])


def misfits(merchant: Merchant, known: Mapping[str, Adapter]) -> list[FieldError]:
    """Errors in the merchant for its adapter, which may be unknown here."""
    adapter = known.get(merchant.adapter)
    if adapter is None:
        problem = f"is not one of the adapters here: {', '.join(sorted(known))}"
        return [FieldError("adapter", problem, merchant.adapter)]
    return adapter.check(merchant)


def unusable(entry: EntryPoint, why: BaseException) -> None:
    """Report an adapter that is left out."""
    notice(f"the adapter {entry.name!r} ({entry.value}) cannot be used: {why!r}")
