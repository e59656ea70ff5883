"""The merchant directory, which workers read once for every order.

Records and catalogs are in refresh-ahead caches over the database. An edit stamps its row higher
than all before it, and every worker polls once a second for higher stamps than it has seen: it sees
an edit within that time, wherever it was made, whatever the clocks say and however long the cached
record would have been valid.
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
from pos_gateway.merchants.edit_poll import EditPoll
from pos_gateway.merchants.edits import Edits
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock

log = structlog.get_logger(__name__)

#: Seconds that an unedited record is valid; it is refreshed after half of them.
LIFETIME = 180.0
#: Seconds that an unknown merchant is cached as absent, unless it is imported.
ABSENT = 5.0
#: Seconds that expired records are served while the database is away.
STALE = 3600.0
#: Maximum records in memory, those of unknown merchants included.
MAX_MERCHANTS = 50_000
#: Maximum catalog entries in memory, two hundred bytes each, of all merchants; a missing catalog
#: counts as one. And most merchants per load, few of which have a catalog: a worker that has just
#: started loads all of them, while orders in flight wait.
MAX_ENTRIES, TOGETHER = 500_000, 100
#: Seconds to wait after a failed load.
PAUSE = 1.0
#: Seconds between polls for edits, about.
LOOK = 1.0


class Directory:
    """Merchants by id. Safe from threads and green threads.

    ``start`` starts threads, which load and poll for edits. Before, ``get`` itself loads.

    Args:
        store: the database's records.
        catalogs: its catalogs.
        polls: the same database, for what is edited.
        shared: the records' cache shared with other workers.
        shared_catalogs: the same for catalogs.
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
            insist=True,  # orders wait for them
            stamped=Merchant.with_stamp,
            shared=shared,
            **terms,
        )
        self._cache.listen(self._loaded)
        self._catalogs = RefreshAheadCache(
            "catalogs",
            self._load_catalogs,
            absent=LIFETIME,  # a first one is found like an edit
            max_weight=MAX_ENTRIES,
            weight_of=_entries,
            together=TOGETHER,
            shared=shared_catalogs,
            **terms,
        )

        # Also edits from before the first look: the shared cache may have a record from before one.
        self._edits = [
            Edits(table.last_edit, cache.outdated, known_for=LIFETIME, clock=clock)
            for table, cache in ((store, self._cache), (catalogs, self._catalogs))
        ]
        self._poll = EditPoll(polls)
        self._looking = threading.Lock()

    def get(self, merchant_id: str) -> Merchant:
        """The merchant with its catalog, from memory if fresh, else from the database.

        Raises:
            UnknownMerchant: there is none.
            SQLAlchemyError: the database is away, and no record is in memory.
            NotLoaded: another worker is still loading it; or its row makes no sense, which is no
                order's fault.
        """
        merchant = self._cache.get(merchant_id)
        if merchant is None:
            raise UnknownMerchant(merchant_id)
        catalog = self._catalogs.get(merchant_id)
        return merchant.with_catalog(catalog) if catalog else merchant

    def want(self, merchant_id: str) -> bool:
        """Load or refresh the merchant's record ahead of its use; whether ``is_fresh``.

        Does not block: the one green thread that consumes orders calls it.
        """
        return self._cache.want(merchant_id)

    def is_fresh(self, merchant_id: str) -> bool:
        """Whether the merchant's record, or its absence, is in memory and valid."""
        return self._cache.is_fresh(merchant_id)

    def peek(self, merchant_id: str) -> Merchant | None:
        """The record as it was last loaded; None if there is none. Does not block."""
        return self._cache.peek(merchant_id)

    def provider_of(self, merchant_id: str) -> str | None:
        """The provider by the same record; None if there is none. Does not block."""
        merchant = self._cache.peek(merchant_id)
        return None if merchant is None else merchant.provider

    def pause(self, merchant: Merchant) -> bool:
        """Pause the merchant, until an operator resumes it. False: edited since, and left as it is.

        Raises SQLAlchemyError.
        """
        is_paused: bool = self._run(lambda: self._store.pause_unedited(merchant))
        self.look()
        return is_paused

    def look(self) -> None:
        """Look for edits. A database that is away is logged: records are read as they are."""
        with self._looking:
            try:
                found = self._poll(*(edits.since() for edits in self._edits))
            except Exception as error:  # noqa: BLE001  (whatever the database says: polling goes on)
                log.error("merchants.not_watched", error=str(error))
                return
            for edits, edited in zip(self._edits, found, strict=True):
                try:
                    edits.report(edited)
                except Exception as error:  # noqa: BLE001  (an invalid stamp, say: polling goes on)
                    log.error("merchants.not_watched", error=str(error))

    def longest_timeout(self) -> float:
        """The longest ``request_timeout`` of a merchant in memory; 0 if none has one."""
        limits = (merchant.request_timeout or 0.0 for merchant in self._cache.peek_all())
        return max(limits, default=0.0)

    def listen(self, on_load: Callable[[str, Merchant | None], None]) -> None:
        """Call this with the id and the record (None: there is none) of every merchant loaded."""
        self._listener = on_load

    def start(self) -> None:
        """Start loading and polling on threads (green ones in a green worker). Idempotent."""
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
            # With its stamp: a removal that was seen need not be looked for again.
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
