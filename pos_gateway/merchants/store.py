"""Merchants in the database."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import Engine, Row, delete, insert, select, update

from pos_gateway.clock import SYSTEM_CLOCK, Clock
from pos_gateway.ledger.schema import merchants
from pos_gateway.merchant import Merchant

_FIELDS = tuple(Merchant.model_fields)
#: Rows a statement; SQLite takes no more than 32,766 parameters in one.
_BATCH = 500


class MerchantStore:
    """Reads and writes merchants' records. Safe from green threads (the engine's pool is)."""

    def __init__(self, engine: Engine, clock: Clock = SYSTEM_CLOCK) -> None:
        self._engine = engine
        self._clock = clock

    def put(self, records: Iterable[Merchant]) -> int:
        """Write the records, replacing those with the same id, all or none. How many."""
        latest = {merchant.id: merchant for merchant in records}
        rows = [self._row(merchant) for merchant in latest.values()]
        with self._engine.begin() as connection:
            for batch in _batches(rows):
                ids = [row["id"] for row in batch]
                connection.execute(delete(merchants).where(merchants.c.id.in_(ids)))
                connection.execute(insert(merchants), batch)
        return len(rows)

    def get(self, ids: Sequence[str]) -> dict[str, Merchant]:
        """The merchants with these ids; those that there are."""
        found: dict[str, Merchant] = {}
        with self._engine.connect() as connection:
            for batch in _batches(list(ids)):
                query = select(merchants).where(merchants.c.id.in_(batch))
                found.update((row.id, _merchant(row)) for row in connection.execute(query))
        return found

    def pause(self, ids: Iterable[str], *, paused: bool) -> list[str]:
        """Pause the merchants with these ids, or resume them; all, unless one is not there.

        Returns the ids that no merchant has; if there are any, nothing was changed.
        """
        wanted = sorted(set(ids))
        with self._engine.begin() as connection:
            found: set[str] = set()
            for batch in _batches(wanted):
                of_these = merchants.c.id.in_(batch)
                found.update(connection.scalars(select(merchants.c.id).where(of_these)))
            missing = [merchant_id for merchant_id in wanted if merchant_id not in found]
            for batch in _batches([] if missing else wanted):
                change = update(merchants).where(merchants.c.id.in_(batch))
                connection.execute(change.values(paused=paused, updated_at=self._clock.now()))
        return missing

    def all(self) -> Iterator[Merchant]:
        """Every merchant, by id."""
        with self._engine.connect() as connection:
            rows = connection.execution_options(yield_per=_BATCH).execute(
                select(merchants).order_by(merchants.c.id)
            )
            for row in rows:
                yield _merchant(row)

    def _row(self, merchant: Merchant) -> dict[str, Any]:
        return {**merchant.model_dump(), "updated_at": self._clock.now()}


def _merchant(row: Row[Any]) -> Merchant:
    # Checked when it was written; checking again for every order would cost for nothing.
    return Merchant.model_construct(**{name: getattr(row, name) for name in _FIELDS})


def _batches(rows: list[Any]) -> Iterator[list[Any]]:
    for start in range(0, len(rows), _BATCH):
        yield rows[start : start + _BATCH]
