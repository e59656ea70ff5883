"""The directory that workers ask for a merchant, once for every order.

Records, and merchants' catalogs, are in refresh-ahead caches over the database. Who edits one leaves
a stamp in its row that is higher than all before it, and every worker looks once a second for higher
ones than it has seen: an edit is seen within that, wherever it was made, whatever the clocks say and
however long the record would have been good.
"""

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog
from sqlalchemy.exc import SQLAlchemyError

from pos_gateway.cache.refresh_ahead import Loaded, RefreshAheadCache, Shared
from pos_gateway.domain.errors import UnknownMerchant
from pos_gateway.domain.merchant import Merchant
from pos_gateway.merchants.catalogs import CatalogStore
from pos_gateway.merchants.edits import Edits
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock

log = structlog.get_logger(__name__)

#: Seconds that a record is good if nobody edits it, and refreshed after half of them: the seed's.
LIFETIME = 180.0
#: Seconds for which it is believed that there is no such merchant, if nobody imports it.
ABSENT = 5.0
#: Seconds for which records are served beyond their time while the database is away.
STALE = 3600.0
#: Records in memory, those of unknown merchants included.
MOST = 50_000
#: Entries of catalogs in memory, two hundred bytes each, all merchants' together; that a merchant has
#: no catalog counts as one. And merchants in a load of them, most of whom have none: a worker that has
#: just started asks for all merchants', and orders under way wait for them.
MOST_ENTRIES, TOGETHER = 500_000, 100
#: Seconds to wait after a failed load.
PAUSE = 1.0
#: Seconds between two looks for edits, about.
LOOK = 1.0


class Directory:
    """Merchants by id. Safe from threads and green threads.

    Without ``start`` (a prefork child has no thread to spare) ``get`` loads, and looks for edits,
    itself.

    Args:
        store: the database's records.
        catalogs: its catalogs.
        shared: where other workers' records are.
        shared_catalogs: and their catalogs.
    """

    def __init__(
        self,
        store: MerchantStore,
        catalogs: CatalogStore,
        *,
        shared: Shared[Merchant] | None = None,
        shared_catalogs: Shared[Mapping[str, str]] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._store = store
        self._catalog_store = catalogs
        self._clock = clock
        self._stopping = threading.Event()
        self._watcher: threading.Thread | None = None
        self._look_at = clock.monotonic()
        self._listener: Callable[[str, Merchant | None], None] = lambda _id, _merchant: None
        terms: dict[str, Any] = {
            "lifetime": LIFETIME,
            "stale": STALE,
            "failures": (SQLAlchemyError,),
            "pause": lambda _: PAUSE,
            "may_thread": lambda: self._watcher is not None,
            "clock": clock,
        }
        self._cache = RefreshAheadCache(
            "merchants",
            self._load,
            absent=ABSENT,
            most=MOST,
            insist=True,  # orders wait for them
            shared=shared,
            **terms,
        )
        self._cache.listen(self._loaded)
        self._catalogs = RefreshAheadCache(
            "catalogs",
            self._load_catalogs,
            absent=LIFETIME,  # the first one is seen as an edit is
            most=MOST_ENTRIES,
            weigh=_entries,
            together=TOGETHER,
            shared=shared_catalogs,
            **terms,
        )

        # Before the first look: a record from before an edit may still be with other workers.
        self._edits = [
            Edits(store, self._cache.outdated, known_for=LIFETIME, clock=clock),
            Edits(catalogs, self._catalogs.outdated, known_for=LIFETIME, clock=clock),
        ]

    def get(self, merchant_id: str) -> Merchant:
        """The merchant with its catalog, from memory if they are fresh, else from the database.

        Raises:
            UnknownMerchant: there is none.
            SQLAlchemyError: the database cannot be asked, and there is none in memory.
            NotLoaded: another worker loads it, and is not done; or its row makes no sense, which is
                no order's fault.
        """
        if self._watcher is None and self._clock.monotonic() >= self._look_at:
            self._look()
        merchant = self._cache.get(merchant_id)
        if merchant is None:
            raise UnknownMerchant(merchant_id)
        catalog = self._catalogs.get(merchant_id)
        return merchant.with_catalog(catalog) if catalog else merchant

    def want(self, merchant_id: str) -> None:
        """The merchant will be asked for: see to it that its record is here and fresh.

        Does not block: this is called by the one green thread that takes orders in.
        """
        self._cache.want(merchant_id)

    def is_fresh(self, merchant_id: str) -> bool:
        """Whether the merchant's record is here and good (if only to say that there is none)."""
        return self._cache.is_fresh(merchant_id)

    def peek(self, merchant_id: str) -> Merchant | None:
        """The record as it was last loaded; None if there is none. Does not block."""
        return self._cache.peek(merchant_id)

    def pause(self, merchant_id: str) -> None:
        """Pause the merchant, until somebody resumes it. Raises SQLAlchemyError."""
        self._store.pause([merchant_id], paused=True)
        self._look()

    def longest_timeout(self) -> float:
        """The longest time limit that a merchant in memory has of its own; 0 if none has."""
        limits = (merchant.request_timeout or 0.0 for merchant in self._cache.peek_all())
        return max(limits, default=0.0)

    def listen(self, on_load: Callable[[str, Merchant | None], None]) -> None:
        """Call this with the id and the record (None: there is none) of every merchant loaded."""
        self._listener = on_load

    def start(self) -> None:
        """Start loading and looking on threads (green ones in a green worker). Idempotent."""
        if self._watcher is None:
            self._look()  # before anything is taken from where older records may be
            self._watcher = threading.Thread(target=self._watch, name="directory", daemon=True)
            self._watcher.start()

    def stop(self) -> None:
        """Load nothing more. Idempotent."""
        self._stopping.set()
        self._cache.stop()
        self._catalogs.stop()

    def _load(self, ids: Sequence[str]) -> dict[str, Loaded[Merchant]]:
        found = self._store.stamped(sorted(ids))
        return {each: Loaded(merchant, stamp) for each, (merchant, stamp) in found.items()}

    def _load_catalogs(self, ids: Sequence[str]) -> dict[str, Loaded[Mapping[str, str]]]:
        found = self._catalog_store.stamped(ids)
        return {each: Loaded(catalog, stamp) for each, (catalog, stamp) in found.items()}

    def _loaded(self, merchant_id: str, merchant: Merchant | None) -> None:
        if merchant is not None:
            self._catalogs.want(merchant_id)
        self._listener(merchant_id, merchant)

    def _watch(self) -> None:
        while not self._stopping.wait(LOOK * random.uniform(0.9, 1.1)):
            self._look()

    def _look(self) -> None:
        self._look_at = self._clock.monotonic() + LOOK
        for edits in self._edits:
            try:
                edits.look()
            except Exception as error:  # noqa: BLE001  (also a stamp that is no time: looking goes on)
                log.error("merchants.not_watched", error=str(error))


def _entries(catalog: Mapping[str, str] | None) -> int:
    return 1 + len(catalog or ())
