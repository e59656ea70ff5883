"""Merchants in the database."""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import ColumnElement, Connection, Engine, Row, func, select, update

from pos_gateway.audit.note import GATEWAY, By, Changes, Note, write
from pos_gateway.database.schema import merchants, removed_merchants
from pos_gateway.database.upsert import upsert
from pos_gateway.domain.credentials import (
    NONE,
    Auth,
    Credentials,
    OAuth2Grant,
    UnreadableCredentials,
)
from pos_gateway.domain.merchant import Merchant
from pos_gateway.ledger.resealing import Resealed
from pos_gateway.merchants.changes import changes
from pos_gateway.merchants.removed import (
    forget_removals,
    last_removal,
    removals,
    removed_since,
)
from pos_gateway.merchants.stamps import next_stamp, seconds
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock
from pos_gateway.runtime.green import cooperatively
from pos_gateway.runtime.vault import CannotOpen, Vault

#: Edits read before yielding to other green threads: an import may edit every merchant.
YIELD_EVERY = 200
#: Names of an import and a pause in the audit.
IMPORT, PAUSE = "merchants.import", "merchants.pause"

_FIELDS = tuple(Merchant.model_fields)
#: Rows per statement: SQLite takes at most 32,766 parameters.
_BATCH = 500
#: Maximum merchants with cached credentials.
_OPENED = 50_000


