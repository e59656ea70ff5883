"""The records of merchants whose POSes call: from memory, as the database had them seconds ago."""

import asyncio
import time

from sqlalchemy.exc import SQLAlchemyError

from pos_gateway.domain.merchant import Merchant
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.server.reading import Reading

#: Most merchants in memory, and the seconds that a record is valid; an edit is seen sooner.
MERCHANTS, LIFETIME = 10_000, 60.0


class CallbackMerchants:
    """The records of merchants whose POSes call. For the event loop, but for ``refresh``."""

    def __init__(self, store: MerchantStore, reading: Reading) -> None:
        self._store = store
        self._reading = reading
        #: By id: until when it is valid, and the record; None: there is none.
        self._known: dict[str, tuple[float, Merchant | None]] = {}
        self._loads: dict[str, asyncio.Task[Merchant | None]] = {}
        self._last_edit = 0.0

    async def get(self, merchant_id: str) -> Merchant | None:
        """The merchant's record; None: there is none. Raises Problem 503."""
        until, merchant = self._known.get(merchant_id, (0.0, None))
        if time.monotonic() < until:
            return merchant
        load = self._loads.get(merchant_id)
        if load is None:
            load = self._loads[merchant_id] = asyncio.ensure_future(self._load(merchant_id))
            load.add_done_callback(lambda _: self._loads.pop(merchant_id, None))
        return await asyncio.shield(load)

    def refresh(self) -> None:
        """Forget all if there was an edit since. Safe from threads."""
        try:
            last = self._store.last_edit()
        except SQLAlchemyError:
            return  # what is known stays valid for a while
        if last != self._last_edit:
            self._last_edit, self._known = last, {}

    async def _load(self, merchant_id: str) -> Merchant | None:
        known = self._known  # what is read before an edit is not kept after it
        found = await self._reading(lambda: self._store.get([merchant_id]))
        while len(known) >= MERCHANTS:
            known.pop(next(iter(known)), None)
        merchant = found.get(merchant_id)
        known[merchant_id] = time.monotonic() + LIFETIME, merchant
        return merchant
