"""The directory that workers ask for a merchant, once for every order.

Records are kept in this process for a few seconds. A record that is wanted again after half of
that is loaded anew beside the orders, which are served the present one; only a merchant that is
not known yet is waited for. All that is wanted at one time is one query.
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import structlog
from sqlalchemy.exc import SQLAlchemyError

from pos_gateway.clock import SYSTEM_CLOCK, Clock
from pos_gateway.errors import UnknownMerchant
from pos_gateway.merchant import Merchant
from pos_gateway.merchants.store import MerchantStore

log = structlog.get_logger(__name__)

#: Seconds after which a record is loaded again; an edit is seen within twice that.
LIFETIME = 4.0
#: Entries in memory before those of unknown merchants are forgotten.
ENTRIES = 50_000
#: Seconds to wait after a failed load.
PAUSE = 1.0
#: Seconds for which records are collected that are only to be refreshed, to be one query.
COLLECT = 0.2


@dataclass(slots=True)
class _Entry:
    merchant: Merchant | None  # None: the database has no such merchant
    loaded_at: float


class Directory:
    """Merchants by id. Safe from threads and green threads.

    Without ``start`` (a prefork child has no thread to spare) ``get`` loads what is stale itself.
    """

    def __init__(self, store: MerchantStore, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._store = store
        self._on_load: Callable[[str, Merchant | None], None] = lambda _id, _merchant: None
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._wanted: set[str] = set()
        self._something_wanted = threading.Event()
        self._urgently_wanted = threading.Event()
        self._stopping = False
        self._loader: threading.Thread | None = None

    def get(self, merchant_id: str) -> Merchant:
        """The merchant, from memory if it is fresh, else from the database.

        Raises:
            UnknownMerchant: there is none.
            SQLAlchemyError: the database cannot be asked, and there is no record in memory.
        """
        entry = self._entries.get(merchant_id)
        if entry is None or (self._loader is None and self._age(entry) > LIFETIME):
            self._load([merchant_id])
            entry = self._entries[merchant_id]
        if entry.merchant is None:
            raise UnknownMerchant(merchant_id)
        return entry.merchant

    def want(self, merchant_id: str) -> None:
        """The merchant will be asked for: see to it that its record is here and fresh.

        Does not block: this is called by the one green thread that takes orders in.
        """
        entry = self._entries.get(merchant_id)
        if entry is None or self._age(entry) > LIFETIME / 2:
            self._wanted.add(merchant_id)
            if not self.is_fresh(merchant_id):
                self._urgently_wanted.set()  # its orders wait for it
            self._something_wanted.set()

    def is_fresh(self, merchant_id: str) -> bool:
        """Whether the merchant was loaded lately (if only to learn that there is none).

        One that nobody has wanted for a while may have been edited since. While the database is
        away the present records count as fresh.
        """
        entry = self._entries.get(merchant_id)
        return entry is not None and self._age(entry) <= 2 * LIFETIME

    def peek(self, merchant_id: str) -> Merchant | None:
        """The merchant as it was last loaded; None if there is none. Does not block."""
        entry = self._entries.get(merchant_id)
        return entry.merchant if entry else None

    def pause(self, merchant_id: str) -> None:
        """Pause the merchant, until somebody resumes it. Raises SQLAlchemyError."""
        self._store.pause([merchant_id], paused=True)
        self._load([merchant_id])

    def longest_timeout(self) -> float:
        """The longest time limit that a merchant in memory has of its own; 0 if none has."""
        merchants = (entry.merchant for entry in self._entries.values())
        return max((m.request_timeout or 0.0 for m in merchants if m), default=0.0)

    def listen(self, on_load: Callable[[str, Merchant | None], None]) -> None:
        """Call this with the id and the record (None: there is none) of every merchant loaded."""
        self._on_load = on_load

    def start(self) -> None:
        """Start the loading thread (a green thread in a green worker). Idempotent."""
        if self._loader is None:
            self._stopping = False
            self._loader = threading.Thread(target=self._run, name="directory", daemon=True)
            self._loader.start()

    def stop(self) -> None:
        """Stop the loading thread. Idempotent."""
        self._stopping = True
        self._urgently_wanted.set()
        self._something_wanted.set()
        self._loader = None

    def _run(self) -> None:
        pause = threading.Event()
        while not self._stopping:
            self._something_wanted.wait()
            if all(map(self.is_fresh, self._wanted)):
                self._urgently_wanted.wait(COLLECT)
            self._urgently_wanted.clear()
            self._something_wanted.clear()
            wanted, self._wanted = self._wanted, set()
            if not wanted:
                continue
            try:
                self._load(wanted)
            except (SQLAlchemyError, ValueError) as error:
                # Orders of merchants that are known go on; the others wait, or are parked.
                log.error("merchants.load_failed", merchants=len(wanted), error=str(error))
                self._wanted |= wanted
                self._serve_on(wanted)
                pause.wait(PAUSE)
                self._something_wanted.set()

    def _serve_on(self, ids: Iterable[str]) -> None:
        """The database is away: what is known is better than nothing."""
        now = self._clock.monotonic()
        for merchant_id in ids:
            entry = self._entries.get(merchant_id)
            if entry is not None:
                entry.loaded_at = now
                self._on_load(merchant_id, entry.merchant)

    def _load(self, ids: Iterable[str]) -> None:
        if len(self._entries) > ENTRIES:  # ids that nobody has are not to fill the memory
            self._entries = {key: entry for key, entry in self._entries.items() if entry.merchant}
        wanted = sorted(ids)
        found = self._store.get(wanted)
        now = self._clock.monotonic()
        for merchant_id in wanted:
            merchant = found.get(merchant_id)
            self._entries[merchant_id] = _Entry(merchant, now)
            self._on_load(merchant_id, merchant)

    def _age(self, entry: _Entry) -> float:
        return self._clock.monotonic() - entry.loaded_at