class MerchantStore:
    """Reads and writes merchants' records. Safe from green threads (the engine's pool is)."""

    def __init__(
        self, engine: Engine, clock: Clock = SYSTEM_CLOCK, vault: Vault | None = None
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._vault = vault or Vault()
        #: Opened credentials by merchant, with their sealed text: workers read records again and
        #: again, and parsing a certificate takes milliseconds.
        self._opened_before: dict[str, tuple[str, Credentials]] = {}

    def put(self, records: Iterable[Merchant], by: By | None = None) -> int:
        """Write records in one transaction, replacing those with the same id; returns the number.

        Records without a change stay untouched. A record without ``paused`` leaves the merchant
        paused or not.

        Args:
            records: of each id, the last counts.
            by: the operator: the audit gets a line for each new or changed record.

        Raises:
            CannotOpen: a record has secrets, and there is no key to seal them with.
        """
        latest = {merchant.id: merchant for merchant in records}
        with self._engine.begin() as connection:
            stamp = self.next_stamp(connection)  # locks the table: nothing is paused meanwhile
            before = {row.id: self.of_row(row) for row in rows_of(connection, list(latest))}
            rows, notes = [], []
            for merchant in latest.values():
                was = before.get(merchant.id)
                if was is not None and "paused" not in merchant.model_fields_set:
                    merchant = Merchant.trusted({**vars(merchant), "paused": was.paused})  # noqa: PLW2901
                changed = {} if was is None else changes(was, merchant)
                if was is None or changed:
                    rows.append({**self.row(merchant), "updated_at": stamp})
                    notes.append(note_of_import(merchant, was, changed))
            upsert(connection, merchants, rows)
            forget_removals(connection)
            if by is not None:
                write(connection, notes, by=by, at=self._clock.now().timestamp())
        return len(latest)

    def get(self, ids: Sequence[str]) -> dict[str, Merchant]:
        """The existing merchants with these ids."""
        return {each: merchant for each, (merchant, _) in self.stamped(ids).items()}

    def stamped(self, ids: Sequence[str]) -> dict[str, tuple[Merchant, float]]:
        """The existing merchants with these ids, each with the stamp of the last edit."""
        with self._engine.connect() as connection:
            rows = rows_of(connection, ids)
            return {row.id: (self.of_row(row), seconds(row.updated_at)) for row in rows}

    def removed(self, ids: Sequence[str]) -> dict[str, float]:
        """Recently removed merchants among these, each with the removal's stamp."""
        with self._engine.connect() as connection:
            return removals(connection, ids)

    def places(self, ids: Sequence[str] | None = None) -> Iterator[tuple[str, str, dict[str, str]]]:
        """Id, adapter and ``pos`` of these (None: of all) merchants with a ``pos``."""
        query = select(merchants.c.id, merchants.c.adapter, merchants.c.pos)
        queries = [query]
        if ids is not None:
            queries = [query.where(merchants.c.id.in_(batch)) for batch in batches(list(ids))]
        with self._engine.connect() as connection:
            for each in queries:
                rows = connection.execution_options(yield_per=_BATCH).execute(each)
                yield from ((row.id, row.adapter, row.pos) for row in rows if row.pos)

    def last_edit(self) -> float:
        """The highest stamp of an edit or a removal; 0 without a merchant."""
        with self._engine.connect() as connection:
            last = seconds(connection.scalar(select(func.max(merchants.c.updated_at))))
            return max(last, last_removal(connection))

    def edited_since(self, stamp: float) -> list[tuple[str, float]]:
        """Merchants edited or removed with a higher stamp, each with the stamp."""
        later = merchants.c.updated_at > datetime.fromtimestamp(stamp, UTC)
        query = select(merchants.c.id, merchants.c.updated_at).where(later)
        with self._engine.connect() as connection:
            rows = connection.execute(query)
            edited = [(row.id, seconds(row.updated_at)) for row in cooperatively(rows, YIELD_EVERY)]
            return edited + removed_since(connection, stamp)

    def sealed(self, merchant: Merchant) -> str:
        """A record as text, with sealed secrets. Raises CannotOpen for unreadable credentials."""
        if isinstance(merchant.auth, UnreadableCredentials):
            raise CannotOpen(merchant.auth.problem)
        return json.dumps(self.row(merchant))

    def unsealed(self, text: str) -> Merchant:
        """Parse the text of ``sealed``. Raises ValueError for any other text."""
        row = json.loads(text)
        if not isinstance(row, dict) or row.keys() != set(_FIELDS):
            raise ValueError("no merchant's record, or another version's")
        return self.of_row(SimpleNamespace(**row))

    def pause_unedited(self, merchant: Merchant) -> bool:
        """Pause a merchant reported as gone by the POS, unless the record was edited.

        ``merchant`` comes from the directory.
        """
        this = merchants.c.id == merchant.id
        with self._engine.begin() as connection:
            stamp = self.next_stamp(connection)  # locks the table: no edit in between
            last = connection.scalar(select(merchants.c.updated_at).where(this))
            if seconds(last) != merchant.stamp:
                return False
            connection.execute(update(merchants).where(this).values(paused=True, updated_at=stamp))
            if not merchant.paused:
                note = Note(PAUSE, merchant.id, changes={"paused": (False, True)})
                at = self._clock.now().timestamp()
                write(connection, [note], by=By(GATEWAY, "its POS says that it is gone"), at=at)
        return True

    def all(self) -> Iterator[Merchant]:
        """Every merchant, by id."""
        with self._engine.connect() as connection:
            yield from map(self.of_row, rows_of(connection, None))

    def reseal(self, batch: int = _BATCH) -> Iterator[Resealed]:
        """Seal all secrets with the vault's current key, while other processes read and write.

        Yields each batch's result. Secrets written meanwhile stay sealed with the writer's key:
        ``count_stale`` counts secrets under an earlier key.
        """
        last = ""
        while True:
            query = select(merchants.c.id, merchants.c.auth).where(merchants.c.id > last)
            with self._engine.connect() as connection:
                rows = connection.execute(query.order_by(merchants.c.id).limit(batch)).all()
            if not rows:
                return
            last = rows[-1].id
            anew, unopened = [], []
            for row in rows:
                if not _is_stale(row.auth, self._vault.current):
                    continue
                try:
                    opened = self._vault.open(row.auth, whose=row.id)
                except CannotOpen as error:
                    unopened.append(f"the secrets of merchant {row.id!r} are {error}")
                    continue
                anew.append((row, {**row.auth, **self._vault.seal(opened, whose=row.id)}))
            sealed = 0
            with self._engine.begin() as connection:
                for row, auth in anew:
                    unchanged = _sealed_text() == row.auth["sealed"]
                    change = update(merchants).where(merchants.c.id == row.id, unchanged)
                    sealed += connection.execute(change.values(auth=auth)).rowcount
            yield Resealed(len(rows), sealed, tuple(unopened))

    def count_stale(self) -> int:
        """Number of merchants with secrets under an earlier or unknown key."""
        other = merchants.c.auth["key"].as_string() != self._vault.current
        stale = _sealed_text().is_not(None) & other
        with self._engine.connect() as connection:
            return connection.scalar(select(func.count()).where(stale)) or 0

    def count_unopened(self) -> int:
        """Number of merchants with secrets under a key unknown to the vault."""
        key = merchants.c.auth["key"].as_string().label("key")
        query = select(key, func.count()).where(_sealed_text().is_not(None)).group_by("key")
        with self._engine.connect() as connection:
            found = connection.execute(query).all()
        return sum(number for key_id, number in found if not self._vault.knows(key_id))

    def row(self, merchant: Merchant) -> dict[str, Any]:
        """The record's columns, without stamp, with sealed secrets. Raises CannotOpen."""
        fields = merchant.model_dump(exclude={"auth"})
        revealed = merchant.auth.reveal()
        auth = {} if revealed == _NOTHING else self._vault.seal(revealed, whose=merchant.id)
        if isinstance(merchant.auth, OAuth2Grant):
            auth["grant"] = merchant.auth.grant_id
        return {**fields, "auth": auth}

    def next_stamp(self, connection: Connection) -> datetime:
        """A stamp above all; locks the merchants against other edits until the transaction ends."""
        edits, removals = merchants.c.updated_at, removed_merchants.c.removed_at
        return datetime.fromtimestamp(next_stamp(connection, edits, self._clock, removals), UTC)

    def of_row(self, row: Row[Any] | SimpleNamespace) -> Merchant:
        """The merchant in a row, with opened secrets or ``UnreadableCredentials``."""
        # Records are validated when written, not again for every order.
        fields = {name: getattr(row, name) for name in _FIELDS}
        fields["auth"] = self._credentials(row.id, row.auth)
        fields["pos"] = row.pos or _NO_IDS  # null in rows older than the column
        fields["adapter"] = sys.intern(row.adapter)
        fields["provider"] = row.provider and sys.intern(row.provider)
        return Merchant.trusted(fields)

    def _credentials(self, merchant_id: str, auth: dict[str, Any]) -> Credentials:
        """The opened credentials; unreadable credentials do not fail other merchants."""
        if not auth or auth == _NOTHING:
            return NONE
        before, known = self._opened_before.get(merchant_id, ("", NONE))
        if before and before == auth.get("sealed"):
            return known
        try:
            credentials = _AUTH.validate_python(self._vault.open(auth, whose=merchant_id))
        except CannotOpen as error:
            return UnreadableCredentials(problem=str(error))
        except ValidationError:  # the error's text contains the secrets
            return UnreadableCredentials(problem="of a kind that this version does not know")
        if len(self._opened_before) >= _OPENED:
            self._opened_before.clear()
        self._opened_before[merchant_id] = (auth["sealed"], credentials)
        return credentials


_NOTHING = {"type": "none"}
#: Shared by most merchants, who have no ids.
_NO_IDS: dict[str, str] = {}
_AUTH: TypeAdapter[Credentials] = TypeAdapter(Auth)


def _sealed_text() -> ColumnElement[Any]:
    """The column of a merchant's sealed secrets; no two sealed texts are the same."""
    text: ColumnElement[Any] = merchants.c.auth["sealed"].as_string()
    return text


def _is_stale(auth: dict[str, Any], current: str | None) -> bool:
    return "sealed" in auth and auth.get("key") != current


def batches(rows: list[str]) -> Iterator[list[str]]:
    """Lists of at most ``_BATCH`` rows."""
    for start in range(0, len(rows), _BATCH):
        yield rows[start : start + _BATCH]


def note_of_import(merchant: Merchant, was: Merchant | None, changed: Changes) -> Note:
    """The audit's line of a written record."""
    if was is not None:
        return Note(IMPORT, merchant.id, changes=changed)
    paused: Changes = {"paused": (None, True)} if merchant.paused else {}
    return Note(IMPORT, merchant.id, details="new", changes=paused)


def rows_of(connection: Connection, ids: Sequence[str] | None) -> Iterator[Row[Any]]:
    """Rows by id; ``ids`` is None: all."""
    query = select(merchants).order_by(merchants.c.id)
    if ids is None:
        yield from connection.execution_options(yield_per=_BATCH).execute(query)
        return
    for batch in batches(sorted({*ids})):
        yield from connection.execute(query.where(merchants.c.id.in_(batch))).all()
