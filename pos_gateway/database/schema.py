"""The tables, for SQLite and PostgreSQL alike. A change here needs a migration beside it.

Moments in the ledger are Unix time in seconds, a float: SQLite has no type for them, and what is
written many rows a statement goes through JSON.
"""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Double,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    text,
)

metadata = MetaData()

#: An id that the database gives. SQLite counts up only what it knows as INTEGER.
Number = BigInteger().with_variant(Integer, "sqlite")

merchants = Table(
    "merchants",
    metadata,
    Column("id", String(128), primary_key=True),
    Column("provider", String(128)),
    Column("adapter", String(64), nullable=False),
    Column("base_url", String(2048), nullable=False),
    Column("max_concurrency", Integer),
    Column("request_timeout", Float),
    Column("auth", JSON, nullable=False),
    Column("pos", JSON),
    Column("paused", Boolean, nullable=False),
    # Workers look for what was edited of late.
    Column("updated_at", DateTime(timezone=True), nullable=False, index=True),
)

#: A POS's item ids by our skus, a merchant a row: see ``merchants/catalogs.py``.
catalogs = Table(
    "catalogs",
    metadata,
    Column("merchant_id", String(128), primary_key=True),
    Column("entries", Text, nullable=False),
    # Workers look for what was imported of late.
    Column("updated_at", Double, nullable=False, index=True),
)

#: What was asked for each order, and what came of it: see ``ledger/ledger.py``.
orders = Table(
    "orders",
    metadata,
    Column("merchant_id", String(128), primary_key=True),
    Column("order_id", String(128), primary_key=True),
    Column("action", String(16), primary_key=True),
    Column("state", String(16), nullable=False),
    # Who has it at present (a worker's lease), by which of its claims, and how often anybody has
    # claimed it: what is written under an earlier epoch changes nothing.
    Column("owner", String(64)),
    Column("ticket", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("attempts", Integer, nullable=False),
    # Workers that died while they had its claim, and the leases of those that may have.
    Column("deaths", Integer, nullable=False),
    Column("taken_from", Text),
    # Since when the POS may have it without our knowing, by the time of day and by a worker's clock
    # (see ``ledger/settling.py``), and which POS that is.
    Column("doubt_since", Double),
    Column("settling", String(160)),
    Column("endpoint", String(32)),
    # The POS has said that it has it, and not decided.
    Column("pending", Boolean, nullable=False),
    # The last event that was told of it, and how often an operator has reopened it since its end.
    Column("told", String(16)),
    Column("reopened", Integer, nullable=False),
    # Of a cancel request: how often its order had been reopened when it came. It is reopened itself
    # by a request that comes after it.
    Column("generation", Integer),
    Column("external_id", String(256)),
    Column("reason_code", String(64)),
    Column("reason_message", Text),
    Column("deliver_by", Double),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    # The order itself, sealed where there is a key: it has people's names in it.
    Column("payload", Text),
    Index("orders_by_state", "state", "updated_at"),
    Index("orders_by_order", "order_id"),
)

_without_position = text("position is null")

#: Status events as they are written with an outcome, dehydrated: without the order.
events = Table(
    "events",
    metadata,
    Column("id", Number, primary_key=True, autoincrement=True),
    Column("event_id", String(36), nullable=False, unique=True),
    Column("position", BigInteger, unique=True),
    Column("type", String(16), nullable=False),
    Column("merchant_id", String(128), nullable=False),
    Column("order_id", String(128), nullable=False),
    Column("occurred_at", Double, nullable=False),
    Column("external_id", String(256)),
    Column("reason_code", String(64)),
    Column("reason_message", Text),
    Column("attempts", Integer, nullable=False),
    # What it tells of, sealed, if that has no row in the ledger: a message that is no order.
    Column("payload", Text),
    # All but its position, hydrated by a helper, sealed; and who is at that (a worker's lease).
    Column("body", Text),
    Column("helper", String(64)),
    # The trace that it belongs to, for its message's headers: see ``domain/trace_context.py``.
    Column("trace", Text),
    Index(
        "events_without_position",
        "id",
        sqlite_where=_without_position,
        postgresql_where=_without_position,
    ),
    sqlite_autoincrement=True,
)

#: How far the event pipeline is: one row, from its first leader on; see ``events/outbox.py``.
pipeline = Table(
    "pipeline",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    # A worker's lease, and how often anybody has become the leader: what an earlier one writes
    # changes nothing.
    Column("leader", String(64)),
    Column("epoch", BigInteger, nullable=False),
    # The highest position that was given, and that the broker has confirmed with all before it.
    Column("assigned", BigInteger, nullable=False),
    Column("published", BigInteger, nullable=False),
)

#: The leases of the workers there are: see ``ledger/lease.py``.
workers = Table(
    "workers",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("beat", BigInteger, nullable=False),
    Column("lease", Double, nullable=False),
    Column("beat_at", Double, nullable=False),
    # What its worker's clock showed at the last beat: only differences mean anything.
    Column("clock", Double),
)

#: What operators did by hand.
audit = Table(
    "audit",
    metadata,
    Column("id", Number, primary_key=True, autoincrement=True),
    Column("at", Double, nullable=False),
    Column("operator", String(128), nullable=False),
    Column("what", String(64), nullable=False),
    Column("merchant_id", String(128), nullable=False),
    Column("order_id", String(128), nullable=False),
    Column("details", String(512), nullable=False),
    sqlite_autoincrement=True,
)
