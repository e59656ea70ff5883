"""``pos-gateway secrets rotate``: merchants' secrets, and the orders that are kept."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Table, select

from pos_gateway.cli.secrets import PASSES
from pos_gateway.database.schema import callbacks, events, orders
from pos_gateway.domain.callback import Callback
from pos_gateway.domain.merchant import Merchant
from pos_gateway.domain.outcome import Kind, Reason
from pos_gateway.events.event import dehydrated
from pos_gateway.ledger import resealing
from pos_gateway.ledger.callback_rules import CallbackResult, Received
from pos_gateway.ledger.callbacks import CallbackLedger
from pos_gateway.ledger.payloads import Payloads
from pos_gateway.ledger.resealing import (
    Resealed,
    count_stale,
    count_stale_callbacks,
    count_stale_events,
    reseal,
    reseal_callbacks,
    reseal_events,
)
from pos_gateway.ledger.states import Key, State
from pos_gateway.merchants.store import MerchantStore
from pos_gateway.runtime.vault import Vault, new_key
from tests.cli.books import WHY, Books
from tests.cli.conftest import Program

OLD, NEW = new_key(), new_key()


def bearer(merchant_id: str) -> Merchant:
    auth = {"type": "bearer", "token": "s3cr3t"}
    return Merchant.parse({"id": merchant_id, "base_url": "https://pos.example", "auth": auth})


def rows(books: Books, table: Table) -> list[Any]:
    with books.engine.connect() as connection:
        return list(connection.execute(select(table)))


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
    assert done.stdout == (
        "0 of 0 merchants sealed anew\n2 of 2 orders sealed anew\n2 of 2 events sealed anew\n"
        "0 of 0 waiting callbacks sealed anew\n0 of 0 grants sealed anew\n"
    )
    assert not any("Quackenbush" in payload for payload in payloads(any_books))
    opened = Payloads(Vault(NEW))
    for row in [*rows(any_books, orders), *rows(any_books, events)]:
        sealed = Reason(row.reason_code, row.reason_message)
        assert sealed.message != WHY.message
        assert opened.open_reason(Key("m-1", row.order_id), sealed) == WHY
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
    for merchant_id, books in (("m-1", lost), ("m-2", old)):
        MerchantStore(old.engine, vault=books.vault).put([bearer(merchant_id)])
    lost.in_doubt("a")
    before = payloads(lost)
    old.in_doubt("b")
    done = program.invoke("secrets", "rotate", POS_GATEWAY_SECRET_KEY=f"{NEW},{OLD}")
    assert done.exit_code == 1
    assert "1 of 2 merchants sealed anew" in done.stdout
    assert "the secrets of merchant 'm-1' are sealed with the key" in done.stderr
    assert "1 of 2 orders sealed anew" in done.stdout
    assert "order 'a' of merchant 'm-1' is sealed with the key" in done.stderr
    assert "no key opens 1 merchants, 1 orders, 1 events, which stay as they are" in done.stderr
    after = payloads(lost)
    assert after[:1] == before
    assert Payloads(Vault(NEW)).open(Key("m-1", "b"), after[1])
    assert MerchantStore(old.engine, vault=Vault(NEW)).get(["m-2"]) == {"m-2": bearer("m-2")}
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


def test_a_concurrent_write_stays(any_books: Books) -> None:
    key = any_books.order("o-1", State.FAILED)

    class Slow(Payloads):
        def seal(self, whose: Key, order_json: bytes) -> str:
            with any_books.engine.begin() as connection:
                connection.execute(orders.update().values(payload='{"written": "meanwhile"}'))
            return super().seal(whose, order_json)

    assert list(reseal(any_books.engine, Slow(Vault(NEW)))) == [Resealed(1, 1)]  # its reason
    assert any_books.order_admin.order_json(key) == b'{"written": "meanwhile"}'
    [row] = rows(any_books, orders)
    sealed = Reason(row.reason_code, row.reason_message)
    assert Payloads(Vault(NEW)).open_reason(key, sealed) == WHY
    assert count_stale(any_books.engine, Payloads(Vault(NEW))) == 1


def test_an_order_whose_reason_is_written_in_the_same_moment_is_sealed(
    any_books: Books, order: Callable[..., dict[str, Any]]
) -> None:
    """A worker's retry changes the reason, not the payload."""
    old = Books(any_books.url, order, OLD)
    key = old.order("o-1", State.FAILED)
    later = Payloads(Vault(f"{NEW},{OLD}")).seal_reason(key, WHY).message

    class Slow(Payloads):
        def seal(self, whose: Key, order_json: bytes) -> str:
            with any_books.engine.begin() as connection:
                connection.execute(orders.update().values(reason_message=later))
            return super().seal(whose, order_json)

    assert list(reseal(any_books.engine, Slow(Vault(f"{NEW},{OLD}")))) == [Resealed(1, 1)]
    assert count_stale(any_books.engine, Payloads(Vault(NEW))) == 0
    assert Payloads(Vault(NEW)).open(key, payloads(any_books)[0])
    old.close()


