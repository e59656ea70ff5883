"""The snippets of docs/outbox.md do what the page says."""

import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pos_gateway.client import outbox
from pos_gateway.client.outbox.connections import PlainConnection
from pos_gateway.domain.order import Order
from tests.orders import an_order
from tests.outbox.lab import Backend, Gateway
from tests.outbox.test_adding import django_connection

PAGE = (Path(__file__).parents[2] / "docs" / "outbox.md").read_text()


def block(words: str) -> str:
    """The page's program with these words."""
    [found] = [
        each
        for each in re.findall(r"```(?:python|sql)\n(.*?)```", PAGE, re.DOTALL)
        if words in each
    ]
    return str(found)


def test_alembic_s_migration_creates_and_drops_the_table(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    from alembic.migration import MigrationContext
    from alembic.operations import Operations
    from sqlalchemy import create_engine, inspect

    names: dict[str, Any] = {}
    with create_engine(backend.url).begin() as connection:
        names["op"] = Operations(MigrationContext.configure(connection))
        exec(block("def upgrade"), names)
        names["downgrade"]()
        assert not inspect(connection).has_table(outbox.TABLE)
        names["upgrade"]()
        outbox.add(connection, an_order("o1"))
    assert backend.kept() == ["o1"]


def test_django_s_migration_creates_the_table(backend: Backend) -> None:
    connection = django_connection(backend)
    backend.run(f"drop table {outbox.TABLE}")
    names: dict[str, Any] = {}
    exec(block("class Migration"), names)
    with closing(connection):
        with connection.schema_editor(atomic=False) as editor:
            [operation] = names["Migration"].operations
            operation.code(None, editor)
        connection.set_autocommit(False)
        outbox.add(connection, an_order("o1"))
        connection.commit()
    assert backend.kept() == ["o1"]


def test_a_row_of_another_language_is_submitted(backend: Backend, gateway: Gateway) -> None:
    """The statement of the page, with an order in it."""
    insert = block("insert into pos_gateway_outbox").partition(";")[0]
    statement = insert.replace("'m-1', 'o-1', '{…}'", "?, ?, ?")
    assert statement.count("?") == 3
    body = Order.parse(an_order("o-1", "m-1")).source
    with closing(backend.connect()) as connection:
        PlainConnection(connection).execute(statement, ("m-1", "o-1", body))
        connection.commit()
    assert outbox.Relay(gateway, backend.url).drain() == 1
    assert gateway.stored == ["o-1"]


def test_django_s_own_connections_serve_the_relay(backend: Backend, gateway: Gateway) -> None:
    connection = django_connection(backend)
    [code] = re.findall(r"`lambda: (connection\.get_new_connection\([^`]*\))`", PAGE)
    backend.place(an_order("o1"))
    relay = outbox.Relay(gateway, lambda: eval(code, {"connection": connection}))
    assert relay.drain() == 1
