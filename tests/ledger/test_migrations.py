"""Migrating from the schema before the ledger to this one, and back."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from click.testing import CliRunner
from sqlalchemy import Engine, inspect, text

from pos_gateway.cli.root import root
from pos_gateway.database.engine import _alembic, open_database, require_current, upgrade
from pos_gateway.database.schema import merchants, metadata
from pos_gateway.database.upsert import upsert
from pos_gateway.domain.errors import PendingMigration
from pos_gateway.domain.merchant import Merchant
from pos_gateway.merchants.store import MerchantStore
from testkit.servers.postgresql import PostgreSQL
from tests.ledger.lab import KEY, Worker, an_entry, claimed
from tests.schema import database_with_tables, dump, make_tables

MERCHANT = Merchant.parse(
    {"id": "m", "base_url": "https://pos.example.com", "pos": {"shop": "7"}, "max_concurrency": 3}
)


@pytest.fixture(params=["database_url", "postgres_url"])
def url(request: pytest.FixtureRequest) -> str:
    """A database without tables, of each kind."""
    value: str = request.getfixturevalue(request.param)
    return value


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    engine = open_database(url)
    yield engine
    engine.dispose()


def to(engine: Engine, revision: str, *, down: bool = False) -> None:
    with engine.begin() as connection:
        (command.downgrade if down else command.upgrade)(_alembic(connection), revision)


def tables(engine: Engine) -> set[str]:
    return set(inspect(engine).get_table_names()) - {"alembic_version"}


def put(engine: Engine) -> None:
    """Write the merchant as the release before the ledger did."""
    row = {**MERCHANT.model_dump(exclude={"auth"}), "auth": {}, "updated_at": datetime.now(UTC)}
    with engine.begin() as connection:
        upsert(connection, merchants, [row])


def test_merchants_survive_the_migration_up_and_down(
    engine: Engine, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    to(engine, "0002")
    assert tables(engine) == {"merchants"}
    put(engine)
    with pytest.raises(PendingMigration, match="pos-gateway db upgrade"):
        require_current(engine)

    monkeypatch.setenv("POS_GATEWAY_DATABASE_URL", url)
    for said in ("is now up to date", "is up to date already"):
        done = CliRunner().invoke(root, ["db", "upgrade"])
        assert (done.exit_code, said in done.output) == (0, True), done.output
    require_current(engine)
    assert tables(engine) == set(metadata.tables)
    assert MerchantStore(engine).get(["m"]) == {"m": MERCHANT}
    one = Worker(engine)
    assert one.finish(claimed(one.claim(KEY, send=True)), an_entry())
    one.close()

    to(engine, "0002", down=True)
    assert tables(engine) == {"merchants"}
    assert MerchantStore(engine).get(["m"]) == {"m": MERCHANT}
    upgrade(engine)
    claimed(Worker(engine).claim(KEY, send=True))
    to(engine, "base", down=True)
    assert tables(engine) == set()


def test_the_migrations_create_the_schema(engine: Engine) -> None:
    upgrade(engine)
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "compare_server_default": True}
        )
        assert compare_metadata(context, metadata) == []


def test_tests_copy_what_the_migrations_make_in_sqlite(tmp_path: Path) -> None:
    made = {}
    for make in (upgrade, make_tables):
        engine = open_database(f"sqlite:///{tmp_path}/{make.__name__}.db")
        make(engine)
        make(engine)  # harmless
        with engine.connect() as connection:
            made[make] = connection.execute(text("select * from sqlite_master")).all()
            version = connection.scalar(text("select version_num from alembic_version"))
            made[make] += [version, connection.scalar(text("pragma journal_mode"))]
        engine.dispose()
    assert made[make_tables] == made[upgrade]


def test_tests_copy_what_the_migrations_make_in_postgresql(postgresql: PostgreSQL) -> None:
    postgresql.start()
    made = []
    for make in (upgrade, make_tables, make_tables):  # of which the first may migrate
        url = postgresql.database()
        engine = open_database(url)
        make(engine)
        make(engine)  # harmless
        made.append(dump(url.replace("+psycopg", "")))
        engine.dispose()
        postgresql.drop_database(url)
    url = database_with_tables(postgresql)
    made.append(dump(url.replace("+psycopg", "")))
    postgresql.drop_database(url)
    assert made == [made[0]] * 4


def test_a_failed_upgrade_is_rolled_back(engine: Engine) -> None:
    to(engine, "0002")
    with engine.begin() as connection:
        # Conflicts with the last migration.
        connection.execute(text("create table audit (id integer)"))
    with pytest.raises(Exception, match="audit"):
        upgrade(engine)
    assert tables(engine) == {"merchants", "audit"}
    with engine.begin() as connection:
        connection.execute(text("drop table audit"))
    upgrade(engine)
    require_current(engine)
