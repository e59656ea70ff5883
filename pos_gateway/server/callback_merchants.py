"""The merchants whose POSes call: from memory, as the database had them seconds ago."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping

from sqlalchemy.exc import SQLAlchemyError

from pos_gateway.adapters.pos_fields import endpoint
from pos_gateway.adapters.protocol import Adapter
from pos_gateway.adapters.signatures import share_a_key
from pos_gateway.domain.callback import Callback
from pos_gateway.domain.merchant import Merchant
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.server.reading import Reading

#: Most merchants in memory, and the seconds that a record is valid; an edit is seen sooner.
MERCHANTS, LIFETIME = 10_000, 60.0

#: Ids of merchants by adapter and by a field of ``pos`` and its value.
_Shops = Mapping[tuple[str, str, str], list[str]]


class CallbackMerchants:
    """Finds the merchants that a callback may be about. For the event loop, but for ``refresh``."""

    def __init__(self, store: MerchantStore, reading: Reading) -> None:
        self._store = store
        self._reading = reading
        #: By id: until when it is valid, and the record; None: there is none.
        self._known: dict[str, tuple[float, Merchant | None]] = {}
        self._loads: dict[str, asyncio.Task[Merchant | None]] = {}
        self._shops: asyncio.Task[_Shops] | None = None
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

    async def owners(
        self, adapter: Adapter, merchant: Merchant, callback: Callback
    ) -> dict[str, tuple[str, ...]]:
        """The merchants that it may be about, each with the fingerprints of its POS.

        They are at the account that it names, and have the key of the merchant whose URL it came to.
        Raises Problem 503.
        """
        found = [merchant]
        if callback.account is not None:
            ids = (await self._all_shops()).get((adapter.name, *callback.account), ())
            others = [await self.get(each) for each in ids]
            found = [
                each
                for each in others
                if each is not None and each.adapter == adapter.name and share_a_key(each, merchant)
            ]
        return {each.id: (endpoint(each, adapter), each.endpoint) for each in found}

    def provider(self, merchant_id: str) -> str | None:
        """The provider of a merchant that was found lately."""
        _, merchant = self._known.get(merchant_id, (0.0, None))
        return None if merchant is None else merchant.provider

    def refresh(self) -> None:
        """Forget all if there was an edit since. Safe from threads."""
        try:
            last = self._store.last_edit()
        except SQLAlchemyError:
            return  # what is known stays valid for a while
        if last != self._last_edit:
            self._last_edit, self._known, self._shops = last, {}, None

    async def _load(self, merchant_id: str) -> Merchant | None:
        known = self._known  # what is read before an edit is not kept after it
        found = await self._reading(lambda: self._store.get([merchant_id]))
        while len(known) >= MERCHANTS:
            known.pop(next(iter(known)), None)
        merchant = found.get(merchant_id)
        known[merchant_id] = time.monotonic() + LIFETIME, merchant
        return merchant

    async def _all_shops(self) -> _Shops:
        shops = self._shops
        if shops is None or (shops.done() and shops.exception() is not None):
            shops = self._shops = asyncio.ensure_future(self._reading(self._read_shops))
        return await asyncio.shield(shops)

    def _read_shops(self) -> _Shops:
        shops = defaultdict(list)
        for merchant_id, adapter, pos in self._store.places():
            for name, value in pos.items():
                shops[adapter, name, value].append(merchant_id)
        return dict(shops)
