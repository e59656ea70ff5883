"""All that an operator may see of one merchant: its record without a secret, its trouble, its hour,
its orders, and what operators did."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Engine, select

from pos_gateway.administration.troubles import InTrouble, in_trouble, records
from pos_gateway.audit.log import AuditFilter, AuditLine, AuditLog
from pos_gateway.database.schema import catalogs
from pos_gateway.domain.credentials import FIELDS, TLS_FIELDS, Credentials, UnreadableCredentials
from pos_gateway.domain.errors import UnknownMerchant
from pos_gateway.ledger.order_search import Count, FoundOrder, OrderSearch, Wanted
from pos_gateway.merchants.masked import Document, document
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.reports.fleet_view import FleetView
from pos_gateway.reports.merchant_hour import MerchantHour, merchant_hour
from pos_gateway.reports.words import RecordStatus
from pos_gateway.runtime.clock import SYSTEM_CLOCK, Clock

#: Audit lines, and orders.
LINES, LAST = 20, 10
#: Instead of a secret.
SET, NOT_SET = "set", "not set"


@dataclass(frozen=True, slots=True)
class MerchantFile:
    """What the database has of the merchant itself."""

    #: Its fields, a secret as ``set`` or ``not set``.
    fields: Document
    #: The stamp of its last edit: what an edit of what is shown compares.
    stamp: float
    has_catalog: bool
    #: The last lines about it and its orders, the newest last.
    audit: Sequence[AuditLine]


@dataclass(frozen=True, slots=True)
class MerchantNow:
    """How it does at this moment."""

    #: Whether it is paused, since when, by whom, and why.
    record: RecordStatus
    #: None: no worker reports it as in trouble, and its orders do not fail.
    trouble: InTrouble | None
    #: How many workers would report it.
    workers: int


@dataclass(frozen=True, slots=True)
class MerchantWork:
    """What it does with its orders."""

    hour: MerchantHour
    #: Its orders by state, and the last changed ones.
    counts: Sequence[Count]
    last: Sequence[FoundOrder]


class MerchantViews:
    """Reads merchants for operators. Safe from threads. Every call raises SQLAlchemyError."""

    def __init__(self, engine: Engine, store: MerchantStore, clock: Clock = SYSTEM_CLOCK) -> None:
        self._engine, self._store, self._clock = engine, store, clock
        self._fleet = FleetView(engine)

    def file(self, merchant_id: str) -> MerchantFile:
        """Its record and its audit: three queries. Raises UnknownMerchant."""
        found = self._store.stamped([merchant_id]).get(merchant_id)
        if found is None:
            raise UnknownMerchant(merchant_id)
        merchant, stamp = found
        has_entries = select(catalogs.c.entries != "{}").where(
            catalogs.c.merchant_id == merchant_id
        )
        with self._engine.connect() as connection:
            has_catalog = bool(connection.scalar(has_entries))
        return MerchantFile(
            fields={**document(merchant), "auth": without_secrets(merchant.auth)},
            stamp=stamp,
            has_catalog=has_catalog,
            audit=AuditLog(self._engine).last(AuditFilter(merchant_id=merchant_id), LINES),
        )

    def now(self, merchant_id: str, *, reveal: bool = True) -> MerchantNow:
        """Its state, whether or not it has a record: four queries."""
        fleet = self._fleet.now()
        seen = fleet.trouble(merchant_id)
        with self._engine.connect() as connection:
            known = records(connection, [merchant_id], reveal=reveal)
        trouble = None if seen is None else in_trouble(seen, known, fleet, self._clock)
        return MerchantNow(known[merchant_id], trouble, fleet.watching)

    def work(self, merchant_id: str) -> MerchantWork:
        """Its hour and its orders: six queries. Raises AdminError: they take too long."""
        found = OrderSearch(self._engine).find(Wanted(merchant_id=merchant_id), None, LAST)
        hour = merchant_hour(self._engine, merchant_id, by_state=found.is_by_state)
        return MerchantWork(hour, found.counts, found.orders)


def without_secrets(auth: Credentials) -> Document:
    """The credentials, each secret as ``set`` or ``not set``."""
    if isinstance(auth, UnreadableCredentials):
        return {"problem": f"its secrets are {auth.problem}"}
    shown = auth.model_dump(mode="json", exclude_none=True)
    for name, is_secret in FIELDS[shown["type"]].items():
        if is_secret:
            shown[name] = SET if name in shown else NOT_SET
    if "tls" in shown:
        shown["tls"] = {name: (SET if name in shown["tls"] else NOT_SET) for name in TLS_FIELDS}
    return shown
