"""Merchants in the database."""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import ColumnElement, Connection, Engine, Row, func, select, update

from pos_gateway.audit.note import GATEWAY, By, Note, write
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
#: How the audit calls a pause.
PAUSE = "merchants.pause"

_FIELDS = tuple(Merchant.model_fields)
#: Rows per statement; SQLite takes no more than 32,766 parameters in one.
_BATCH = 500
#: Maximum merchants whose opened credentials are kept.
_OPENED = 50_000


class MerchantStore:
    """Reads and writes merchants' records. Safe from green threads (the engine's pool is)."""

    def __init__(
        self, engine: Engine, clock: Clock = SYSTEM_CLOCK, vault: Vault | None = None
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._vault = vault or Vault()
        #: Opened credentials by merchant, with their sealed text: records are read again and again,
        #: and a certificate takes milliseconds to parse.
        self._opened_before: dict[str, tuple[str, Credentials]] = {}

    def put(self, records: Iterable[Merchant]) -> int:
        """Write the records, replacing those with the same id, all or none; returns how many.

        A record that does not say ``paused`` leaves its merchant paused, or not, as it is.

        Raises:
            CannotOpen: a record has secrets, and there is no key to seal them with.
        """
        latest = {merchant.id: merchant for merchant in records}
        rows = [self.row(merchant) for merchant in latest.values()]
        with self._engine.begin() as connection:
            stamp = self.next_stamp(connection)  # locks the table: who is paused stays so
            silent = [each.id for each in latest.values() if "paused" not in each.model_fields_set]
            paused = {*self._paused(connection, silent)}
            for row in rows:
                row |= {"paused": row["paused"] or row["id"] in paused, "updated_at": stamp}
            upsert(connection, merchants, rows)
            forget_removals(connection)
        return len(rows)

    def get(self, ids: Sequence[str]) -> dict[str, Merchant]:
        """The existing merchants with these ids."""
        return {each: merchant for each, (merchant, _) in self.stamped(ids).items()}

    def stamped(self, ids: Sequence[str]) -> dict[str, tuple[Merchant, float]]:
        """The same, each with the stamp of its last edit."""
        found: dict[str, tuple[Merchant, float]] = {}
        with self._engine.connect() as connection:
            for batch in _batches(list(ids)):
                query = select(merchants).where(merchants.c.id.in_(batch))
                for row in connection.execute(query):
                    found[row.id] = self.of_row(row), seconds(row.updated_at)
        return found

    def removed(self, ids: Sequence[str]) -> dict[str, float]:
        """Those of these merchants that were removed lately, each with its removal's stamp."""
        with self._engine.connect() as connection:
            return removals(connection, ids)

    def places(self, ids: Sequence[str] | None = None) -> Iterator[tuple[str, str, dict[str, str]]]:
        """The id, adapter and ``pos`` of these merchants, or of all, where there is a ``pos``."""
        query = select(merchants.c.id, merchants.c.adapter, merchants.c.pos)
        queries = [query]
        if ids is not None:
            queries = [query.where(merchants.c.id.in_(batch)) for batch in _batches(list(ids))]
        with self._engine.connect() as connection:
            for each in queries:
                rows = connection.execution_options(yield_per=_BATCH).execute(each)
                yield from ((row.id, row.adapter, row.pos) for row in rows if row.pos)

    def last_edit(self) -> float:
        """The highest stamp there is, of an edit or a removal; 0 without a merchant."""
        with self._engine.connect() as connection:
            last = seconds(connection.scalar(select(func.max(merchants.c.updated_at))))
            return max(last, last_removal(connection))

    def edited_since(self, stamp: float) -> list[tuple[str, float]]:
        """The ids of merchants whose last edit, or removal, has a higher stamp, each with it."""
        later = merchants.c.updated_at > datetime.fromtimestamp(stamp, UTC)
        query = select(merchants.c.id, merchants.c.updated_at).where(later)
        with self._engine.connect() as connection:
            rows = connection.execute(query)
            edited = [(row.id, seconds(row.updated_at)) for row in cooperatively(rows, YIELD_EVERY)]
            return edited + removed_since(connection, stamp)

    def sealed(self, merchant: Merchant) -> str:
        """A record as text, its secrets sealed. Raises CannotOpen if they cannot be."""
        if isinstance(merchant.auth, UnreadableCredentials):
            raise CannotOpen(merchant.auth.problem)
        return json.dumps(self.row(merchant))

    def unsealed(self, text: str) -> Merchant:
        """The record that ``sealed`` was given. Raises ValueError for any other text."""
        row = json.loads(text)
        if not isinstance(row, dict) or row.keys() != set(_FIELDS):
            raise ValueError("no merchant's record, or another version's")
        return self.of_row(SimpleNamespace(**row))

    def pause(self, ids: Iterable[str], *, paused: bool) -> list[str]:
        """Pause or resume the merchants with these ids: all, or none if one is unknown.

        Returns the unknown ids; if there are any, nothing was changed.
        """
        wanted = sorted(set(ids))
        with self._engine.begin() as connection:
            stamp = self.next_stamp(connection)  # locks the table: what is found stays
            found: set[str] = set()
            for batch in _batches(wanted):
                of_these = select(merchants.c.id).where(merchants.c.id.in_(batch))
                found.update(connection.scalars(of_these))
            missing = [merchant_id for merchant_id in wanted if merchant_id not in found]
            for batch in _batches([] if missing else wanted):
                change = update(merchants).where(merchants.c.id.in_(batch))
                connection.execute(change.values(paused=paused, updated_at=stamp))
        return missing

    def pause_unedited(self, merchant: Merchant) -> bool:
        """Pause a merchant whose POS says that it is gone, unless its record was edited since.

        ``merchant`` was read from the directory.
        """
        this = merchants.c.id == merchant.id
        with self._engine.begin() as connection:
            stamp = self.next_stamp(connection)  # locks the table: no edit comes between
            last = connection.scalar(select(merchants.c.updated_at).where(this))
            if seconds(last) != merchant.stamp:
                return False
            connection.execute(update(merchants).where(this).values(paused=True, updated_at=stamp))
            if not merchant.paused:
                note = Note(PAUSE, merchant.id, changes={"paused": (False, True)})
                at = self._clock.now().timestamp()
                write(connection, [note], by=By(GATEWAY, "its POS says that it is gone"), at=at)
        return True

    def _paused(self, connection: Connection, ids: list[str]) -> Iterator[str]:
        for batch in _batches(ids):
            of_these = merchants.c.id.in_(batch) & merchants.c.paused
            yield from connection.scalars(select(merchants.c.id).where(of_these))

    def all(self) -> Iterator[Merchant]:
        """Every merchant, by id."""
        with self._engine.connect() as connection:
            rows = connection.execution_options(yield_per=_BATCH).execute(
                select(merchants).order_by(merchants.c.id)
            )
            for row in rows:
                yield self.of_row(row)

    def reseal(self, batch: int = _BATCH) -> Iterator[Resealed]:
        """Seal all secrets with the vault's current key, while other processes read and write.

        Yields each batch's result. Secrets written meanwhile are left as written, sealed with their
        writer's current key: ``count_stale`` has those under an earlier one.
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
        """How many merchants' secrets are under an earlier key, or one that the vault has not."""
        other = merchants.c.auth["key"].as_string() != self._vault.current
        stale = _sealed_text().is_not(None) & other
        with self._engine.connect() as connection:
            return connection.scalar(select(func.count()).where(stale)) or 0

    def count_unopened(self) -> int:
        """How many merchants' secrets are under a key that the vault has not."""
        key = merchants.c.auth["key"].as_string().label("key")
        query = select(key, func.count()).where(_sealed_text().is_not(None)).group_by("key")
        with self._engine.connect() as connection:
            found = connection.execute(query).all()
        return sum(number for key_id, number in found if not self._vault.knows(key_id))

    def row(self, merchant: Merchant) -> dict[str, Any]:
        """The record's columns but for its stamp, its secrets sealed. Raises CannotOpen."""
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
        """The merchant in a row, its secrets opened, or ``UnreadableCredentials``."""
        # Validated when written, so not again for every order.
        fields = {name: getattr(row, name) for name in _FIELDS}
        fields["auth"] = self._credentials(row.id, row.auth)
        fields["pos"] = row.pos or _NO_IDS  # null in rows older than the column
        fields["adapter"] = sys.intern(row.adapter)
        fields["provider"] = row.provider and sys.intern(row.provider)
        return Merchant.trusted(fields)

    def _credentials(self, merchant_id: str, auth: dict[str, Any]) -> Credentials:
        """The opened credentials; those that cannot be read do not fail other merchants."""
        if not auth or auth == _NOTHING:
            return NONE
        before, known = self._opened_before.get(merchant_id, ("", NONE))
        if before and before == auth.get("sealed"):
            return known
        try:
            credentials = _AUTH.validate_python(self._vault.open(auth, whose=merchant_id))
        except CannotOpen as error:
            return UnreadableCredentials(problem=str(error))
        except ValidationError:  # its text contains the secrets
            return UnreadableCredentials(problem="of a kind that this version does not know")
        if len(self._opened_before) >= _OPENED:
            self._opened_before.clear()
        self._opened_before[merchant_id] = (auth["sealed"], credentials)
        return credentials


_NOTHING = {"type": "none"}
#: Shared by all merchants without any, which are most.
_NO_IDS: dict[str, str] = {}
_AUTH: TypeAdapter[Credentials] = TypeAdapter(Auth)


def _sealed_text() -> ColumnElement[Any]:
    """The column of a merchant's sealed secrets; no two sealed texts are the same."""
    text: ColumnElement[Any] = merchants.c.auth["sealed"].as_string()
    return text


def _is_stale(auth: dict[str, Any], current: str | None) -> bool:
    return "sealed" in auth and auth.get("key") != current


def _batches(rows: list[Any]) -> Iterator[list[Any]]:
    for start in range(0, len(rows), _BATCH):
        yield rows[start : start + _BATCH]
