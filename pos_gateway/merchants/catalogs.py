"""Merchants' catalogs in the database: a POS's item ids by our SKUs, a row per merchant.

A catalog is written and read as a whole. A cleared catalog stays as an empty row, so that workers
see the edit.
"""

import json
from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, Engine, func, select

from pos_gateway.audit.note import By, Note, write
from pos_gateway.database.schema import catalogs
from pos_gateway.database.upsert import upsert
from pos_gateway.merchants.stamps import next_stamp, seconds
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock
from pos_gateway.runtime.green import cooperatively

#: Catalogs read at once, from the database or Redis, while all other green threads wait.
BATCH_SIZE = 10
#: Name of a catalog's change in the audit.
CATALOG = "merchants.catalog"


class CatalogStore:
    """Reads and writes merchants' catalogs. Safe from green threads (the engine's pool is)."""

    def __init__(self, engine: Engine, clock: Clock = SYSTEM_CLOCK) -> None:
        self._engine = engine
        self._clock = clock

    def put(self, every: Mapping[str, Mapping[str, str]], by: By | None = None) -> None:
        """Replace these merchants' catalogs in one transaction.

        Args:
            every: the catalogs by merchant.
            by: the operator: the audit gets a line for each changed catalog.
        """
        texts = {merchant_id: as_text(catalog) for merchant_id, catalog in every.items()}
        with self._engine.begin() as connection:
            stamp = next_stamp(connection, catalogs.c.updated_at, self._clock)
            rows = [
                {"merchant_id": merchant_id, "entries": text, "updated_at": stamp}
                for merchant_id, text in texts.items()
            ]
            if by is not None:
                notes = [
                    Note(CATALOG, merchant_id, details=_size(every[merchant_id]))
                    for merchant_id in _different(connection, texts)
                ]
                write(connection, notes, by=by, at=self._clock.now().timestamp())
            upsert(connection, catalogs, rows)

    def get(self, merchant_id: str) -> Mapping[str, str]:
        """The merchant's catalog, empty if missing."""
        found, _ = self.stamped([merchant_id]).get(merchant_id, ({}, 0.0))
        return found

    def stamped(self, ids: Sequence[str]) -> dict[str, tuple[Mapping[str, str], float]]:
        """The existing catalogs of these merchants, each with the stamp of its last edit."""
        which = select(catalogs.c.merchant_id).where(catalogs.c.merchant_id.in_(ids))
        found: dict[str, tuple[Mapping[str, str], float]] = {}
        with self._engine.connect() as connection:
            present = connection.scalars(which).all()  # most merchants have no catalog
            for at in range(0, len(present), BATCH_SIZE):
                some = catalogs.c.merchant_id.in_(present[at : at + BATCH_SIZE])
                # Parsing a large catalog takes milliseconds.
                for row in cooperatively(connection.execute(select(catalogs).where(some)).all(), 1):
                    found[row.merchant_id] = of_text(row.entries), row.updated_at
        return found

    def last_edit(self) -> float:
        """The highest stamp; 0 without a catalog."""
        with self._engine.connect() as connection:
            return seconds(connection.scalar(select(func.max(catalogs.c.updated_at))))


def _different(connection: Connection, texts: Mapping[str, str]) -> list[str]:
    """Merchants with a changed catalog, by id; a missing catalog counts as empty."""
    ids, before = sorted(texts), dict[str, Mapping[str, str]]()
    for at in range(0, len(ids), BATCH_SIZE):
        some = catalogs.c.merchant_id.in_(ids[at : at + BATCH_SIZE])
        rows = connection.execute(select(catalogs).where(some)).all()
        before |= {row.merchant_id: of_text(row.entries) for row in rows}
    return [each for each in ids if before.get(each, {}) != of_text(texts[each])]


def _size(catalog: Mapping[str, str]) -> str:
    number = len(catalog)
    return "cleared" if not number else f"{number} entr{'y' if number == 1 else 'ies'}"


def as_text(items: Mapping[str, str]) -> str:
    """A catalog as text."""
    return json.dumps(dict(items), separators=(",", ":"))


def of_text(text: str) -> Mapping[str, str]:
    """Parse the text of ``as_text``. Raises ValueError for any other text."""
    items = json.loads(text)
    if not isinstance(items, dict) or not all(isinstance(each, str) for each in items.values()):
        raise ValueError("no catalog")
    return items
