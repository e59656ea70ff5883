"""``pos-gateway merchants catalog pull``: a merchant's catalog from the POS's own."""

import logging
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import click

from pos_gateway.adapters.pos_items import CatalogProblem, ListsItems, PosItem
from pos_gateway.adapters.registry import misfits
from pos_gateway.administration.catalog_diff import CatalogChange, CatalogDiff, diff
from pos_gateway.attempt.gateway import Gateway
from pos_gateway.audit.note import By
from pos_gateway.cli import options, output
from pos_gateway.cli.database import catalog_store
from pos_gateway.cli.failure import Failure
from pos_gateway.cli.green_process import become_green
from pos_gateway.cli.merchants import require
from pos_gateway.cli.merchants_check import advice
from pos_gateway.cli.progress import progress_to
from pos_gateway.domain.catalog import MAX_ENTRIES
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.outcome import one_line
from pos_gateway.settings import Settings
from pos_gateway.telemetry.log import configure
from pos_gateway.transport.errors import TransportError
from pos_gateway.transport.exchange import Reply, Request, Send

#: Seconds between two requests: the merchant's orders have the vendor's limits to themselves, nearly.
PACE = 1.0
_IMPORT = "pos-gateway merchants catalog import FILE"
#: Maximum characters of a name in the table, and items that a table names at one SKU.
_NAME, _NAMED = 60, 3


@click.command(short_help="Make one from the POS's own.")
@click.argument("merchant_id", metavar="ID")
@click.option("--apply", "is_applied", is_flag=True, help="Write the changes without a question.")
@click.option(
    "--remove-gone",
    "removing",
    is_flag=True,
    help="Also remove entries whose item the POS has no more.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="JSON Lines: change, sku, before, now. No question."
)
@options.reason
@options.by_operator
def pull(
    merchant_id: str,
    is_applied: bool,
    removing: bool,
    as_json: bool,
    reason: str | None,
    operator: str,
) -> None:
    """Read the items and modifiers of the merchant with this ID from the POS, and show what would change.

    For merchants of Square, Toast and Clover. An entry is made for each SKU of the POS, and for each item or
    modifier of Square or Clover without a SKU, by its id there. Nothing is written without --apply, or a yes on a
    terminal; all pages are read first. A line for each change, with names and prices before -> after:

    \b
      added    an order's sku is mapped that was not
      changed  the sku is another item's now, at the POS
      gone     the POS has the entry's item no more, here: it stays, so that orders of it are
               rejected and not made ad hoc, unless --remove-gone is given
      unclear  several items have the sku, or one has several prices: the entry stays as it is

    Entries under other skus, written by hand, stay while the POS has their item.

    \b
    Examples:
      pos-gateway merchants catalog pull m1
      pos-gateway merchants catalog pull m1 --apply --reason 'the new menu'
      pos-gateway merchants catalog pull m1 --json | jq -r 'select(.change == "unclear") | .sku'

    Exit code: 0, also without a change; 1 if the POS's catalog was not read whole, or not written.
    """
    flags = [
        name
        for name, is_given in (
            ("--apply", is_applied),
            ("--remove-gone", removing),
            ("--json", as_json),
        )
        if is_given
    ]
    become_green(
        "merchants",
        "catalog",
        "pull",
        *flags,
        *([f"--reason={reason}"] if reason else []),
        f"--as={operator}",
        "--",
        merchant_id,
    )
    [merchant] = require([merchant_id])
    configure(logging.CRITICAL)  # problems are printed below
    found = _found(merchant)
    with catalog_store() as catalogs:
        before = catalogs.get(merchant.id)
        changed = diff(before, found)
        after = changed.applied(before, removing=removing)
        (_show_json if as_json else _show)(merchant, changed)
        _say(changed, found, removing=removing)
        if len(after) > MAX_ENTRIES:
            raise Failure(
                f"the catalog of {merchant.id!r} would have {len(after)} entries, and may have {MAX_ENTRIES}: "
                f"write those that orders name: {_IMPORT}"
            )
        if after == before:
            output.notice("nothing is different, and nothing was written")
            return
        if not is_applied:
            is_asked = not as_json and _is_asked()
            if not (is_asked and click.confirm("Write these changes?", err=True)):
                output.notice("nothing was written; --apply writes the changes")
                return
        if catalogs.get(merchant.id) != before:
            raise Failure("nothing was written: the catalog was changed meanwhile; pull again")
        catalogs.put({merchant.id: after}, By(operator, reason))
    output.notice(f"the catalog of {merchant.id} was written: {len(after)} entries")


