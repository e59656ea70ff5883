"""Sessions of PostgreSQL: what a role or a database has by default, and poolers that share them."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, make_url, text

from pos_gateway.database.engine import open_database, require_current
from pos_gateway.domain.errors import InvalidSettings
from pos_gateway.domain.merchant import Merchant
from pos_gateway.merchants.store import MerchantStore

#: Defaults that an operator may have given a database for its other programs.
DEFAULTS = {
    "datestyle": "SQL, DMY",
    "intervalstyle": "sql_standard",
    "timezone": "Australia/Lord_Howe",
    "standard_conforming_strings": "off",
    "bytea_output": "escape",
    "extra_float_digits": "-15",
}


@pytest.fixture
def engine(postgres_url_with_tables: str) -> Iterator[Engine]:
    url = make_url(postgres_url_with_tables)
    plain = url.set(drivername="postgresql").render_as_string(False)
    with psycopg.connect(plain, autocommit=True) as connection:
        for name, value in DEFAULTS.items():
            connection.execute(f"alter database \"{url.database}\" set {name} = '{value}'")  # type: ignore[arg-type]
    engine = open_database(postgres_url_with_tables)
    yield engine
    engine.dispose()


def test_values_are_read_as_they_were_written_whatever_the_database_has_by_default(
    engine: Engine,
) -> None:
    store = MerchantStore(engine)
    store.put([Merchant.parse({"id": "m", "base_url": "https://pos.example.com"})])
    stamped: Any = store.stamped(["m"])
    assert stamped["m"]
    with engine.connect() as connection:
        moment, third, byte, length, path = connection.execute(
            text(
                r"select timestamptz '2026-02-03 04:05:06Z', 1/3::float8, '\x41ff'::bytea, "
                "interval '26 hours', '\\'"
            )
        ).one()
    assert moment == datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)
    assert (third, bytes(byte), length, path) == (1 / 3, b"A\xff", timedelta(hours=26), "\\")


@pytest.mark.parametrize("sessions", [1, 2, 3])
def test_a_pooler_that_shares_sessions_is_refused_with_the_remedy(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, sessions: int
) -> None:
    """A pooler makes up the process id that it announces; in session mode its connections share nothing."""
    require_current(engine)
    monkeypatch.setattr(psycopg.ConnectionInfo, "backend_pid", 0)
    require_current(engine)
    with (
        engine.begin() as connection
    ):  # as if few sessions ran the statements of all connections in turn
        connection.exec_driver_sql("create sequence public.turn")
        connection.exec_driver_sql(
            "create function public.pg_backend_pid() returns int language sql as "
            f"$$ select mod(nextval('public.turn'), {sessions})::int + 1 $$"
        )
        connection.exec_driver_sql(
            f'alter database "{engine.url.database}" set search_path = public, pg_catalog'
        )
    engine.dispose()
    with pytest.raises(InvalidSettings, match="pool_mode = session"):
        require_current(engine)
