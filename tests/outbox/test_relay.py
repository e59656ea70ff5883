"""The relay submits what is committed, in each order's order, and nothing holds up the others."""

import logging
import os
import socket
import sqlite3
import threading
import time
from contextlib import ExitStack, closing, suppress
from functools import partial
from typing import Any

import pytest
from sqlalchemy import create_engine

from pos_gateway.client import outbox
from pos_gateway.client.outbox import relay as relay_module
from pos_gateway.client.outbox.connections import PlainConnection
from pos_gateway.client.outbox.opening import connector
from pos_gateway.client.outbox.publishing import LONGEST, publish
from pos_gateway.client.outbox.relay import ATTEMPTS
from pos_gateway.client.outbox.store import PendingRow, Store
from pos_gateway.client.outbox.table import LATER
from pos_gateway.domain.errors import (
    BrokerUnavailable,
    InvalidOrder,
    InvalidSettings,
    MessageTooLarge,
    OrderDiffers,
    Unauthorized,
)
from pos_gateway.domain.order import Order
from pos_gateway.runtime import failpoints
from tests.orders import an_order
from tests.outbox.lab import SOON, Backend, Gateway, orders

#: A relay that is to look at the table only when it is woken.
NEVER = 3600.0
WRONG = InvalidOrder([])
CANCEL = b'{"order_id":"o","merchant_id":"m1","deliver_by":"2030-01-01T00:00:00Z"}'


def listed(backend: Backend, *, refused_only: bool = False) -> dict[str, tuple[bool, int, str]]:
    with closing(Store(backend.connect())) as store:
        rows = store.listed(refused_only=refused_only, limit=100)
    return {row.order_id: (row.is_refused, row.attempts, row.reason or "") for row in rows}


def test_what_is_committed_is_submitted_and_removed(backend: Backend, gateway: Gateway) -> None:
    backend.place(*orders("o1", "o2", "o3"))
    relay = outbox.Relay(gateway, backend.url)
    assert relay.lag().rows == 3
    assert relay.drain() == 3
    assert gateway.stored == ["o1", "o2", "o3"]
    assert gateway.batches == [["o1", "o2", "o3"]]
    assert backend.kept() == []
    assert relay.lag() == outbox.Lag(0, 0.0, 0)
    assert relay.drain() == 0


def test_batches_are_bounded(backend: Backend, gateway: Gateway) -> None:
    backend.place(*orders(*(f"o{number}" for number in range(7))))
    assert outbox.Relay(gateway, backend.url, batch=3).drain() == 7
    assert [len(each) for each in gateway.batches] == [3, 3, 1]


