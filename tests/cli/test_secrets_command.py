"""``pos-gateway secrets rotate``: merchants' secrets, and the orders that are kept."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select

from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.resealing import Resealed, reseal
from pos_gateway.ledger.schema import orders
from pos_gateway.ledger.states import Key, State
from pos_gateway.vault import Vault, new_key
from tests.cli.books import Books
from tests.cli.conftest import Program

OLD, NEW = new_key(), new_key()


def payloads(books: Books) -> list[str]:
    with books.engine.connect() as connection:
        return list(connection.scalars(select(orders.c.payload).order_by(orders.c.order_id)))


def test_orders_are_sealed_with_the_new_key_and_those_in_clear_too(
    program: Program, any_books: Books, order: Callable[..., dict[str, Any]]
) -> None:
    any_books.in_doubt("clear", customer={"name": "Quackenbush"})
    old = Books(any_books.url, order, OLD)
    old.order("old", State.ACCEPTED, customer={"name": "Quackenbush"})
    done = program.invoke("secrets", "rotate", POS_GATEWAY_SECRET_KEY=f"{NEW},{OLD}")
    assert done.exit_code == 0
    assert done.stdout == "0 of 0 merchants sealed anew\n2 of 2 orders sealed anew\n"
    assert not any("Quackenbush" in payload for payload in payloads(any_books))
    for order_id in ("clear", "old"):
        shown = program.invoke(
            "orders", "show", order_id, "--json", "--reveal", POS_GATEWAY_SECRET_KEY=NEW
        )
        assert json.loads(shown.stdout)["content"]["customer"] == {"name": "Quackenbush"}
    again = program.invoke("secrets", "rotate", POS_GATEWAY_SECRET_KEY=NEW)
    assert "0 of 2 orders sealed anew" in again.stdout
    old.close()


def test_without_a_key_nothing_is_sealed(program: Program, books: Books) -> None:
    books.in_doubt("clear")
    before = payloads(books)
    assert "0 of 1 orders sealed anew" in program.invoke("secrets", "rotate").stdout
    assert payloads(books) == before


def test_an_order_that_no_key_opens_stays_and_the_others_are_sealed(
    program: Program, database_url: str, order: Callable[..., dict[str, Any]]
) -> None:
    lost, old = Books(database_url, order, new_key()), Books(database_url, order, OLD)
    lost.in_doubt("a")
    before = payloads(lost)
    old.in_doubt("b")
    done = program.invoke("secrets", "rotate", POS_GATEWAY_SECRET_KEY=f"{NEW},{OLD}")
    assert done.exit_code == 1
    assert "1 of 2 orders sealed anew" in done.stdout
    assert "order 'a' of merchant 'm-1' is sealed with the key" in done.stderr
    assert "1 orders cannot be opened with any key, and stay as they are" in done.stderr
    after = payloads(lost)
    assert after[:1] == before
    assert Payloads(Vault(NEW)).open(Key("m-1", "b"), after[1])
    lost.close()
    old.close()


@pytest.mark.parametrize("batch", [1, 2, 3, 10])
def test_all_are_sealed_a_batch_at_a_time(any_books: Books, batch: int) -> None:
    """Two merchants may have the same order's id."""
    for merchant in ("m-1", "m-2"):
        for number in range(3):
            any_books.order(f"o-{number}", State.FAILED, merchant_id=merchant)
    done = list(reseal(any_books.engine, Payloads(Vault(NEW)), batch))
    assert sum(each.looked_at for each in done) == sum(each.sealed for each in done) == 6
    assert all(each.looked_at <= batch for each in done)
    again = list(reseal(any_books.engine, Payloads(Vault(NEW)), batch))
    assert sum(each.sealed for each in again) == 0


def test_what_somebody_writes_in_the_same_moment_stays(any_books: Books) -> None:
    key = any_books.order("o-1", State.FAILED)

    class Slow(Payloads):
        def seal(self, whose: Key, order_json: bytes) -> str:
            with any_books.engine.begin() as connection:
                connection.execute(orders.update().values(payload='{"written": "meanwhile"}'))
            return super().seal(whose, order_json)

    assert list(reseal(any_books.engine, Slow(Vault(NEW)))) == [Resealed(1, 0)]
    assert any_books.desk.order_json(key) == b'{"written": "meanwhile"}'