def waiting(books: Books, key: str, *numbers: int) -> CallbackLedger:
    """A server with this key, and callbacks that it has stored, waiting for their order's id."""
    ledger = CallbackLedger(books.engine, Payloads(Vault(key)), dehydrated)
    for number in numbers:
        why = Reason("sold_out", "Quackenbush is not here")
        said = Callback(f"e-{number}", Kind.CANCELLED, external_id=str(number), reason=why)
        received = Received("square", "m-1", said, {"m-1": ("the POS",)})
        assert [each.result for each in ledger.apply([received])] == [CallbackResult.WAITING]
    return ledger


def make_due(books: Books) -> None:
    with books.engine.begin() as connection:
        connection.execute(callbacks.update().values(again_at=callbacks.c.again_at - 60))


@pytest.mark.parametrize("batch", [1, 10])
def test_callbacks_that_wait_are_sealed_anew(
    program: Program, any_books: Books, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resealing, "BATCH", batch)
    any_books.in_doubt("without-an-id")
    servers = [
        waiting(any_books, key, number)
        for number, key in enumerate(("", OLD, f"{NEW},{OLD}", new_key()))
    ]
    server = waiting(any_books, NEW)
    done = program.invoke("secrets", "rotate", POS_GATEWAY_SECRET_KEY=f"{NEW},{OLD}")
    assert "2 of 4 waiting callbacks sealed anew" in done.stdout
    assert "callback 'e-3' to merchant 'm-1' is sealed with the key" in done.stderr
    assert done.exit_code == 1
    assert count_stale_callbacks(any_books.engine, Payloads(Vault(NEW))) == 1
    make_due(any_books)
    due = server.due(10)
    assert [each.callback.event_id for each in due] == ["e-0", "e-1", "e-2"]
    assert {each.callback.reason and each.callback.reason.message for each in due} == {
        "Quackenbush is not here"
    }
    for each in (*servers, server):
        each.close()


def test_a_callback_that_is_applied_meanwhile_is_not_sealed_anew(any_books: Books) -> None:
    any_books.in_doubt("without-an-id")
    waiting(any_books, OLD, 1).close()

    class Slow(Payloads):
        def seal(self, whose: Key, order_json: bytes) -> str:
            with any_books.engine.begin() as connection:
                connection.execute(callbacks.update().values(waiting=None, again_at=None))
            return super().seal(whose, order_json)

    found = list(reseal_callbacks(any_books.engine, Slow(Vault(f"{NEW},{OLD}"))))
    assert found == [Resealed(1, 0)]
    assert [row.waiting for row in rows(any_books, callbacks)] == [None]