def test_batches_are_bounded_in_bytes(
    local: Backend, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over HTTP each request has the client's time limit, and the transaction ends after a minute."""
    local.place(*orders("o1", "o2", "o3", "o4"))
    one = len(Order.parse(an_order("o1")).source)
    monkeypatch.setattr(relay_module, "BATCH_BYTES", 2 * one + 2)
    outbox.Relay(gateway, local.url).drain()
    assert gateway.batches == [["o1", "o2"], ["o3", "o4"]]
    monkeypatch.setattr(relay_module, "BATCH_BYTES", 1)
    local.place(*orders("o5", "o6"))
    outbox.Relay(gateway, local.url).drain()
    assert gateway.batches[2:] == [["o5"], ["o6"]]


def test_an_order_that_was_rolled_back_is_never_submitted(
    backend: Backend, gateway: Gateway
) -> None:
    with closing(backend.connect()) as connection:
        outbox.add(connection, orders("o1")[0])
        if backend.dialect != "sqlite":  # a writer of another transaction would wait
            backend.place(*orders("o2"))
            assert outbox.Relay(gateway, backend.url).drain() == 1
        connection.rollback()
    backend.place(*orders("o3"))
    assert outbox.Relay(gateway, backend.url).drain() == 1
    assert "o1" not in gateway.stored


def test_a_row_is_removed_only_once_it_is_confirmed(backend: Backend, gateway: Gateway) -> None:
    backend.place(*orders("o1", "o2"))
    gateway.errors["o1"] = BrokerUnavailable("no confirm came")
    seen: list[list[str]] = []
    gateway.before = lambda ids: seen.append(backend.kept())
    assert outbox.Relay(gateway, backend.url).drain() == 1
    assert seen[0] == ["o1", "o2"]
    assert backend.kept() == ["o1"]
    del gateway.errors["o1"]
    backend.due()
    assert outbox.Relay(gateway, backend.url).drain() == 1
    assert gateway.stored == ["o2", "o1"]


def test_a_row_that_cannot_be_removed_is_not_submitted_again(
    local: Backend, gateway: Gateway
) -> None:
    """By a relay without the right to delete, say, or while the database's disk is full."""
    local.place(*orders("o1", "o2"))
    local.run(
        f"create trigger full before delete on {outbox.TABLE} begin select raise(abort, 'full'); end"
    )
    relay = outbox.Relay(gateway, local.url)
    for _ in range(3):
        with pytest.raises(sqlite3.IntegrityError, match="full"):
            relay.drain()
    assert gateway.stored == ["o1", "o2"]
    local.run("drop trigger full")
    # Another order with the id of a confirmed row: the table was made anew.
    local.run(f"update {outbox.TABLE} set body = cast(body as text) || ' ' where order_id = 'o2'")
    relay.drain()
    assert gateway.stored == ["o1", "o2", "o2"]
    assert local.kept() == []


def test_a_cancel_request_follows_its_order(backend: Backend, gateway: Gateway) -> None:
    backend.cancel("o0")
    backend.place(*orders("o1", "o2"))
    backend.cancel("o1")
    backend.cancel("o1")
    assert outbox.Relay(gateway, backend.url).drain() == 5
    assert gateway.stored.index("o1") < gateway.stored.index("cancel o1")
    assert gateway.stored.count("cancel o1") == 2
    assert "cancel o0" in gateway.stored


def test_a_cancel_request_never_overtakes_its_order(backend: Backend, gateway: Gateway) -> None:
    backend.place(*orders("o1"))
    backend.cancel("o1")
    backend.cancel("o2")
    gateway.errors["o1"] = BrokerUnavailable("no confirm came")
    relay = outbox.Relay(gateway, backend.url)
    for _ in range(4):
        relay.drain()
    assert gateway.stored == ["cancel o2"]
    del gateway.errors["o1"]
    backend.due()
    assert relay.drain() == 2
    assert gateway.stored == ["cancel o2", "o1", "cancel o1"]


def test_a_cancel_request_does_not_wait_for_an_order_that_is_refused(
    backend: Backend, gateway: Gateway
) -> None:
    backend.place(*orders("o1"))
    backend.cancel("o1")
    gateway.errors["o1"] = OrderDiffers("the id is taken")
    assert outbox.Relay(gateway, backend.url).drain() == 1
    assert gateway.stored == ["cancel o1"]


def test_of_two_relays_neither_submits_a_cancel_request_before_its_order(
    locking: Backend, gateway: Gateway
) -> None:
    """The second one skips the locked order, and with it what is behind it."""
    locking.place(*orders("o1", "o2"))
    locking.cancel("o1")
    second = Gateway()

    def meanwhile(ids: list[str]) -> None:
        assert ids == ["o1", "o2"]
        locking.place(*orders("o3"))
        assert outbox.Relay(second, locking.url).drain() == 1

    gateway.before = meanwhile
    assert outbox.Relay(gateway, locking.url, batch=2).drain() == 3
    assert second.stored == ["o3"]
    assert gateway.stored == ["o1", "o2", "cancel o1"]


def test_the_backend_writes_while_a_batch_is_published(backend: Backend, gateway: Gateway) -> None:
    """Also between the rows, and into a table that was empty: no gap is locked."""
    backend.place(*orders("o1"))
    gateway.before = lambda ids: backend.place(*orders(f"{ids[0]}+")) if len(ids[0]) < 9 else None
    assert outbox.Relay(gateway, backend.url).drain() > 3
    gateway.before = lambda ids: None
    assert backend.kept() == []


def test_a_refused_row_is_kept_with_its_reason_and_holds_up_no_other(
    backend: Backend, gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    backend.place(*orders("differs", "invalid", "long", "good"))
    backend.cancel("past")
    gateway.errors = {
        "differs": OrderDiffers("the id is taken by 'secret words'"),
        "invalid": WRONG,
        "long": MessageTooLarge("the broker refused the message"),
        "cancel past": WRONG,
    }
    relay = outbox.Relay(gateway, backend.url)
    assert relay.drain() == 1
    assert gateway.stored == ["good"]
    found = listed(backend, refused_only=True)
    assert {*found} == {"differs", "invalid", "long", "past"}
    assert found["differs"] == (True, 0, "OrderDiffers: the id is taken by 'secret words'")
    assert relay.lag() == outbox.Lag(0, 0.0, 4)
    assert relay.drain() == 0
    assert "row 1 of the outbox is refused (OrderDiffers)" in caplog.text
    assert "secret words" not in caplog.text


def test_a_row_of_another_version_is_refused(local: Backend, gateway: Gateway) -> None:
    local.place(*orders("o1", "o2"))
    local.run(f"update {outbox.TABLE} set body = '{{}}' where order_id = 'o1'")
    assert outbox.Relay(gateway, local.url).drain() == 1
    assert "order_id: is required" in listed(local)["o1"][2]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("action = 'order'", "action: should be submit or cancel (got 'order')"),
        ("action = 'SUBMIT'", "action: should be submit or cancel (got 'SUBMIT')"),
        ("order_id = 'o3'", "order_id: should be that of its row, 'o3' (got 'o1')"),
        ("merchant_id = 'm', action = 'cancel'", "merchant_id: should be that of its row, 'm'"),
    ],
)
def test_a_row_that_contradicts_itself_is_refused(
    local: Backend, gateway: Gateway, change: str, words: str
) -> None:
    """MySQL before 8.0.16 checks no action; an order taken for a cancel request is never sent."""
    local.place(*orders("o1", "o2"))
    local.run(
        "pragma ignore_check_constraints = on",
        f"update {outbox.TABLE} set {change} where order_id = 'o1'",
    )
    assert outbox.Relay(gateway, local.url).drain() == 1
    assert gateway.stored == ["o2"]
    [(_, _, reason)] = listed(local, refused_only=True).values()
    assert words in reason


