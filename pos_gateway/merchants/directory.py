"""The merchant directory, read by workers once for every order.

Records and catalogs are in refresh-ahead caches over the database. An edit stamps its row higher
than all rows before, and every worker polls once a second for stamps higher than seen so far. So a
worker sees an edit within a second, made anywhere, whatever the clocks say and however long the
cached record would have been valid.
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
from pos_gateway.ledger.ledger import Run, here
from pos_gateway.ledger.polls import Polls
from pos_gateway.merchants.catalogs import CatalogStore
from pos_gateway.merchants.edits import Edits, read_edits
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock

log = structlog.get_logger(__name__)

#: Lifetime of an unedited record in seconds; the refresh is after half of them.
LIFETIME = 180.0
#: Seconds to cache an unknown merchant as absent, unless imported.
ABSENT = 5.0
#: Seconds to serve expired records while the database is away.
STALE = 3600.0
#: Maximum records in memory, with those of unknown merchants.
MAX_MERCHANTS = 50_000
#: Maximum catalog entries in memory, of all merchants, two hundred bytes each; a missing catalog
#: counts as an entry. Maximum merchants per load, few of them with a catalog: a worker loads all
#: merchants after its start, while orders in flight wait.
MAX_ENTRIES, TOGETHER = 500_000, 100
#: Seconds to wait after a failed load.
PAUSE = 1.0
#: Seconds between polls for edits, roughly.
LOOK = 1.0


class Directory:
    """Merchants by id. Safe from threads and green threads.

    ``start`` starts threads for loading and polling. Before, ``get`` itself loads.

    Args:
        store: the database's records.
        catalogs: the database's catalogs.
        polls: the same database, for edits.
        shared: the records' cache, shared by all workers.
        shared_catalogs: the catalogs' cache, shared by all workers.
        run: where writes run (``off_the_loop``).
    """

    def __init__(
        self,
        store: MerchantStore,
        catalogs: CatalogStore,
        polls: Polls,
        *,
        shared: Shared[Merchant] | None = None,
        shared_catalogs: Shared[Mapping[str, str]] | None = None,
        run: Run = here,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._store = store
        self._catalog_store = catalogs
        self._run = run
        self._clock = clock
        self._stopping = threading.Event()
        self._watcher: threading.Thread | None = None
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
            max_weight=MAX_MERCHANTS,
            insist=True,  # orders wait for records
            stamped=Merchant.with_stamp,
            shared=shared,
            **terms,
        )
        self._cache.listen(self._loaded)
        self._catalogs = RefreshAheadCache(
            "catalogs",
            self._load_catalogs,
            absent=LIFETIME,  # a merchant's first catalog is found like an edit
            max_weight=MAX_ENTRIES,
            weight_of=_entries,
            together=TOGETHER,
            shared=shared_catalogs,
            **terms,
        )

        # From a lifetime before the first look on: the shared cache may have a record as old.
        self._edits = [
            Edits(table.last_edit, cache.outdated, known_for=LIFETIME, clock=clock)
            for table, cache in ((store, self._cache), (catalogs, self._catalogs))
        ]
        self._polls = polls
        self._looking = threading.Lock()

    def get(self, merchant_id: str) -> Merchant:
        """The merchant with its catalog, from memory if fresh, else from the database.

        Raises:
            UnknownMerchant: the merchant is unknown.
            SQLAlchemyError: the database is away, and the record is not in memory.
            NotLoaded: another worker is still loading the record; or the row is invalid, which is
                no order's fault.
        """
        merchant = self._cache.get(merchant_id)
        if merchant is None:
            raise UnknownMerchant(merchant_id)
        catalog = self._catalogs.get(merchant_id)
        return merchant.with_catalog(catalog) if catalog else merchant

    def want(self, merchant_id: str) -> bool:
        """Load or refresh the merchant's record ahead of its use; returns ``is_fresh``.

        Does not block: called by the green thread that consumes orders.
        """
        return self._cache.want(merchant_id)

    def is_fresh(self, merchant_id: str) -> bool:
        """Whether the merchant's record, or absence, is in memory and valid."""
        return self._cache.is_fresh(merchant_id)

    def peek(self, merchant_id: str) -> Merchant | None:
        """The last loaded record; None without a record. Does not block."""
        return self._cache.peek(merchant_id)

    def provider_of(self, merchant_id: str) -> str | None:
        """The provider in the last loaded record; None without a record. Does not block."""
        merchant = self._cache.peek(merchant_id)
        return None if merchant is None else merchant.provider

    def pause(self, merchant: Merchant) -> bool:
        """Pause the merchant until an operator resumes it. False: edited since, and left alone.

        Raises SQLAlchemyError.
        """
        is_paused: bool = self._run(lambda: self._store.pause_unedited(merchant))
        self.look()
        return is_paused

    def look(self) -> None:
        """Look for edits. If the database is away, logs an error: present records stay in use."""
        with self._looking:
            try:
                found = read_edits(self._polls, *(edits.since() for edits in self._edits))
            except Exception as error:  # noqa: BLE001  (whatever the database says: polling goes on)
                log.error("merchants.not_watched", error=str(error))
                return
            for edits, edited in zip(self._edits, found, strict=True):
                try:
                    edits.report(edited)
                except Exception as error:  # noqa: BLE001  (an invalid stamp, say: polling goes on)
                    log.error("merchants.not_watched", error=str(error))

    def longest_timeout(self) -> float:
        """The longest ``request_timeout`` of a merchant in memory; 0 without any."""
        limits = (merchant.request_timeout or 0.0 for merchant in self._cache.peek_all())
        return max(limits, default=0.0)

    def listen(self, on_load: Callable[[str, Merchant | None], None]) -> None:
        """Set the listener, called with each loaded merchant's id and record (None: absent)."""
        self._listener = on_load

    def start(self) -> None:
        """Start loading and polling on threads (green threads in a green worker). Idempotent."""
        if self._watcher is None:
            self.look()  # before any read of the shared cache, which may have older records
            self._watcher = threading.Thread(target=self._watch, name="directory", daemon=True)
            self._watcher.start()

    def stop(self) -> None:
        """Stop loading. Idempotent."""
        self._stopping.set()
        self._cache.stop()
        self._catalogs.stop()

    def _load(self, ids: Sequence[str]) -> dict[str, Loaded[Merchant]]:
        found = self._store.stamped(sorted(ids))
        loaded = {each: Loaded(merchant, stamp) for each, (merchant, stamp) in found.items()}
        if missing := [each for each in ids if each not in loaded]:
            removed = self._store.removed(missing)
            # With the removal's stamp, to not look for the removal again.
            loaded |= {each: Loaded(None, stamp) for each, stamp in removed.items()}
        return loaded

    def _load_catalogs(self, ids: Sequence[str]) -> dict[str, Loaded[Mapping[str, str]]]:
        found = self._catalog_store.stamped(ids)
        return {each: Loaded(catalog, stamp) for each, (catalog, stamp) in found.items()}

    def _loaded(self, merchant_id: str, merchant: Merchant | None) -> None:
        if merchant is not None:
            self._catalogs.want(merchant_id)
        self._listener(merchant_id, merchant)

    def _watch(self) -> None:
        while not self._stopping.wait(LOOK * random.uniform(0.9, 1.1)):
            self.look()


def _entries(catalog: Mapping[str, str] | None) -> int:
    return 1 + len(catalog or ())
