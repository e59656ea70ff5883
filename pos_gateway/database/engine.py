"""Opens and migrates the database, and checks the schema for this version."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from math import ceil
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    Connection,
    Engine,
    Select,
    column,
    create_engine,
    event,
    inspect,
    literal_column,
    make_url,
    null,
    select,
    table,
    text,
    union_all,
)
from sqlalchemy.exc import ArgumentError

from pos_gateway.database.migrations import REVISIONS
from pos_gateway.database.schema import metadata
from pos_gateway.domain.errors import FieldError, InvalidSettings, PendingMigration, SchemaTooNew

if TYPE_CHECKING:
    from alembic.config import Config

#: Seconds for SQLite to wait for a concurrent write.
_SQLITE_BUSY = 5.0
#: Text is sent as UTF-8, whatever the database's encoding. The kernel notices
#: a peer's silent end (a failover) after 15 s instead of two hours.
_POSTGRESQL = {
    "client_encoding": "utf8",
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 2,
    "tcp_user_timeout": 15_000,
    # Of the URL's hosts, only the primary: a standby may lag, and takes no claims.
    "target_session_attrs": "primary",
}
#: Seconds for PostgreSQL's answer to a statement, after which the connection counts as lost: a
#: pooler or load balancer may acknowledge for a vanished server. For engines, for commands,
#: whose statements may read whole tables, and for migrations.
ANSWER, COMMAND_ANSWER, _MIGRATION_ANSWER = 15.0, 600.0, 3600.0
#: Seconds for connecting, or for checking a pooled connection. A worker goes on to the next host; a
#: command's user would have to repeat the command.
_PING_ANSWER, _COMMAND_PING_ANSWER = 5.0, 15.0
#: Seconds by which the server ends a statement earlier, and reports the end to the client.
_EARLIER = 5.0
#: Formats of a session's values, whatever the role or database has by default, as drivers and our
#: statements read them. ``search_path`` and time limits of locks are the operator's.
_VALUES = {
    "datestyle": "ISO, MDY",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "standard_conforming_strings": "on",
    "bytea_output": "hex",
    "extra_float_digits": "1",
}
#: Statements of two connections, to notice a pooler with shared sessions.
_ROUNDS = 3
#: Maximum idle time of a transaction with locked rows; of a migration with a locked table,
#: that loads scripts between two statements.
_IDLE, _IDLE_MIGRATION = "5s", "60s"
#: Maximum wait of a migration for a table's lock: workers queue behind the migration.
_LOCK_TIMEOUT = "5s"
#: The PostgreSQL advisory lock of a migration: any unused number.
_UPGRADING = 7_263_905_148
#: In a revision's name: the oldest schema of versions that can use the revision. Without, all
#: versions can: the migration and those before have only added.
_FROM = "_from_"


def open_database(url: str, *, answer: float = ANSWER) -> Engine:
    """An engine for the URL; connects on first use.

    Args:
        answer: seconds for PostgreSQL's answer to a statement.

    Raises:
        InvalidSettings: the URL is invalid, or PostgreSQL's driver is not installed.
    """
    scheme, separator, rest = url.partition("://")
    if scheme in ("postgres", "postgresql"):
        # Psycopg 3 waits on the socket in Python, and lets green threads run.
        scheme = "postgresql+psycopg"
        url = scheme + separator + rest
    try:
        said = make_url(url).query
        ping = _PING_ANSWER if answer <= ANSWER else _COMMAND_PING_ANSWER
        values = {**_POSTGRESQL, "connect_timeout": ceil(ping)}
        connect: dict[str, Any] = {k: v for k, v in values.items() if k not in said}
        connect = connect if scheme == "postgresql+psycopg" else {}
        engine = create_engine(url, pool_pre_ping=True, connect_args=connect, hide_parameters=True)
        if "@" in (engine.url.host or ""):  # the rest of an unencoded password
            raise ArgumentError
    except ModuleNotFoundError as error:
        raise InvalidSettings(
            [
                FieldError(
                    "POS_GATEWAY_DATABASE_URL",
                    f"needs the package {error.name}; pip install 'pos-gateway[postgres]'",
                    scheme,
                )
            ]
        ) from error
    except (ArgumentError, ValueError):
        # Not the parser's message, with a part of an unencoded password.
        problem = "is not a database's URL; in a password @ is written %40, / %2F, : %3A"
        raise InvalidSettings([FieldError("POS_GATEWAY_DATABASE_URL", problem, scheme)]) from None
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
    elif scheme == "postgresql+psycopg":
        _bound_answers(engine, answer, ping)
    return engine


@contextmanager
def changing(engine: Engine) -> Iterator[Connection]:
    """A transaction that locks workers' rows; else like ``engine.begin()``.

    PostgreSQL ends the transaction if the process is paused, or gone without a word: a worker that
    waits for a locked row writes no other row.
    """
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            _bound_idle(connection, _IDLE)
        yield connection


def _bound_idle(connection: Connection, longest: str) -> None:
    connection.exec_driver_sql(f"set local idle_in_transaction_session_timeout = '{longest}'")


def upgrade(engine: Engine) -> None:
    """Migrate the schema to this version, or leave it unchanged. Idempotent.

    Workers may run meanwhile. On PostgreSQL, fails if workers keep a table locked for seconds.
    """
    from alembic import command  # noqa: PLC0415  (workers do without)

    with engine.begin() as connection:
        if engine.dialect.name == "sqlite":  # the driver begins no transaction for DDL
            connection.exec_driver_sql("begin immediate")
        else:
            _allow_a_migration(connection)
            _bound_idle(connection, _IDLE_MIGRATION)
            # Two first migrations at once would both create the tables: the second waits for the
            # first, and finds nothing to do.
            connection.exec_driver_sql(f"select pg_advisory_xact_lock({_UPGRADING})")
            connection.exec_driver_sql(f"set local lock_timeout = '{_LOCK_TIMEOUT}'")
        command.upgrade(_alembic(connection), "head")


def require_current(engine: Engine) -> None:
    """Return if this version can use the schema: its own, or a later schema with additions only.

    Raises:
        PendingMigration: the schema is older; names the command.
        SchemaTooNew: the schema is newer, and lacks parts for this version.
        InvalidSettings: a pooler in front of the database shares sessions.
        SQLAlchemyError: the database is away, or a table cannot be read.
    """
    if engine.dialect.name == "postgresql":
        _require_sessions(engine)
    with engine.connect() as connection:
        _require_revision(_revision(connection))
        # The revision alone is not enough: a table may be missing, or another role's.
        connection.exec_driver_sql(revision_and_tables())


def _require_sessions(engine: Engine) -> None:
    """Raise InvalidSettings behind a pooler that runs a connection in several sessions.

    Prepared statements, ``listen`` and time limits belong to a session. A pooler makes up a process
    id; then the ids of the server's processes say whether sessions are shared.
    """
    with ExitStack() as stack:
        asking = "select pg_backend_pid()"

        def connection() -> Connection:
            opened = stack.enter_context(engine.connect())
            return opened.execution_options(isolation_level="AUTOCOMMIT")

        first = connection()
        announced = first.connection.driver_connection.info.backend_pid  # type: ignore[union-attr]
        if first.exec_driver_sql(asking).scalar() == announced:
            return
        second = connection()
        # Twice in a row, lest a pooler that takes sessions in turn gives each the same.
        asked = (first, second, second) * _ROUNDS
        seen = {(each, each.exec_driver_sql(asking).scalar()) for each in asked}
    if len(seen) > 2 or len({number for _, number in seen}) < 2:
        problem = (
            "leads to a pooler that shares sessions (PgBouncer's pool_mode = transaction);"
            " set pool_mode = session for this database, or name PostgreSQL itself"
        )
        shown = engine.url.render_as_string(hide_password=True)
        raise InvalidSettings([FieldError("POS_GATEWAY_DATABASE_URL", problem, shown)])


@cache
def revision_and_tables() -> str:
    """A query in plain SQL: Alembic's revision, and no row of every table."""
    nothing: Iterator[Select[Any]] = (
        select(null()).select_from(each).where(literal_column("1 = 0"))
        for each in metadata.tables.values()
    )
    revision: Select[Any] = select(column("version_num")).select_from(table("alembic_version"))
    return str(union_all(revision, *nothing))


