"""Merchant administration: operators' changes of merchants' records.

Each change is a transaction with its audit lines: operator, reason and changed fields. A change
locks all edits, and applies to the present record. A change of a record seen by an operator
fails if the record was edited since.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine, Row, delete, func, select, update

from pos_gateway.audit.note import By, Note, write
from pos_gateway.database.schema import catalogs, merchants, orders
from pos_gateway.database.upsert import upsert
from pos_gateway.domain.credentials import NONE, UnreadableCredentials
from pos_gateway.domain.errors import (
    AdminError,
    FieldError,
    InvalidMerchant,
    MerchantChanged,
    UnknownMerchant,
)
from pos_gateway.domain.merchant import Merchant
from pos_gateway.ledger.states import FINAL, Action, State
from pos_gateway.merchants.changes import changes
from pos_gateway.merchants.masked import Document, document, restored
from pos_gateway.merchants.pauses import pauses
from pos_gateway.merchants.removed import forget_removals, note_removal
from pos_gateway.merchants.stamps import next_stamp, seconds
from pos_gateway.merchants.store import (
    PAUSE,
    MerchantStore,
    batches,
    note_of_import,
    rows_of,
)
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock
from pos_gateway.runtime.vault import Vault

#: Names in the audit; see ``store.py`` for more.
RESUME, REMOVE, REVEAL = (f"merchants.{each}" for each in ("resume", "remove", "reveal"))
#: Maximum merchants named in a message.
_NAMED = 3

#: The adapter's errors in a merchant.
Check = Callable[[Merchant], Sequence[FieldError]]


@dataclass(frozen=True, slots=True)
class Seen:
    """A record for an operator, before an edit."""

    #: With masked secrets.
    document: Document
    #: Stamp of the last edit.
    stamp: float


@dataclass(frozen=True, slots=True)
class Paused:
    """Merchants by the result of pausing or resuming."""

    changed: Sequence[str] = ()
    #: Already paused, or already not paused.
    same: Sequence[str] = ()
    missing: Sequence[str] = ()
    #: Not paused with their provider: still paused.
    kept: Sequence[str] = ()


class MerchantAdmin:
    """Changes merchants' records. Safe from threads. Every call raises SQLAlchemyError.

    Args:
        engine: the database.
        vault: opens and seals secrets.
        check: the same as an import's.
    """

    def __init__(
        self, engine: Engine, vault: Vault, check: Check, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._engine, self._check, self._clock = engine, check, clock
        self._store = MerchantStore(engine, clock, vault)

    def put(self, records: Sequence[Merchant], by: By) -> int:
        """As ``MerchantStore.put``."""
        return self._store.put(records, by)

    def add(self, merchant: Merchant, by: By) -> None:
        """Write the record of a new merchant.

        Raises:
            AdminError: the merchant exists.
            InvalidMerchant: the adapter does not take the merchant.
            CannotOpen: the record has secrets, and there is no key to seal them with.
        """
        self._require_fitting(merchant)
        with self._engine.begin() as connection:
            stamp = self._store.next_stamp(connection)  # locks the table
            if any(rows_of(connection, [merchant.id])):
                raise AdminError("it is there already, and nothing was written: edit its record")
            row = {**self._store.row(merchant), "updated_at": stamp}
            upsert(connection, merchants, [row])
            forget_removals(connection)
            self._write(connection, [note_of_import(merchant, None, {})], by)

    def seen(self, merchant_id: str) -> Seen:
        """The record for an editor. Raises UnknownMerchant."""
        with self._engine.connect() as connection:
            row = _row(connection, merchant_id)
        return Seen(document(self._store.of_row(row)), seconds(row.updated_at))

    def change(
        self,
        merchant_id: str,
        edit: Callable[[Document], Document],
        *,
        by: By,
        what: str,
        stamp: float | None = None,
    ) -> dict[str, Any]:
        """Change a record; returns the audit's changes, empty without any.

        An edit that leaves all secrets masked neither opens nor seals any.

        Args:
            edit: makes the new record of the present record, both with masked secrets.
            what: for the audit: ``merchants.set``.
            stamp: of the record seen by the operator; None: any.

        Raises:
            UnknownMerchant: the merchant is unknown.
            MerchantChanged: the record was edited after the operator's look; nothing is written.
            InvalidMerchant: names every wrong field without its value.
            CannotOpen: there is no key to seal new secrets with.
        """
        with self._engine.begin() as connection:
            new_stamp = self._store.next_stamp(connection)  # locks the table
            row = _row(connection, merchant_id)
            if stamp is not None and seconds(row.updated_at) != stamp:
                raise MerchantChanged(merchant_id)
            before = self._store.of_row(row)
            after = restored(edit(document(before)), before)
            self._require_fitting(after)
            changed = changes(before, after)
            if not changed:
                return {}
            values = self._columns(before, after)
            change = update(merchants).where(merchants.c.id == merchant_id)
            connection.execute(change.values(**values, updated_at=new_stamp))
            self._write(connection, [Note(what, merchant_id, changes=changed)], by)
        return dict(changed)

    def pause(self, ids: Iterable[str], by: By, *, paused: bool) -> Paused:
        """Pause or resume the merchants with these ids: all, or no merchant if any is missing."""
        wanted = sorted(set(ids))
        with self._engine.begin() as connection:
            stamp = self._store.next_stamp(connection)  # locks the table
            found = {row.id: row.paused for row in rows_of(connection, wanted)}
            missing = [each for each in wanted if each not in found]
            if missing:
                return Paused(missing=missing)
            return self._set_paused(connection, found, by, stamp, paused=paused)

    def pause_provider(
        self, provider: str, by: By, *, paused: bool, all_of_it: bool = False
    ) -> Paused:
        """Pause or resume a provider's merchants, if any.

        Resuming leaves merchants paused that were not paused with their provider, unless
        ``all_of_it``.
        """
        of_it, details = merchants.c.provider == provider, with_provider(provider)
        with self._engine.begin() as connection:
            stamp = self._store.next_stamp(connection)
            query = select(merchants.c.id, merchants.c.paused).where(of_it).order_by(merchants.c.id)
            found = {row.id: row.paused for row in connection.execute(query)}
            kept: list[str] = []
            if not paused and not all_of_it:
                are_paused = [each for each, is_paused in found.items() if is_paused]
                why = pauses(connection, are_paused)
                kept = [
                    each for each in are_paused if each not in why or why[each].details != details
                ]
            others = {each: is_paused for each, is_paused in found.items() if each not in kept}
            done = self._set_paused(connection, others, by, stamp, paused=paused, details=details)
        return Paused(done.changed, done.same, kept=kept)

    def remove(self, merchant_id: str, by: By, *, force: bool = False) -> Counter[str]:
        """Remove a merchant, and clear the catalog; returns the open orders by state.

        Workers notice at their next poll. Then an open order ends as failed, or stays in doubt for
        an operator if the POS may have the order.

        Raises:
            UnknownMerchant: the merchant is unknown.
            AdminError: the merchant has open orders, without ``force``; nothing is written.
        """
        with self._engine.begin() as connection:
            stamp = self._store.next_stamp(connection)
            _row(connection, merchant_id)
            still_open = open_orders(connection, merchant_id)
            if still_open and not force:
                raise AdminError(
                    f"merchant {merchant_id!r} has open orders: {in_numbers(still_open)}"
                )
            connection.execute(delete(merchants).where(merchants.c.id == merchant_id))
            note_removal(connection, merchant_id, stamp.timestamp())
            self._clear_catalog(connection, merchant_id)
            details = f"open orders: {in_numbers(still_open)}" if still_open else ""
            self._write(connection, [Note(REMOVE, merchant_id, details=details)], by)
        return still_open

    def exported(self, ids: Sequence[str] | None = None) -> Iterator[Document]:
        """The records for an import, by id, with sealed secrets: no key is needed.

        Args:
            ids: of the merchants; None: all. Missing merchants are left out.
        """
        with self._engine.connect() as connection:
            for row in rows_of(connection, ids):
                yield {**_plain(row), **({"auth": row.auth} if "sealed" in row.auth else {})}

    def revealed(self, ids: Sequence[str] | None, by: By) -> list[Document]:
        """The records for an import, secrets in clear; the audit gets a line for each with secrets.

        Raises:
            AdminError: some secrets cannot be opened; nothing is shown.
        """
        with self._engine.begin() as connection:
            rows = list(rows_of(connection, ids))
            found = [(row, self._store.of_row(row).auth) for row in rows]
            closed = [row.id for row, auth in found if isinstance(auth, UnreadableCredentials)]
            if closed:
                named = ", ".join(map(repr, closed[:_NAMED])) + (
                    ", …" if len(closed) > _NAMED else ""
                )
                raise AdminError(
                    f"POS_GATEWAY_SECRET_KEY does not open the secrets of {named}; without --reveal "
                    "they are exported sealed"
                )
            notes = [Note(REVEAL, row.id) for row, auth in found if auth != NONE]
            self._write(connection, notes, by)
        return [
            {**_plain(row), **({} if auth == NONE else {"auth": auth.reveal()})}
            for row, auth in found
        ]

    def _require_fitting(self, merchant: Merchant) -> None:
        problems = list(self._check(merchant))
        if isinstance(merchant.auth, UnreadableCredentials):  # they are not what is edited
            problems = [each for each in problems if not each.field.startswith("auth")]
        if problems:
            raise InvalidMerchant(problems)

    def _columns(self, before: Merchant, after: Merchant) -> dict[str, Any]:
        """The changed columns."""
        if after.auth is before.auth:
            after = Merchant.trusted({**vars(after), "auth": NONE})
            values = self._store.row(after)
            del values["auth"]
        else:
            values = self._store.row(after)
        old = vars(before)
        return {name: each for name, each in values.items() if name == "auth" or each != old[name]}

    def _set_paused(
        self,
        connection: Connection,
        found: dict[str, bool],
        by: By,
        stamp: datetime,
        *,
        paused: bool,
        details: str = "",
    ) -> Paused:
        changed = [each for each, is_paused in found.items() if is_paused != paused]
        for batch in batches(changed):
            these = merchants.c.id.in_(batch)
            connection.execute(
                update(merchants).where(these).values(paused=paused, updated_at=stamp)
            )
        what, change = (PAUSE if paused else RESUME), {"paused": (not paused, paused)}
        notes = [Note(what, each, details=details, changes=change) for each in changed]
        self._write(connection, notes, by)
        return Paused(changed, [each for each in found if each not in {*changed}])

    def _clear_catalog(self, connection: Connection, merchant_id: str) -> None:
        of_it = catalogs.c.merchant_id == merchant_id
        if connection.scalar(select(catalogs.c.merchant_id).where(of_it)) is None:
            return
        stamp = next_stamp(connection, catalogs.c.updated_at, self._clock)
        connection.execute(update(catalogs).where(of_it).values(entries="{}", updated_at=stamp))

    def _write(self, connection: Connection, notes: Sequence[Note], by: By) -> None:
        write(connection, notes, by=by, at=self._clock.now().timestamp())


def with_provider(provider: str) -> str:
    """Details of the audit line of a merchant paused with this provider."""
    return f"provider {provider}"


def open_orders(connection: Connection, merchant_id: str) -> Counter[str]:
    """Number of the merchant's open orders, by state."""
    is_open = orders.c.state.in_([state for state in State if state not in FINAL])
    of_it = orders.c.merchant_id == merchant_id, orders.c.action == Action.SUBMIT
    query = select(orders.c.state, func.count()).where(*of_it, is_open).group_by(orders.c.state)
    return Counter({row[0]: row[1] for row in connection.execute(query)})


def in_numbers(counts: Counter[str]) -> str:
    """``3 new, 1 in doubt``."""
    return ", ".join(
        f"{number} {state.replace('_', ' ')}" for state, number in sorted(counts.items())
    )


def _row(connection: Connection, merchant_id: str) -> Row[Any]:
    row = connection.execute(select(merchants).where(merchants.c.id == merchant_id)).one_or_none()
    if row is None:
        raise UnknownMerchant(merchant_id)
    return row


def _plain(row: Row[Any]) -> Document:
    """The record without ``auth`` and without empty fields."""
    fields = {name: getattr(row, name) for name in Merchant.model_fields if name != "auth"}
    return {name: each for name, each in fields.items() if each is not None and each != {}}
