"""Which merchants have which account at a POS: in memory, brought up to date before each answer."""

import re
from collections.abc import Sequence
from threading import Lock

from pos_gateway.adapters.pos_fields import GUID
from pos_gateway.merchants.store import MerchantStore

#: An adapter, a field of its merchants' ``pos``, and a value.
Account = tuple[str, str, str]


class MerchantsByAccount:
    """Finds merchants by their accounts. Safe from threads."""

    def __init__(self, store: MerchantStore) -> None:
        self._store = store
        self._lock = Lock()
        #: The last edit that was read; None: nothing was.
        self._stamp: float | None = None
        self._accounts: dict[str, list[Account]] = {}
        #: Merchants' ids, in the order in which they were read.
        self._ids: dict[Account, dict[str, None]] = {}

    def find(self, accounts: Sequence[Account]) -> dict[Account, tuple[str, ...]]:
        """The ids of the merchants at each, as the database has them. Raises SQLAlchemyError."""
        with self._lock:
            self._read_edits()
            return {each: tuple(self._ids.get(_account(*each), ())) for each in accounts}

    def _read_edits(self) -> None:
        """Read the merchants that were edited since the last time, and no others: any POS may call."""
        last = self._store.last_edit()
        if last == self._stamp:
            return
        edited = None
        if self._stamp is not None and last > self._stamp:
            edited = [each for each, _ in self._store.edited_since(self._stamp)]
            for each in edited:
                self._forget(each)
        else:
            self._stamp, self._accounts, self._ids = None, {}, {}
        for merchant_id, adapter, pos in self._store.places(edited):
            accounts = [_account(adapter, name, value) for name, value in pos.items()]
            self._accounts[merchant_id] = accounts
            for account in accounts:
                self._ids.setdefault(account, {})[merchant_id] = None
        self._stamp = last

    def _forget(self, merchant_id: str) -> None:
        for account in self._accounts.pop(merchant_id, ()):
            its = self._ids[account]
            del its[merchant_id]
            if not its:
                del self._ids[account]


def _account(adapter: str, name: str, value: str) -> Account:
    """The account by which records and calls are compared: a GUID is the same in either case."""
    return adapter, name, value.lower() if re.fullmatch(GUID, value) else value
