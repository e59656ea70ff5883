"""``pos-gateway merchants import``: records from a file, all of them or none."""

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from io import BytesIO
from typing import Any, BinaryIO

import click

from pos_gateway.adapters.registry import adapters
from pos_gateway.cli import jsonl
from pos_gateway.cli.database import merchant_store
from pos_gateway.cli.failure import Failure
from pos_gateway.cli.output import notice
from pos_gateway.errors import FieldError, InvalidMerchant
from pos_gateway.merchant import Merchant
from pos_gateway.vault import CannotOpen

#: Bytes of the largest file: all or nothing means that it is held in memory.
FILE_LIMIT = 256 * 2**20


@click.command("import")
@click.argument("file", type=click.File("rb"))
def import_(file: BinaryIO) -> None:
    """Write the merchants in FILE (- is standard input): one JSON object a line, or one list.

    Every record is checked first, and if one is wrong none is written. A record replaces the one
    with the same id; merchants that are not in FILE stay as they are.

    \b
    Examples:
      pos-gateway merchants import merchants.jsonl
      echo '{"id": "m1", "base_url": "https://pos.example.com/api"}' \\
        | pos-gateway merchants import -

    Exit code: 0, or 1 if nothing was written.
    """
    checked = _Checked()
    for place, record in _records(_text(file)):
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
    """The records that are right, by id; those that are not are reported and counted."""

    def __init__(self) -> None:
        self.merchants: dict[str, Merchant] = {}
        self.count = 0
        self.problems = 0
        self._places: dict[str, str] = {}
        self._adapters = adapters(_unusable)

    def add(self, place: str, record: Any) -> None:
        self.count += 1
        try:
            if isinstance(record, jsonl.InvalidLine):
                raise InvalidMerchant([record.error])
            merchant = Merchant.parse(record)
            self._require_adapter(merchant)
            self._require_first(merchant)
        except InvalidMerchant as error:
            self.problems += 1
            for each in error.errors:
                notice(f"{place}: {each}")
        else:
            self.merchants[merchant.id] = merchant
            self._places[merchant.id] = place

    def _require_adapter(self, merchant: Merchant) -> None:
        adapter = self._adapters.get(merchant.adapter)
        if adapter is None:
            problem = f"is not one of the adapters here: {', '.join(sorted(self._adapters))}"
            raise InvalidMerchant([FieldError("adapter", problem, merchant.adapter)])
        problems = adapter.check(merchant)
        if problems:
            raise InvalidMerchant(problems)

    def _require_first(self, merchant: Merchant) -> None:
        before = self._places.get(merchant.id)
        if before is not None:
            raise InvalidMerchant([FieldError("id", f"was given by {before} already", merchant.id)])


def _unusable(entry: EntryPoint, why: BaseException) -> None:
    notice(f"the adapter {entry.name!r} ({entry.value}) cannot be used: {why!r}")


def _text(file: BinaryIO) -> bytes:
    try:
        text = file.read(FILE_LIMIT + 1)
    except OSError as error:
        raise Failure(f"cannot read {file.name}: {error.strerror}") from error
    if len(text) > FILE_LIMIT:
        raise Failure(f"{file.name} is longer than {FILE_LIMIT} bytes; import it in parts")
    return text.removeprefix(jsonl.BOM)


def _records(text: bytes) -> Iterator[tuple[str, Any]]:
    """Every record with its place; InvalidLine in place of one that cannot be decoded."""
    try:
        value = jsonl.parse(text)
    except ValueError as error:
        if text.lstrip().startswith(b"["):
            yield "the list", jsonl.InvalidLine(FieldError(jsonl.WHOLE, str(error)))
        else:
            yield from _lines(text)
        return
    records = value if isinstance(value, list) else [value]
    for number, record in enumerate(records, 1):
        yield f"record {number}", record


def _lines(text: bytes) -> Iterator[tuple[str, Any]]:
    for number, line in jsonl.lines(BytesIO(text)):
        try:
            yield f"line {number}", jsonl.decode(line)
        except jsonl.InvalidLine as error:
            yield f"line {number}", error
