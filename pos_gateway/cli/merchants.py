"""``pos-gateway merchants``: the merchants' records in the database."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from pos_gateway.cli import options, output
from pos_gateway.cli.database import merchant_store
from pos_gateway.cli.failure import Failure
from pos_gateway.cli.groups import Group, Lazy
from pos_gateway.domain.errors import FieldError, InvalidMerchant, InvalidRecord

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from pos_gateway.adapters.protocol import Adapter
    from pos_gateway.domain.merchant import Merchant
    from pos_gateway.merchants.store import MerchantStore

COMMANDS = {
    "catalog": Lazy("pos_gateway.cli.merchants_catalog:catalog", "What POSes call our items."),
    "check": Lazy("pos_gateway.cli.merchants_check:check", "Try everything but an order."),
}
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


@click.group(cls=Group, lazy=COMMANDS)
def merchants() -> None:
    """Administer the merchants: their POS's address and their limits.

    Workers see a change within seconds.
    """


@merchants.command("import", short_help="Write records from a file.")
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
    from pos_gateway.adapters.registry import adapters
    from pos_gateway.cli import jsonl
    from pos_gateway.runtime.vault import CannotOpen

    known = adapters(unusable)
    given = list(jsonl.records(file))
    right: dict[str, tuple[str, Merchant]] = {}
    wrong = 0
    for place, record in given:
        try:
            merchant = _checked(record, known, right)
        except InvalidRecord as error:
            wrong += 1
            for each in error.errors:
                output.notice(f"{place}: {each.field}: {each.problem}")  # the value may be secret
        else:
            right[merchant.id] = place, merchant
    if wrong:
        raise Failure(f"{wrong} of {len(given)} records are wrong; none was written")
    with merchant_store() as store:
        try:
            written = store.put(merchant for _, merchant in right.values())
        except CannotOpen as error:
            raise Failure(f"none was written: {error}") from error
    click.echo(f"{written} merchant{'' if written == 1 else 's'} imported")


@merchants.command("list", short_help="List every merchant.")
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


@merchants.command(short_help="Send merchants nothing for now.")
@click.argument("merchant_ids", metavar="ID...", nargs=-1, required=True)
def pause(merchant_ids: Sequence[str]) -> None:
    """Send the merchants with these IDs nothing until they are resumed.

    Their orders wait in the worker or parked in the broker, and expire at their deliver_by. Orders
    in flight are finished.

    \b
    Example:
      pos-gateway merchants pause m1 m2
    """
    _set_paused(merchant_ids, paused=True)


@merchants.command(short_help="Send them orders again.")
@click.argument("merchant_ids", metavar="ID...", nargs=-1, required=True)
def resume(merchant_ids: Sequence[str]) -> None:
    """Send orders to the merchants with these IDs again.

    \b
    Example:
      pos-gateway merchants resume m1 m2
    """
    _set_paused(merchant_ids, paused=False)


@merchants.command(short_help="Show one merchant.")
@click.argument("merchant_id", metavar="ID")
@options.as_json_object
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


def _checked(
    record: Any, known: "Mapping[str, Adapter]", right: "Mapping[str, tuple[str, Merchant]]"
) -> "Merchant":
    """The merchant in a record that was decoded. Raises InvalidRecord, also for an id given before."""
    from pos_gateway.adapters.registry import misfits
    from pos_gateway.domain.merchant import Merchant

    if isinstance(record, InvalidRecord):
        raise record
    merchant = Merchant.parse(record)
    if problems := misfits(merchant, known):
        raise InvalidMerchant(problems)
    if merchant.id in right:
        place, _ = right[merchant.id]
        raise InvalidMerchant([FieldError("id", f"was given by {place} already", merchant.id)])
    return merchant


def unusable(entry: "EntryPoint", why: BaseException) -> None:
    """Report an adapter that is left out."""
    output.notice(f"the adapter {entry.name!r} ({entry.value}) cannot be used: {why!r}")


def _set_paused(ids: Sequence[str], *, paused: bool) -> None:
    """All of them, or none if one does not exist."""
    with merchant_store() as store:
        missing = store.pause(ids, paused=paused)
        if missing:
            raise Failure("\n".join(unknown(merchant_id, store) for merchant_id in missing))
    number = len(set(ids))
    done = "paused" if paused else "resumed"
    click.echo(f"{number} merchant{'s' if number != 1 else ''} {done}")


def require(ids: Iterable[str]) -> "list[Merchant]":
    """The merchants with these ids, each once. Raises Failure for missing ones."""
    wanted = list(dict.fromkeys(ids))
    with merchant_store() as store:
        found = store.get(wanted)
        missing = [merchant_id for merchant_id in wanted if merchant_id not in found]
        if missing:
            raise Failure("\n".join(unknown(merchant_id, store) for merchant_id in missing))
    return [found[merchant_id] for merchant_id in wanted]


def unknown(merchant_id: str, store: "MerchantStore") -> str:
    """The message for a missing merchant, with similar ids."""
    near = difflib.get_close_matches(merchant_id, (m.id for m in store.all()), n=3)
    advice = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    return f"no merchant has the id {merchant_id!r}{advice}"
