"""Two concurrent operators on PostgreSQL: the second starts within the first one's transaction."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, event, text

from pos_gateway.audit.note import By
from pos_gateway.database.engine import open_database, upgrade
from pos_gateway.domain.merchant import Merchant
from pos_gateway.merchants.admin import MerchantAdmin
from pos_gateway.merchants.catalogs import CatalogStore
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.runtime.vault import Vault


def a_merchant(merchant_id: str, **fields: object) -> Merchant:
    return Merchant.parse({"id": merchant_id, "base_url": "https://pos.example.com", **fields})


class Operators:
    """Two operators, each with a connection."""

    def __init__(self, url: str) -> None:
        self.first, self.second, self._watching = (open_database(url) for _ in range(3))
        upgrade(self.first)

    def at_once(self, first: Callable[[Engine], Any], second: Callable[[Engine], Any]) -> Any:
        """The second starts before the first commits, and has to wait; returns its result."""
        came_to: list[Any] = []
        waiting = threading.Thread(target=lambda: came_to.append(second(self.second)))

        def begin(_: object) -> None:
            waiting.start()
            with self._watching.connect() as connection:
                while not connection.scalar(
                    text("select count(*) from pg_locks where not granted")
                ):
                    connection.rollback()

        event.listen(self.first, "commit", begin, once=True)
        first(self.first)
        waiting.join()
        return came_to[0]

    def close(self) -> None:
        for each in (self.first, self.second, self._watching):
            each.dispose()


@pytest.fixture
def operators(postgres_url: str) -> Iterator[Operators]:
    operators = Operators(postgres_url)
    yield operators
    operators.close()


def test_a_merchant_that_is_paused_while_it_is_imported_is_paused(operators: Operators) -> None:
    store = MerchantStore(operators.first)
    store.put([a_merchant("m"), a_merchant("n")])
    paused = operators.at_once(
        lambda engine: MerchantStore(engine).put([a_merchant("m", provider="p"), a_merchant("n")]),
        lambda engine: MerchantAdmin(engine, Vault(), lambda _: []).pause(
            ["m"], By("kim"), paused=True
        ),
    )
    assert paused.changed == ["m"]
    found = store.get(["m"])["m"]
    assert (found.paused, found.provider) == (True, "p")


@pytest.mark.parametrize("are_there", [True, False])
def test_two_imports_at_once_are_both_written_the_later_one_last(
    operators: Operators, are_there: bool
) -> None:
    store = MerchantStore(operators.first)
    if are_there:
        store.put([a_merchant("m"), a_merchant("n")])
    written = operators.at_once(
        lambda engine: MerchantStore(engine).put([a_merchant("m"), a_merchant("n")]),
        lambda engine: MerchantStore(engine).put([a_merchant("n", provider="p"), a_merchant("o")]),
    )
    assert written == 2
    assert {each.id: each.provider for each in store.all()} == {"m": None, "n": "p", "o": None}


@pytest.mark.parametrize("is_there", [True, False])
def test_two_imports_of_one_catalog_at_once_are_both_written(
    operators: Operators, is_there: bool
) -> None:
    catalogs = CatalogStore(operators.first)
    if is_there:
        catalogs.put({"m": {"a": "0"}})
    result = operators.at_once(
        lambda engine: CatalogStore(engine).put({"m": {"a": "1"}}),
        lambda engine: CatalogStore(engine).put({"m": {"a": "2"}}),
    )
    assert result is None
    assert catalogs.get("m") == {"a": "2"}


def test_two_first_upgrades_at_once_create_the_tables_once(postgres_url: str) -> None:
    """Two replicas of a job, or two operators."""
    first, watching = open_database(postgres_url), open_database(postgres_url)
    others: list[subprocess.Popen[str]] = []

    def begin(_: object) -> None:
        others.append(
            subprocess.Popen(
                [sys.executable, "-m", "pos_gateway", "db", "upgrade"],
                env={"POS_GATEWAY_DATABASE_URL": postgres_url},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        with watching.connect() as connection:
            while not connection.scalar(text("select count(*) from pg_locks where not granted")):
                connection.rollback()

    event.listen(first, "commit", begin, once=True)
    upgrade(first)
    said, _ = others[0].communicate()
    assert (others[0].returncode, "is now up to date" in said) == (0, True), said
    for each in (first, watching):
        each.dispose()