def _require_revision(present: str | None) -> None:
    needed = REVISIONS[-1]
    if present == needed:
        return
    if present is None or present in REVISIONS:
        what = "needs a migration" if present else "has no tables yet"
        raise PendingMigration(f"the database {what}; run: pos-gateway db upgrade")
    oldest = present.partition(_FROM)[2]
    if needed < oldest:
        raise SchemaTooNew(
            f"the database's schema is {present}, and this version's is {needed}; "
            f"run: a version whose schema is {oldest} or later"
        )


def _revision(connection: Connection) -> str | None:
    """The revision in Alembic's table, if there is a table."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    revision: str | None = connection.scalar(text("select version_num from alembic_version"))
    return revision


def _alembic(connection: Connection | None = None) -> "Config":
    from alembic.config import Config  # noqa: PLC0415  (likewise)

    config = Config()
    config.set_main_option("script_location", "pos_gateway:database/migrations")
    config.attributes["connection"] = connection
    return config


def _bound_answers(engine: Engine, answer: float, ping: float) -> None:
    """Bound the answers to all statements of the engine's connections to PostgreSQL."""
    from pos_gateway.database.confirmed import ConfirmedConnection  # noqa: PLC0415  (needs psycopg)
    from pos_gateway.database.psycopg_internals import wait_at_most  # noqa: PLC0415  (likewise)

    values = {**_VALUES, "statement_timeout": f"{answer - _EARLIER:g}s"}
    settings = "; ".join(f"set {name} = '{value}'" for name, value in values.items())

    def connect(_dialect: object, _record: object, arguments: Any, named: Any) -> Any:
        connection = ConfirmedConnection.connect(*arguments, **named)
        wait_at_most(connection, ping)
        connection.autocommit = True
        connection.execute(settings)
        connection.autocommit = False
        return connection

    def check_out(connection: Any, _record: object, _proxy: object) -> None:
        wait_at_most(connection, answer)

    def check_in(connection: Any, _record: object) -> None:
        if connection is not None:  # else it was lost
            wait_at_most(connection, ping)

    event.listen(engine, "do_connect", connect)
    event.listen(engine, "checkout", check_out)
    event.listen(engine, "checkin", check_in)


def _allow_a_migration(connection: Connection) -> None:
    """Give this transaction time to rewrite a table, or to wait for a concurrent migration."""
    from pos_gateway.database.psycopg_internals import wait_at_most  # noqa: PLC0415  (likewise)

    wait_at_most(connection.connection.driver_connection, _MIGRATION_ANSWER)
    limit = _MIGRATION_ANSWER - _EARLIER
    connection.exec_driver_sql(f"set local statement_timeout = '{limit:g}s'")


def _prepare_sqlite(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode = WAL")  # readers do not wait for a writer
    cursor.execute(f"PRAGMA busy_timeout = {_SQLITE_BUSY * 1000:.0f}")
    cursor.close()
