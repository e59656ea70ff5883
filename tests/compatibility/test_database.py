"""Two releases on one database: each one's statements work on the other's schema.

The rules for migrations that this requires are in docs/upgrading.md.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, inspect, text
from sqlalchemy.exc import OperationalError

from pos_gateway.database import engine as database
from pos_gateway.database.engine import _alembic, open_database, require_current, upgrade
from pos_gateway.database.migrations import REVISIONS
from pos_gateway.domain.errors import PendingMigration, SchemaTooNew
from testkit.patience import PATIENCE
from tests.compatibility import scenario
from tests.compatibility.release import Release, releases

every_release = pytest.mark.parametrize("release", releases(), ids=lambda each: each.version)


UPGRADING = Path(__file__).parents[2] / "docs" / "upgrading.md"


class Databases:
    """Databases without tables, of one kind."""

    def __init__(self, request: pytest.FixtureRequest, kind: str) -> None:
        self._request, self._kind = request, kind
        self._engines: list[Engine] = []

    def one(self) -> Engine:
        if self._kind == "sqlite":
            folder = self._request.getfixturevalue("tmp_path")
            url = f"sqlite:///{folder / f'{len(self._engines)}.db'}"
        else:
            self._request.getfixturevalue("postgres_url")  # starts the server
            url = self._request.getfixturevalue("postgresql").database()
        self._engines.append(open_database(url))
        return self._engines[-1]

    def close(self) -> None:
        for engine in self._engines:
            engine.dispose()
            if self._kind == "postgresql":
                self._request.getfixturevalue("postgresql").drop_database(str(engine.url))


@pytest.fixture(params=["sqlite", "postgresql"])
def databases(request: pytest.FixtureRequest) -> Iterator[Databases]:
    made = Databases(request, request.param)
    yield made
    made.close()


def rows(engine: Engine, like: Engine) -> dict[str, list[Any]]:
    """The rows of every table, in the columns that the other database has, too."""
    found = {}
    with engine.connect() as connection:
        for table in set(inspect(like).get_table_names()) - {"alembic_version"}:
            columns = [f'"{each["name"]}"' for each in inspect(like).get_columns(table)]
            query = text(f"select {', '.join(columns)} from {table}")  # of both alike
            found[table] = sorted(map(str, connection.execute(query)))
    return found


@every_release
def test_an_earlier_releases_statements_work_on_this_schema(
    databases: Databases, release: Release
) -> None:
    before, after = databases.one(), databases.one()
    for engine in (before, after):
        release.make_schema(engine)
    upgrade(after)
    assert release.play(after) == release.play(before)
    assert rows(after, like=before) == rows(before, like=before)
    assert rows(before, like=before)["orders"]


@every_release
def test_this_release_works_on_an_earlier_ones_rows(databases: Databases, release: Release) -> None:
    engine, empty = databases.one(), databases.one()
    release.make_schema(engine)
    release.play(engine)
    left = rows(engine, like=engine)
    upgrade(engine)
    require_current(engine)
    upgrade(empty)
    scenario.play_on_database(empty)
    assert {table: len(rows(engine, like=engine)[table]) for table in left} == {
        table: len(found) for table, found in left.items()
    }
    # The same outcomes in the same order, whichever release wrote them.
    fates = text("select order_id, action, state, told, epoch from orders order by 1, 2")
    with engine.connect() as one, empty.connect() as other:
        assert one.execute(fates).all() == other.execute(fates).all()


@every_release
def test_the_recording_has_every_statement_of_this_release(
    databases: Databases, release: Release
) -> None:
    engine = databases.one()
    release.make_schema(engine)
    release.play(engine)
    written = rows(engine, like=engine)
    assert [table for table, found in written.items() if not found] == []


def add_what_a_later_release_may(engine: Engine, revision: str) -> None:
    with engine.begin() as connection:
        for statement in (
            "alter table orders add column courier varchar(64)",
            "alter table events add column shard integer not null default 0",
            "alter table merchants add column region varchar(8)",
            "create table couriers (id varchar(64) primary key)",
            "create index orders_by_courier on orders (courier)",
            f"update alembic_version set version_num = '{revision}'",
        ):
            connection.exec_driver_sql(statement)


def test_this_release_works_on_the_schema_of_a_later_one_that_has_added(
    databases: Databases,
) -> None:
    engine = databases.one()
    upgrade(engine)
    add_what_a_later_release_may(engine, "9998_from_0001")
    require_current(engine)  # a restarted worker starts
    scenario.play_on_database(engine)


def test_a_schema_without_a_needed_column_is_refused_by_name(
    databases: Databases,
) -> None:
    engine = databases.one()
    upgrade(engine)
    add_what_a_later_release_may(engine, "9998_from_9997")
    with pytest.raises(SchemaTooNew, match=r"9998_from_9997.*run: a version whose schema is 9997"):
        require_current(engine)


def test_every_schema_before_this_one_needs_the_migration(databases: Databases) -> None:
    engine = databases.one()
    scripts = list(ScriptDirectory.from_config(_alembic()).walk_revisions())
    for earlier in reversed(scripts[1:]):
        with engine.begin() as connection:
            command.upgrade(_alembic(connection), earlier.revision)
        with pytest.raises(PendingMigration, match="needs a migration"):
            require_current(engine)


def test_a_worker_knows_every_revision_without_alembic() -> None:
    scripts = ScriptDirectory.from_config(_alembic()).walk_revisions()
    assert [each.revision for each in scripts] == list(reversed(REVISIONS))
    program = "import sys, pos_gateway.gcelery; assert 'alembic' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE)


def test_a_migration_does_not_block_workers(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_LOCK_TIMEOUT", "50ms")
    engine = open_database(postgres_url)
    releases()[0].make_schema(engine)
    with engine.begin() as connection:  # a pending migration, on a table in use
        command.downgrade(_alembic(connection), "0004")
    with engine.begin() as worker:
        worker.exec_driver_sql("update merchants set paused = true")
        worker.exec_driver_sql("lock table merchants in row exclusive mode")
        with pytest.raises(OperationalError, match="lock timeout"):
            upgrade(engine)
    upgrade(engine)
    require_current(engine)
    engine.dispose()


def indexes(engine: Engine) -> dict[str, str]:
    """The definitions by name of the indexes that PostgreSQL uses."""
    valid = text(
        "select indexrelid::regclass::text, pg_get_indexdef(indexrelid) from pg_index"
        " join pg_class on pg_class.oid = indrelid where indisvalid and relkind = 'r'"
        " and relnamespace = 'public'::regnamespace"
    )
    with engine.connect() as connection:
        return {each[0]: each[1] for each in connection.execute(valid)}


@pytest.mark.parametrize("databases", ["postgresql"], indirect=True)
def test_the_documented_statements_make_the_indexes_before_the_migration(
    databases: Databases,
) -> None:
    release = releases()[-1]
    by_hand, by_migration = databases.one(), databases.one()
    for engine in (by_hand, by_migration):
        release.make_schema(engine)
    tables = inspect(by_hand).get_table_names()
    statements = re.findall(
        r"`((?:begin;|create index concurrently \w)[^`]+)`", UPGRADING.read_text()
    )
    with by_hand.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    made = indexes(by_hand)
    release.play(by_hand)  # the release before works on meanwhile
    upgrade(by_hand)
    upgrade(by_migration)
    require_current(by_hand)
    assert indexes(by_hand) == indexes(by_migration)
    of_earlier_tables = {
        name: each
        for name, each in indexes(by_hand).items()
        if each.split(" ON public.")[1].split()[0] in tables
    }
    assert of_earlier_tables == made  # the migration has built none