def test_a_body_that_sqlite_has_as_a_text_stops_no_relay(local: Backend, gateway: Gateway) -> None:
    local.place(*orders("o1", "o2"))
    local.run(f"update {outbox.TABLE} set body = cast(body as text) where order_id = 'o1'")
    assert outbox.Relay(gateway, local.url).drain() == 2
    assert gateway.stored == ["o1", "o2"]


def test_a_reason_that_no_text_column_takes_stops_no_relay(
    backend: Backend, gateway: Gateway
) -> None:
    backend.place(*orders("o1", "o2", "o3"))
    gateway.errors = {
        "o1": OrderDiffers("is taken by \0 and \ud800"),
        "o2": BrokerUnavailable("\ud800\0"),
    }
    assert outbox.Relay(gateway, backend.url).drain() == 1
    found = listed(backend)
    assert found["o1"][2] == r"OrderDiffers: is taken by \0 and \ud800"
    assert found["o2"][2] == r"BrokerUnavailable: \ud800\0"


def test_refused_rows_are_retried_or_discarded(backend: Backend, gateway: Gateway) -> None:
    backend.place(*orders("o1", "o2", "o3"))
    gateway.errors = {each: OrderDiffers("the id is taken") for each in ("o1", "o2")}
    relay = outbox.Relay(gateway, backend.url)
    relay.drain()
    gateway.errors = {}
    with closing(Store(backend.connect())) as store:
        assert store.discard([1, 4711]) == 1
        assert store.discard([]) == 0
        assert store.retry([4711]) == 0
        assert store.retry(None) == 1
    assert relay.drain() == 1
    assert gateway.stored == ["o3", "o2"]
    assert backend.kept() == []


@pytest.mark.parametrize(
    "error", [BrokerUnavailable("closed"), RuntimeError("a bug")], ids=["lost", "a bug"]
)
def test_a_row_that_fails_whole_batches_holds_up_no_other(
    backend: Backend, gateway: Gateway, error: Exception
) -> None:
    """It closes the connection, say: every order beside it fails as well."""
    backend.place(*orders(*(f"a{number}" for number in range(5)), "poison", "b1", "b2"))
    gateway.poison["poison"] = error
    relay = outbox.Relay(gateway, backend.url)
    relay.drain()
    assert {*gateway.stored} == {"a0", "a1", "a2", "a3", "a4", "b1", "b2"}
    assert [*listed(backend)] == ["poison"]
    for number in range(ATTEMPTS):
        backend.place(*orders(f"c{number}"))
        backend.due()
        relay.drain()
        assert f"c{number}" in gateway.stored
    refused, attempts, reason = listed(backend)["poison"]
    assert refused
    assert f"times while others were published: {type(error).__name__}: {error}" in reason
    assert attempts == ATTEMPTS - 1


