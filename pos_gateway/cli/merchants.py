"""``pos-gateway merchants``: the merchants' records in the database."""

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from pos_gateway.cli import options, output
from pos_gateway.cli.database import database, merchant_store, vault
from pos_gateway.cli.failure import Failure
from pos_gateway.cli.groups import Group, Lazy
from pos_gateway.domain.errors import FieldError, InvalidMerchant, InvalidRecord, UnknownMerchant

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from sqlalchemy import Engine

    from pos_gateway.adapters.protocol import Adapter
    from pos_gateway.domain.merchant import Merchant
    from pos_gateway.merchants.admin import MerchantAdmin, Paused, Seen
    from pos_gateway.merchants.store import MerchantStore
    from pos_gateway.runtime.vault import Vault

COMMANDS = {
    "slow": Lazy("pos_gateway.cli.merchants_slow:slow", "Say which are in trouble, worst first."),
    "set": Lazy("pos_gateway.cli.merchants_set:set_", "Change fields of one."),
    "edit": Lazy("pos_gateway.cli.merchants_set:edit", "Change one in an editor."),
    "export": Lazy(
        "pos_gateway.cli.merchants_export:export", "Write records as import takes them."
    ),
    "remove": Lazy("pos_gateway.cli.merchants_remove:remove", "Remove one."),
    "catalog": Lazy("pos_gateway.cli.merchants_catalog:catalog", "What POSes call our items."),
    "check": Lazy("pos_gateway.cli.merchants_check:check", "Try everything but an order."),
}
#: Maximum merchants that a message names.
_NAMED = 5
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

    Workers see a change within seconds. pos-gateway audit has each: who made it, when, why, and what
    was different.
    """


@merchants.command("import", short_help="Write records from a file.")
@click.argument("file", type=click.File("rb"))
@options.reason
@options.by_operator
def import_(file: BinaryIO, reason: str | None, operator: str) -> None:
    """Write the merchants in FILE (- is standard input): one JSON object a line, or one list.

    Every record is checked first, and if one is wrong none is written. A record replaces the one
    with the same id; merchants that are not in FILE stay as they are. A paused merchant stays
    paused unless its record says otherwise. Secrets may be in clear, or sealed as merchants export
    writes them.

    \b
    Examples:
      pos-gateway merchants import merchants.jsonl
      echo '{"id": "m1", "base_url": "https://pos.example.com/api"}' \\
        | pos-gateway merchants import -

    Exit code: 0, or 1 if nothing was written.
    """
    from pos_gateway.adapters.registry import adapters
    from pos_gateway.audit.note import By
    from pos_gateway.cli import jsonl
    from pos_gateway.runtime.vault import CannotOpen

    known, keys = adapters(unusable), vault()
    if not (given := list(jsonl.records(file))):
        raise Failure(jsonl.EMPTY)
    right: dict[str, tuple[str, Merchant]] = {}
    wrong = 0
    for place, record in given:
        try:
            merchant = _checked(record, known, right, keys)
        except InvalidRecord as error:
            wrong += 1
            for each in error.errors:
                output.notice(f"{place}: {each.field}: {each.problem}")  # the value may be secret
        else:
            right[merchant.id] = place, merchant
    if wrong:
        raise Failure(f"{wrong} of {len(given)} records are wrong; none was written")
    with administration() as admin:
        try:
            written = admin.put([merchant for _, merchant in right.values()], By(operator, reason))
        except CannotOpen as error:
            raise Failure(f"none was written: {error}") from error
    click.echo(f"{written} merchant{'' if written == 1 else 's'} imported")


@merchants.command("list", short_help="List every merchant.")
@click.option("--json", "as_json", is_flag=True, help="JSON Lines, secrets masked.")
def list_(as_json: bool) -> None:
    """List every merchant, by id: a table on a terminal, tab-separated values into a pipe.

    It is for reading, and no secret is in it: merchants export writes what merchants import takes.

    \b
    Examples:
      pos-gateway merchants list
      pos-gateway merchants list --json | jq -r 'select(.paused) | .id'
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


def _which(command: Any) -> Any:
    """Options of pause and resume."""
    ids = click.argument("merchant_ids", metavar="[ID]...", nargs=-1)
    provider = click.option("--provider", metavar="NAME", help="All merchants of this provider.")
    return ids(provider(options.reason(options.by_operator(command))))


@merchants.command(short_help="Send merchants nothing for now.")
@_which
def pause(
    merchant_ids: Sequence[str], provider: str | None, reason: str | None, operator: str
) -> None:
    """Send the merchants with these IDs, or of a provider, nothing until they are resumed.

    Their orders wait in the worker or parked in the broker, and expire at their deliver_by. Orders
    in flight are finished.

    \b
    Examples:
      pos-gateway merchants pause m1 m2 --reason 'their POS is being replaced'
      pos-gateway merchants pause --provider acme --reason 'outage, ticket 4711'
    """
    _set_paused(merchant_ids, provider, operator, reason, paused=True)