def written_with_the_old_key(
    monkeypatch: pytest.MonkeyPatch, books: Books, *, passes: int
) -> list[Key]:
    """Another process writes an order and an event after each pass."""
    written: list[Key] = []

    def then_others(which: Callable[..., Any]) -> Callable[..., Any]:
        def pass_and_write(*arguments: Any) -> Any:
            yield from which(*arguments)
            if len(written) < passes:
                written.append(books.order(f"{which.__name__}-{len(written)}", State.FAILED))

        return pass_and_write

    for each in (reseal, reseal_events):
        monkeypatch.setattr(resealing, each.__name__, then_others(each))
    return written


def test_what_others_write_with_the_old_key_meanwhile_is_sealed_too(
    program: Program,
    any_books: Books,
    order: Callable[..., dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = Books(any_books.url, order, OLD)
    written_with_the_old_key(monkeypatch, old, passes=2)
    done = program.invoke("secrets", "rotate", POS_GATEWAY_SECRET_KEY=f"{NEW},{OLD}")
    assert done.exit_code == 0, done.stderr
    assert "2 of 2 orders sealed anew" in done.stdout
    assert "2 of 2 events sealed anew" in done.stdout
    assert count_stale(any_books.engine, Payloads(Vault(NEW))) == 0
    assert count_stale_events(any_books.engine, Payloads(Vault(NEW))) == 0
    old.close()


def test_rows_that_others_go_on_writing_with_the_old_key_are_said_and_it_has_failed(
    program: Program,
    any_books: Books,
    order: Callable[..., dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = Books(any_books.url, order, OLD)
    written = written_with_the_old_key(monkeypatch, old, passes=100)
    done = program.invoke("secrets", "rotate", POS_GATEWAY_SECRET_KEY=f"{NEW},{OLD}")
    assert done.exit_code == 1
    assert len(written) == 2 * PASSES
    assert "1 orders, 1 events are still in clear or under an earlier key" in done.stderr
    assert "put the new key first in POS_GATEWAY_SECRET_KEY everywhere" in done.stderr
    old.close()


@pytest.mark.parametrize("batch", [1, 10])
def test_what_events_have_of_orders_is_sealed_anew_or_removed(
    any_books: Books, order: Callable[..., dict[str, Any]], batch: int
) -> None:
    """What was hydrated can be again, from the order; what came as an order and was none can not."""
    vaults = {
        "old": Payloads(Vault(OLD)),
        "new": Payloads(Vault(NEW)),
        "lost": Payloads(Vault(new_key())),
    }
    kept: dict[str, dict[str, str | None]] = {}

    def write(name: str, **columns: bytes) -> None:
        key = any_books.order(name, State.FAILED, reason=None)
        seal = vaults[name.partition("-")[0]].seal
        kept[name] = {column: seal(key, text) for column, text in columns.items()}
        with any_books.engine.begin() as connection:
            of_it = events.c.order_id == name
            connection.execute(events.update().where(of_it).values(kept[name]))

    for name in ("old-1", "new-1", "lost-1"):
        write(name, payload=b'{"no": "order"}', body=b'{"whole": "event"}')
    any_books.order("neither", State.FAILED, reason=None)
    any_books.publish()
    write("old-unpublished", body=b'{"whole": "event"}')
    done = list(reseal_events(any_books.engine, Payloads(Vault(f"{NEW},{OLD}")), batch))
    assert sum(each.looked_at for each in done) == 4
    assert sum(each.sealed for each in done) == 3  # a payload and a body, and a body
    [unopened] = [each for step in done for each in step.unopened]
    assert "'lost-1'" in unopened

    def now(name: str) -> Any:
        with any_books.engine.connect() as connection:
            return connection.execute(select(events).where(events.c.order_id == name)).one()

    assert vaults["new"].open(Key("m-1", "old-1"), now("old-1").payload) == b'{"no": "order"}'
    assert now("old-1").body is None
    assert (now("new-1").payload, now("new-1").body) == tuple(kept["new-1"].values())
    assert (now("lost-1").payload, now("lost-1").body) == (kept["lost-1"]["payload"], None)
    assert now("old-unpublished").body == kept["old-unpublished"]["body"]
    again = list(reseal_events(any_books.engine, vaults["new"], batch))
    assert sum(each.sealed for each in again) == 0
