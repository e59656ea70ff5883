"""The table of the outbox, for each database: what creates it, and what its clock is called.

Times are the database's, in UTC. Bodies are bytes: an order is submitted as it was added, whatever
the database's encoding. Ids compare by their bytes, also where a database ignores case.
"""

from enum import StrEnum

TABLE = "pos_gateway_outbox"
#: PostgreSQL's channel on which a commit wakes relays.
CHANNEL = "pos_gateway_outbox"


class Dialect(StrEnum):
    """A backend's database."""

    POSTGRESQL = "postgresql"
    MYSQL = "mysql"  # and MariaDB
    SQLITE = "sqlite"


def ddl(dialect: str) -> list[str]:
    """The statements that create the outbox. Raises ValueError for an unknown dialect.

    They stay the same within a major version of this package; docs/upgrading.md has any change.
    """
    return list(_DDL[Dialect(dialect)])


#: The present moment, in UTC.
NOW = {
    Dialect.POSTGRESQL: "clock_timestamp()",
    Dialect.MYSQL: "utc_timestamp(6)",
    Dialect.SQLITE: "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')",
}
#: The moment that is a parameter's milliseconds away, an integer.
LATER = {
    Dialect.POSTGRESQL: "clock_timestamp() + ? * interval '1 millisecond'",
    Dialect.MYSQL: "utc_timestamp(6) + interval ? * 1000 microsecond",
    Dialect.SQLITE: "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', (? / 1000.0) || ' seconds')",
}
#: The seconds since a moment, as a number.
SINCE = {
    Dialect.POSTGRESQL: "cast(extract(epoch from clock_timestamp() - {moment}) as double precision)",
    Dialect.MYSQL: "timestampdiff(microsecond, {moment}, utc_timestamp(6)) / 1000000",
    Dialect.SQLITE: "(julianday('now') - julianday({moment})) * 86400",
}

_DDL = {
    Dialect.POSTGRESQL: (
        f"""\
create table {TABLE} (
    id bigint generated always as identity primary key,
    action text not null check (action in ('submit', 'cancel')),
    merchant_id text not null,
    order_id text not null,
    body bytea not null,
    created_at timestamptz not null default clock_timestamp(),
    attempts integer not null default 0,
    not_before timestamptz,
    refused_at timestamptz,
    reason text
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)""",
        f"create index {TABLE}_by_order on {TABLE} (merchant_id, order_id, id)",
    ),
    Dialect.MYSQL: (
        f"""\
create table {TABLE} (
    id bigint unsigned not null auto_increment primary key,
    action varchar(8) character set ascii not null,
    merchant_id varchar(128) character set ascii collate ascii_bin not null,
    order_id varchar(128) character set ascii collate ascii_bin not null,
    body longblob not null,
    created_at datetime(6) not null default (utc_timestamp(6)),
    attempts integer not null default 0,
    not_before datetime(6),
    refused_at datetime(6),
    reason text character set utf8mb4,
    key {TABLE}_by_order (merchant_id, order_id, id)
) engine = InnoDB""",
    ),
    Dialect.SQLITE: (
        f"""\
create table {TABLE} (
    id integer primary key autoincrement,
    action text not null check (action in ('submit', 'cancel')),
    merchant_id text not null,
    order_id text not null,
    body blob not null,
    created_at text not null default ({NOW[Dialect.SQLITE]}),
    attempts integer not null default 0,
    not_before text,
    refused_at text,
    reason text
)""",
        f"create index {TABLE}_by_order on {TABLE} (merchant_id, order_id, id)",
    ),
}