@merchants.command(short_help="Send them orders again.")
@_which
@click.option(
    "--all", "all_of_it", is_flag=True, help="With --provider: even those paused by themselves."
)
def resume(
    merchant_ids: Sequence[str],
    provider: str | None,
    reason: str | None,
    operator: str,
    all_of_it: bool,
) -> None:
    """Send orders to the merchants with these IDs, or of a provider, again.

    Of a provider those are resumed that were paused with it; one that was paused by itself stays
    paused, unless --all is given.

    \b
    Examples:
      pos-gateway merchants resume m1 m2
      pos-gateway merchants resume --provider acme
    """
    if all_of_it and provider is None:
        raise click.UsageError("--all goes with --provider NAME")
    _set_paused(merchant_ids, provider, operator, reason, paused=False, all_of_it=all_of_it)


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
        if merchant.paused:
            record["paused"] = _paused(merchant_id)
        output.table(("FIELD", "VALUE"), [(name, _cell(value)) for name, value in record.items()])


def _paused(merchant_id: str) -> str:
    """Since when, by whom and why."""
    from datetime import UTC, datetime

    from pos_gateway.administration.troubles import records
    from pos_gateway.reports.words import paused

    with database() as engine, engine.connect() as connection:
        return paused(records(connection, [merchant_id])[merchant_id], datetime.now(UTC))


def _cell(value: Any) -> Any:
    """A mapping as the JSON that an import takes, without what is not set."""
    if not isinstance(value, dict):
        return value
    return json.dumps({name: each for name, each in value.items() if each is not None})


def _checked(
    record: Any,
    known: "Mapping[str, Adapter]",
    right: "Mapping[str, tuple[str, Merchant]]",
    keys: "Vault",
) -> "Merchant":
    """The merchant in a record that was decoded. Raises InvalidRecord, also for an id given before."""
    from pos_gateway.adapters.registry import misfits
    from pos_gateway.merchants.records import parse

    if isinstance(record, InvalidRecord):
        raise record
    merchant = parse(record, keys)
    if problems := misfits(merchant, known):
        raise InvalidMerchant(problems)
    if merchant.id in right:
        place, _ = right[merchant.id]
        raise InvalidMerchant([FieldError("id", f"was given by {place} already", merchant.id)])
    return merchant


def unusable(entry: "EntryPoint", why: BaseException) -> None:
    """Report an adapter that is left out."""
    output.notice(f"the adapter {entry.name!r} ({entry.value}) cannot be used: {why!r}")


@contextmanager
def administration() -> "Iterator[MerchantAdmin]":
    """Merchant administration on the configured database while entered."""
    with database() as engine:
        yield on(engine)


def on(engine: "Engine") -> "MerchantAdmin":
    """Merchant administration on this database, with the configured keys."""
    from pos_gateway.adapters.registry import adapters, misfits
    from pos_gateway.merchants.admin import MerchantAdmin

    return MerchantAdmin(engine, vault(), partial(misfits, known=adapters(unusable)))


def known_to(admin: "MerchantAdmin", merchant_id: str) -> "Seen":
    """The merchant's record for an editor. Raises Failure, with similar ids, if there is none."""
    try:
        return admin.seen(merchant_id)
    except UnknownMerchant as error:
        with merchant_store() as store:
            raise Failure(unknown(merchant_id, store)) from error


def _set_paused(
    ids: Sequence[str],
    provider: str | None,
    operator: str,
    reason: str | None,
    *,
    paused: bool,
    all_of_it: bool = False,
) -> None:
    """All of them, or none if one does not exist."""
    from pos_gateway.audit.note import By

    if bool(ids) == (provider is not None):
        raise click.UsageError("give the IDs of merchants, or --provider NAME")
    by = By(operator, reason)
    with administration() as admin:
        if provider is None:
            done = admin.pause(ids, by, paused=paused)
        else:
            done = admin.pause_provider(provider, by, paused=paused, all_of_it=all_of_it)
    if done.missing:
        with merchant_store() as store:
            raise Failure("\n".join(unknown(merchant_id, store) for merchant_id in done.missing))
    if provider is not None and not (done.changed or done.same or done.kept):
        raise Failure(_no_provider(provider))
    _say(done, paused=paused)


def _say(done: "Paused", *, paused: bool) -> None:
    word = "paused" if paused else "resumed"
    click.echo(f"{len(done.changed)} merchant{'s' if len(done.changed) != 1 else ''} {word}")
    if done.same:
        already = "paused" if paused else "not paused"
        was = "was" if len(done.same) == 1 else "were"
        output.notice(f"{len(done.same)} {was} {already} already")
    if done.kept:
        stays = "stays" if len(done.kept) == 1 else "stay"
        named = ", ".join(done.kept[:_NAMED]) + (", …" if len(done.kept) > _NAMED else "")
        output.notice(
            f"{named}: not paused with the provider, and {stays} paused; --all resumes all of it"
        )


def _no_provider(provider: str) -> str:
    with merchant_store() as store:
        known = {merchant.provider for merchant in store.all() if merchant.provider}
    near = difflib.get_close_matches(provider, known, n=3)
    advice = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    return f"no merchant has the provider {provider!r}{advice}"


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