def test_a_row_that_failed_goes_alone(local: Backend, gateway: Gateway) -> None:
    """It costs the others one failed batch, not one each time."""
    local.place(*orders("o1", "poison", "o2"))
    gateway.poison["poison"] = BrokerUnavailable("closed")
    relay = outbox.Relay(gateway, local.url)
    relay.drain()
    local.place(*orders("o3", "o4"))
    local.due()
    gateway.batches.clear()
    relay.drain()
    assert [each for each in gateway.batches if "poison" in each] == [["poison"]]
    assert gateway.stored[-2:] == ["o3", "o4"]


def test_while_the_gateway_is_away_nothing_is_given_up(backend: Backend, gateway: Gateway) -> None:
    backend.place(*orders(*(f"o{number}" for number in range(20))))
    gateway.is_away = True
    relay = outbox.Relay(gateway, backend.url)
    for _ in range(5 * ATTEMPTS):
        backend.due()
        relay.drain()
    found = listed(backend)
    assert len(found) == 20
    assert not any(refused for refused, _, _ in found.values())
    assert sum(attempts for _, attempts, _ in found.values()) <= 1
    gateway.is_away = False
    backend.due()
    assert relay.drain() == 20


def test_a_token_that_is_not_taken_refuses_no_row(local: Backend, gateway: Gateway) -> None:
    local.place(*orders("o1"))
    gateway.poison["o1"] = Unauthorized("the token is unknown")
    relay = outbox.Relay(gateway, local.url)
    for _ in range(2 * ATTEMPTS):
        local.due()
        relay.drain()
    assert listed(local)["o1"][:2] == (False, 1)


def test_a_row_that_failed_is_not_tried_at_once(backend: Backend, gateway: Gateway) -> None:
    backend.place(*orders("o1", "o2"))
    gateway.errors["o1"] = BrokerUnavailable("no confirm came")
    relay = outbox.Relay(gateway, backend.url)
    relay.drain()
    relay.drain()
    assert gateway.batches == [["o1", "o2"]]
    [(later,)] = backend.run(f"select count(*) from {outbox.TABLE} where not_before is not null")
    assert later == 1