def _found(merchant: Merchant) -> list[PosItem]:
    """All items of the merchant's POS. Raises Failure."""
    gate = Gateway(Settings.from_environment())
    try:
        adapter = gate.adapters.get(merchant.adapter)
        if not isinstance(adapter, ListsItems):
            able = [name for name, each in gate.adapters.items() if isinstance(each, ListsItems)]
            raise Failure(
                f"{merchant.id!r}: the adapter {merchant.adapter!r} reads no catalog from its POS; "
                f"{', '.join(sorted(able))} do. Write one: {_IMPORT}"
            )
        if problems := misfits(merchant, gate.adapters):
            raise Failure("\n".join(f"{merchant.id!r}: {each}" for each in problems))
        send = Send(_Paced(gate.caller.asking(merchant)))
        found = [each for page in _pages(adapter.items(merchant, send)) for each in page]
    except CatalogProblem as error:
        raise Failure(f"{merchant.id!r}: {error}; {error.advice}") from error
    except TransportError as error:
        raise Failure(f"{merchant.id!r}: {error}; {advice(error)}") from error
    finally:
        gate.stop()
    if not found:
        raise Failure(
            f"{merchant.id!r}: the POS lists no item for this location; does pos name the right one?"
        )
    return found


def _pages(pages: Iterable[Sequence[PosItem]]) -> Iterator[Sequence[PosItem]]:
    with progress_to(None) as progress:
        number = 0
        for page in pages:
            number += len(page)
            progress.update(f"{number} items", number)
            yield page


class _Paced:
    """Sends a request a second.

    Args:
        send: sends a request.
    """

    def __init__(self, send: Send) -> None:
        self._send, self._free_at = send, 0.0

    def __call__(self, request: Request) -> Reply:
        time.sleep(max(0.0, self._free_at - time.monotonic()))
        self._free_at = time.monotonic() + PACE
        return self._send(request)


def _is_asked() -> bool:
    """Whether there is a person to answer a question."""
    return sys.stdin.isatty()


def _show(merchant: Merchant, changed: CatalogDiff) -> None:
    rows = [
        (each.kind, each.sku, _ids(each), _arrow(each, _name), _arrow(each, _price))
        for each in changed.changes
    ]
    if rows:
        output.table(("CHANGE", "SKU", "POS_ID", "NAME", "PRICE"), rows)


def _ids(change: CatalogChange) -> str:
    now = [each.pos_id for each in change.now]
    more = [] if len(now) <= _NAMED else ["…"]
    return " -> ".join(
        [*filter(None, [change.before]), *filter(None, [", ".join(now[:_NAMED] + more)])]
    )


def _arrow(change: CatalogChange, say: Any) -> str:
    """A fact of the item before and after, if it has another one."""
    was = "" if change.was is None else say(change.was)
    now = ", ".join(dict.fromkeys(map(say, change.now[:_NAMED])))
    return now if was in ("", now) else f"{was} -> {now}"


def _name(item: PosItem) -> str:
    sold_out = " (sold out)" if item.is_sold_out else ""
    return f"{one_line(item.name)[:_NAME]}{sold_out}"


def _price(item: PosItem) -> str:
    return "open" if item.price is None else f"{item.price} {item.currency}".strip()


def _show_json(merchant: Merchant, changed: CatalogDiff) -> None:
    for each in changed.changes:
        before = None if each.before is None else _record(each.before, each.was)
        now = [_record(item.pos_id, item) for item in each.now]
        output.json_line(
            {
                "merchant_id": merchant.id,
                "change": each.kind,
                "sku": each.sku,
                "before": before,
                "now": now,
            }
        )


def _record(pos_id: str, item: PosItem | None) -> Mapping[str, Any]:
    if item is None:
        return {"pos_id": pos_id}
    fields = ("name", "price", "currency", "is_modifier", "is_sold_out")
    return {"pos_id": pos_id, **{name: getattr(item, name) for name in fields}}


def _say(changed: CatalogDiff, found: Sequence[PosItem], *, removing: bool) -> None:
    """The changes in numbers, and what an operator should know of the POS's catalog."""
    numbers = [
        f"{len(changed.of(kind))} {kind}" for kind in ("added", "changed", "gone", "unclear")
    ]
    output.notice(f"{', '.join(numbers)}, {changed.same} as before")
    if changed.of("gone") and not removing:
        output.notice(
            "entries that are gone stay, and their orders are rejected; --remove-gone removes them"
        )
    if sold_out := sum(each.is_sold_out for each in found):
        output.notice(f"{sold_out} of the POS's items are sold out")
    if len(currencies := sorted({each.currency for each in found if each.currency})) > 1:
        output.notice(
            f"the POS has prices in {' and '.join(currencies)}: the items may be of other locations"
        )