def test_a_running_relay_submits_until_it_is_stopped(
    backend: Backend, gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    relay = outbox.Relay(gateway, backend.url, poll=0.02).start()
    try:
        assert relay.start() is relay
        backend.place(*orders("o1"))
        gateway.wait_for("o1")
        backend.place(*orders("o2"))
        backend.cancel("o2")
        gateway.wait_for("o2", "cancel o2")
    finally:
        relay.stop(SOON)
    assert "has started" in caplog.text
    assert "has stopped" in caplog.text
    backend.place(*orders("o3"))
    relay.start()
    gateway.wait_for("o3")
    relay.stop(SOON)


def test_a_relay_is_woken(local: Backend, gateway: Gateway) -> None:
    relay = outbox.Relay(gateway, local.url, poll=NEVER).start()
    try:
        for number in range(5):
            local.place(*orders(f"o{number}"))
            relay.wake()
            gateway.wait_for(f"o{number}")
    finally:
        relay.stop(SOON)


def test_a_session_on_mariadb_outlasts_the_time_between_two_looks(
    on_mariadb: Backend, gateway: Gateway
) -> None:
    """Else each look would find the session ended, and warn of a database that is away."""
    lasts = []

    def connect() -> Any:
        connection = on_mariadb.connect()
        close = connection.close

        def look_and_close() -> None:
            lasts.extend(PlainConnection(connection).execute("select @@session.wait_timeout"))
            close()

        connection.close = look_and_close
        return connection

    on_mariadb.place(*orders("o1"))
    relay = outbox.Relay(gateway, connect, poll=NEVER).start()
    gateway.wait_for("o1")
    relay.stop(SOON)
    [[seconds]] = lasts
    assert seconds > NEVER


def test_a_commit_on_postgresql_wakes_the_relay(on_postgresql: Backend, gateway: Gateway) -> None:
    relay = outbox.Relay(gateway, on_postgresql.url, poll=NEVER).start()
    try:
        on_postgresql.place(*orders("o0"))
        gateway.wait_for("o0")
        for number in range(1, 20):
            on_postgresql.place(*orders(f"o{number}"))
            gateway.wait_for(f"o{number}")
    finally:
        relay.stop(SOON)


def test_a_commit_wakes_nothing_where_it_is_not_asked_to(
    on_postgresql: Backend, gateway: Gateway
) -> None:
    with closing(on_postgresql.connect()) as watcher:
        watcher.autocommit = True
        watcher.execute(f"listen {outbox.TABLE}")
        with closing(on_postgresql.connect()) as connection:
            outbox.add(connection, orders("o1")[0], notify=False)
            connection.commit()
            outbox.add(connection, orders("o2")[0])
            outbox.add(connection, orders("o3")[0])
            connection.commit()
        assert len([*watcher.notifies(timeout=SOON, stop_after=1)]) == 1
        assert [*watcher.notifies(timeout=0)] == []
    assert outbox.Relay(gateway, on_postgresql.url).drain() == 3


def test_a_relay_outlives_its_database(
    on_postgresql: Backend, gateway: Gateway, postgresql: Any, caplog: pytest.LogCaptureFixture
) -> None:
    relay = outbox.Relay(gateway, on_postgresql.url, poll=0.02).start()
    try:
        on_postgresql.place(*orders("o1"))
        gateway.wait_for("o1")
        postgresql.kill()
        postgresql.start()
        on_postgresql.place(*orders("o2"))
        gateway.wait_for("o2")
        postgresql.drop_connections()
        on_postgresql.place(*orders("o3"))
        gateway.wait_for("o3")
    finally:
        relay.stop(SOON)
    assert "the outbox's database" in caplog.text


def test_a_relay_waits_for_its_table(
    local: Backend, gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    local.run(f"drop table {outbox.TABLE}")
    relay = outbox.Relay(gateway, local.url, poll=0.02).start()
    try:
        ends = time.monotonic() + SOON
        while "no such table" not in caplog.text:
            assert time.monotonic() < ends
            time.sleep(0.01)
        local.run(*outbox.ddl("sqlite"))
        local.place(*orders("o1"))
        gateway.wait_for("o1")
    finally:
        relay.stop(SOON)


def test_a_relay_says_once_that_the_gateway_is_away_and_once_that_it_is_back(
    local: Backend, gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    gateway.is_away = True
    local.place(*orders("o1", "o2"))
    relay = outbox.Relay(gateway, local.url)
    for _ in range(3):
        local.due()
        relay.drain()
    gateway.is_away = False
    local.due()
    relay.drain()
    said = [record.message for record in caplog.records if "the gateway" in record.message]
    assert len(said) == 2
    assert "the gateway: BrokerUnavailable: the broker is away" in said[0]
    assert said[1] == "the gateway answers again"


def test_a_relay_says_each_time_that_its_database_is_away(
    local: Backend,
    gateway: Gateway,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if no row came in between; and once, however often it is tried."""
    monkeypatch.setattr(relay_module, "_LONGEST_PAUSE", 0.02)
    caplog.set_level(logging.INFO)

    def says(words: str, times: int) -> None:
        ends = time.monotonic() + SOON
        while caplog.text.count(words) < times:
            assert time.monotonic() < ends, caplog.text
            time.sleep(0.01)

    relay = outbox.Relay(gateway, local.url, poll=0.02).start()
    try:
        for count in (1, 2):
            local.run(f"drop table {outbox.TABLE}")
            says("the outbox is not submitted: the outbox's database: ", count)
            local.run(*outbox.ddl("sqlite"))
            says("the outbox's database answers again", count)
    finally:
        relay.stop(SOON)
    assert caplog.text.count("is not submitted") == 2


def test_relays_share_the_work_and_each_order_is_submitted_once(
    locking: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    ids = [f"o{number}" for number in range(300)]
    locking.place(*orders(*ids))
    gateways = [Gateway() for _ in range(3)]
    relays = [outbox.Relay(each, locking.url, batch=10, poll=0.02).start() for each in gateways]
    try:
        ends = time.monotonic() + SOON
        while locking.kept():
            assert time.monotonic() < ends
            time.sleep(0.01)
    finally:
        for relay in relays:
            relay.stop(SOON)
    stored = [name for gateway in gateways for name in gateway.stored]
    assert {*stored} == {*ids}
    # Only a relay that the database has failed, and that has said so, may repeat some.
    assert len(stored) == len(ids) or "the outbox's database" in caplog.text


def test_on_sqlite_one_relay_works_and_another_takes_over(local: Backend) -> None:
    first, second = Gateway(), Gateway()
    one = outbox.Relay(first, local.url, poll=0.02).start()
    other: outbox.Relay | None = None
    try:
        local.place(*orders("o1"))
        first.wait_for("o1")
        other = outbox.Relay(second, local.url, poll=0.02).start()
        for number in range(2, 20):
            local.place(*orders(f"o{number}"))
            first.wait_for(f"o{number}")
        assert outbox.Relay(second, local.url).drain() == 0
        one.stop(SOON)
        local.place(*orders("o20"))
        second.wait_for("o20")
        assert second.stored == ["o20"]
    finally:
        one.stop(SOON)
        if other is not None:
            other.stop(SOON)


def test_a_relay_that_stands_still_releases_its_rows(
    on_postgresql: Backend, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL ends the transaction of a frozen relay; thawed, it goes on with a new one."""
    from pos_gateway.client.outbox import store as store_module

    begin = store_module._BEGIN[outbox.Dialect.POSTGRESQL]
    monkeypatch.setitem(
        store_module._BEGIN, outbox.Dialect.POSTGRESQL, begin.replace("'60s'", "'200ms'")
    )
    other = Gateway()

    def frozen(ids: list[str]) -> None:
        monkeypatch.setitem(store_module._BEGIN, outbox.Dialect.POSTGRESQL, begin)
        relay = outbox.Relay(other, on_postgresql.url)
        ends = time.monotonic() + SOON
        while relay.drain() == 0:
            assert time.monotonic() < ends
            time.sleep(0.01)

    on_postgresql.place(*orders("o1"))
    gateway.before = frozen
    with suppress(Exception):
        outbox.Relay(gateway, on_postgresql.url).drain()
    assert other.stored == ["o1"]
    assert on_postgresql.kept() == []


def test_a_pool_s_connections_serve_the_relay_and_do_not_come_back_changed(
    backend: Backend, gateway: Gateway
) -> None:
    """In autocommit, they would commit a backend's writes one by one."""
    engine = create_engine(backend.url, pool_size=3)
    backend.place(*orders("o1"))
    relay = outbox.Relay(gateway, engine.raw_connection, poll=0.02).start()
    try:
        gateway.wait_for("o1")
        backend.place(*orders("o2"))
        gateway.wait_for("o2")
        relay.lag()
    finally:
        relay.stop(SOON)
    with ExitStack() as stack:
        connections = [stack.enter_context(engine.connect()) for _ in range(3)]
        for each in connections[:1] if backend.dialect == "sqlite" else connections:
            outbox.add(each, orders("o3")[0])
            each.rollback()
    assert backend.kept() == []
    engine.dispose()


def test_slow_cancel_requests_are_spread_over_batches(local: Backend, gateway: Gateway) -> None:
    """The database would end the transaction, and all of them would come again, for ever."""
    rows = [PendingRow(n, "cancel", "m1", "o", CANCEL, 0) for n in range(10)]
    now = [0.0]

    def clock() -> float:
        now[0] += LONGEST / 3
        return now[0]

    published = publish(gateway, rows, clock)
    assert published.confirmed == [0, 1]
    assert not published.unconfirmed
    assert not published.refused


def test_a_stop_ends_a_relay_whose_gateway_is_away(local: Backend, gateway: Gateway) -> None:
    gateway.is_away = True
    tried = threading.Event()
    gateway.before = lambda ids: tried.set()
    local.place(*orders("o1"))
    relay = outbox.Relay(gateway, local.url, poll=NEVER).start()
    assert tried.wait(SOON)
    relay.stop(SOON)
    assert relay._thread is not None
    assert not relay._thread.is_alive()


def test_a_relay_is_started_again_after_a_fork(local: Backend, gateway: Gateway) -> None:
    relay = outbox.Relay(gateway, local.url, poll=0.02).start()
    relay._process -= 1  # as in a child
    relay.stop(SOON)
    local.place(*orders("o1"))
    relay.start()
    gateway.wait_for("o1")
    relay.stop(SOON)


def test_a_batch_is_not_sorted_out_of_a_backlog_without_statistics(on_postgresql: Backend) -> None:
    """A backlog grows while the broker is away, faster than PostgreSQL takes statistics."""
    on_postgresql.run(
        f"insert into {outbox.TABLE} (action, merchant_id, order_id, body) "
        "select 'submit', 'm', 'o' || n, '{}' from generate_series(1, 5000) n"
    )
    with closing(Store(on_postgresql.connect())) as store:
        assert len(store.take(200)) == 200
        plan = store.driver.execute("explain " + store._take.replace("?", "200")).fetchall()
        store.finish([])
    assert not any("Sort" in line for (line,) in plan), plan


def test_a_database_that_vanished_is_given_up_after_15_s(on_postgresql: Backend) -> None:
    """Also with a statement on its way, which the kernel sends again for a quarter of an hour."""

    def milliseconds(url: str) -> int:
        with closing(connector(url)()) as connection:
            sock = socket.socket(fileno=os.dup(connection.fileno()))
            with sock:
                return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)

    assert milliseconds(on_postgresql.url) == 15_000
    assert milliseconds(f"{on_postgresql.url}&tcp_user_timeout=7000") == 7000


@pytest.mark.parametrize(("query", "seconds"), [("", 5), ("?connect_timeout=20", 20)])
def test_the_url_says_how_long_to_connect_to_mariadb(query: str, seconds: int) -> None:
    opened = connector(f"mysql://user:p@host/x{query}")
    assert isinstance(opened, partial)
    assert opened.keywords["connect_timeout"] == seconds


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("oracle://host/x", "is no postgresql://, mysql:// or sqlite:/// URL"),
        ("mysql://user:p@host:abc/x", "has no readable host and port"),
        ("mysql://user:p@host/x?connect_timeout=0", "connect_timeout must be whole seconds"),
        ("mysql://user:p@host/x?connect_timeout=2.5", "connect_timeout must be whole seconds"),
        pytest.param("postgresql://user:s3%cret@host/x", "% %25", id="percent"),
        pytest.param("postgresql://user:s3@cret@host/x", "@ %40", id="at"),
        pytest.param("postgresql://user:s3 cret@host/x", "a blank %20", id="blank"),
        pytest.param(
            "postgresql://user:s3%00cret@host/x", "has no readable host and port", id="NUL"
        ),
        ("sqlite://", "is a database in memory"),
        ("sqlite:///:memory:", "is a database in memory"),
        ("postgresql+psycopg2://host/x", "needs the package psycopg2"),
    ],
)
def test_a_url_that_does_not_do_is_named(gateway: Gateway, url: str, words: str) -> None:
    with pytest.raises(InvalidSettings, match=words) as caught:
        outbox.Relay(gateway, url)
    assert "POS_GATEWAY_OUTBOX_URL" in str(caught.value)
    assert ":p@" not in str(caught.value)
    assert "cret" not in str(caught.value)


def test_a_row_waits_for_no_time_beyond_the_longest_delay(
    backend: Backend, gateway: Gateway
) -> None:
    """The database's clock was set back by an hour after the row had failed."""
    backend.place(*orders("o1", "o2"))
    later = LATER[backend.dialect].replace("?", "3600000")
    backend.run(f"update {outbox.TABLE} set not_before = {later} where order_id = 'o1'")
    assert outbox.Relay(gateway, backend.url).drain() == 2


def test_failpoints_of_the_outbox_are_reached(local: Backend, gateway: Gateway) -> None:
    seen: list[str] = []
    try:
        for name in failpoints.OF_OUTBOX:
            failpoints.arm(name, lambda name=name: seen.append(name))  # type: ignore[misc]
        local.place(*orders("o1"))
        outbox.Relay(gateway, local.url).drain()
    finally:
        failpoints.disarm()
    assert seen == ["outbox.added", "outbox.taken", "outbox.confirmed", "outbox.removed"]


def test_pauses_grow_and_end(local: Backend, gateway: Gateway) -> None:
    relay = outbox.Relay(gateway, local.url)
    pauses = [relay._pause() for _ in range(200)]
    assert max(pauses) <= relay_module._LONGEST_PAUSE
    assert pauses[0] <= 2 * relay_module._PAUSE
